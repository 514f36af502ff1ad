"""Edited topologies: the numbers that sub-topologies keep, edits that are refused, and renamed stores."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

import millstream as ms
from millstream.core.model.errors import IncompatibleTopologyError, SettingsError
from millstream.core.topology.evolution import (
    ComparedPart,
    Lineage,
    Remembered,
    checked_renames,
    continued,
    newly_gone,
    parts_from_json,
    parts_of,
)
from millstream.core.topology.layout import lay_out
from millstream.core.topology.plan import Plan
from millstream.core.topology.routing import Route, Routing


class Quiet(ms.Processor):
    def process(self, record: ms.Record) -> None:
        pass


def plan(**subs: tuple[str, ...]) -> Plan:
    """Return a plan with a sub-topology per topic, each with its stores."""
    topology = ms.Topology()
    for topic, stores in subs.items():
        topology.add_source(topic, topic)
        for store in stores:
            topology.add_state_store(ms.stores.key_value(store, ms.serdes.string, ms.serdes.string))
        topology.add_processor(f"p-{topic}", Quiet, topic, stores=stores)
    return topology.plan("app")


def parts(**numbers: tuple[tuple[str, ...], tuple[str, ...]]) -> dict[int, ComparedPart]:
    """Return parts by number, from arguments such as ``_0=(topics, stores)``."""
    return {int(name[1:]): ComparedPart(topics, stores, 2) for name, (topics, stores) in numbers.items()}


def numbers(continued_plan: Plan) -> dict[int, tuple[str, ...]]:
    return {sub.id: sub.source_topics for sub in continued_plan.subtopologies}


class TestSubtopologyNumbers:
    def test_follow_the_program_without_a_checkpoint(self) -> None:
        assert numbers(continued(plan(a=("s",), b=()), {})) == {0: ("a",), 1: ("b",)}

    def test_follow_the_stores(self) -> None:
        before = parts(_0=(("a",), ("s",)))
        assert numbers(continued(plan(new=(), a=("s",)), before)) == {0: ("a",), 1: ("new",)}
        assert numbers(continued(plan(a=(), renamed=("s",)), before)) == {0: ("renamed",), 1: ("a",)}

    def test_follow_the_topics_of_subtopologies_without_stores(self) -> None:
        before = parts(_0=(("a",), ()), _1=(("b",), ()))
        assert numbers(continued(plan(b=(), c=(), a=("s",)), before)) == {0: ("a",), 1: ("b",), 2: ("c",)}

    def test_are_never_reused(self) -> None:
        before = parts(_0=(("a",), ("s",)), _1=(("b",), ("t",)))
        now = continued(plan(b=("t",), c=("u",)), before)
        assert numbers(now) == {0: (), 1: ("b",), 2: ("c",)}
        layout = lay_out(now, {"b": 3, "c": 1})
        assert sorted(map(str, layout.tasks)) == ["1_0", "1_1", "1_2", "2_0"]
        assert parts_of(now, layout, before) == {
            0: ComparedPart((), (), 2),
            1: ComparedPart(("b",), ("t",), 3),
            2: ComparedPart(("c",), ("u",), 1),
        }
        again = continued(plan(a=("s",)), parts_of(now, layout, before))
        assert numbers(again) == {0: (), 1: (), 2: (), 3: ("a",)}

    def test_apply_to_both_ends_of_internal_topics(self) -> None:
        builder = ms.StreamsBuilder()
        builder.stream("lines").group_by(lambda k, v: v).count(store="counts")
        now = continued(
            builder.build().plan("app"),
            parts(_3=(("app-counts-repartition",), ("counts",)), _5=(("lines",), ())),
        )
        (topic,) = now.internal_topics.values()
        assert (topic.upstream, topic.downstream) == (5, 3)
        assert now.subtopology_of["lines"].id == 5

    def test_cannot_be_kept_when_two_subtopologies_become_one(self) -> None:
        before = parts(_0=(("a",), ("s",)), _1=(("b",), ("t",)))
        with pytest.raises(
            IncompatibleTopologyError,
            match=r"'s' and 't' are in one sub-topology .* different sub-topologies",
        ):
            continued(plan(a=("s", "t")), before)

    def test_cannot_be_kept_when_a_subtopology_is_divided(self) -> None:
        with pytest.raises(
            IncompatibleTopologyError,
            match=r"'s' and 't' are in different sub-topologies .* one sub-topology",
        ):
            continued(plan(a=("s",), b=("t",)), parts(_0=(("a",), ("s", "t"))))


class TestCheckpointOffset:
    def test_is_read_as_it_was_written(self) -> None:
        routing = Routing({"a": Route((0, 1), "producer"), "b": Route((1, 0), "key")}, {"s": ("a", "b")})
        lineage = Lineage(parts(_0=(("a",), ("s",)), _7=((), ())), {"a": "id"}, routing=routing)
        remembered = Remembered(
            {"s": "x"}, {"r": 2}, lineage.parts, {"a": "id"}, {"a": {0: 4}}, {"s": "process_async"}, routing
        )
        offset = {"topics": {"a": {"0": 4}}, **remembered.to_json()}
        assert parts_from_json(offset["parts"]) == lineage.parts
        assert Remembered.from_offset(offset) == remembered
        assert list(map(str, lineage.gone_tasks())) == ["7_0", "7_1"]

    def test_from_an_older_version_has_defaults_for_missing_fields(self) -> None:
        assert Remembered.from_offset({"topics": {}, "stores": {"s": "x"}, "internal": {}}) == Remembered(
            stores={"s": "x"}
        )

    def test_tasks_of_a_removed_subtopology_are_reported_once(self) -> None:
        before = parts(_0=(("a",), ("s",)), _1=((), ()))
        after = parts(_0=((), ()), _1=((), ()))
        assert list(map(str, newly_gone(before, after))) == ["0_0", "0_1"]
        assert newly_gone(after, after) == newly_gone({}, after) == newly_gone(before, before) == []


class TestStoreRenames:
    KNOWN = Remembered(
        stores={"old": "kind", "other": "kind"},
        internal={"app-old-repartition": 4},
        parts=parts(_0=(("a",), ("old", "other"))),
    )

    def test_replace_the_old_names_everywhere(self) -> None:
        now = self.KNOWN.renamed({"old": "new"}, "app")
        assert dict(now.stores) == {"new": "kind", "other": "kind"}
        assert now.parts[0].stores == ("new", "other")
        assert now.internal["app-new-repartition"] == 4

    def test_have_no_effect_once_they_are_applied(self) -> None:
        done = self.KNOWN.renamed({"old": "new"}, "app")
        again = done.renamed({"old": "new"}, "app")
        assert (again.stores, again.parts) == (done.stores, done.parts)
        assert Remembered().renamed({"old": "new"}, "app").stores == {}

    @pytest.mark.parametrize(
        ("names", "message"),
        [({"old": "other"}, "the checkpoint has both"), ({"odl": "new"}, "its stores are 'old', 'other'")],
    )
    def test_must_fit_the_checkpoint(self, names: Mapping[str, str], message: str) -> None:
        with pytest.raises(IncompatibleTopologyError, match=message):
            self.KNOWN.renamed(names, "app")

    @pytest.mark.parametrize(
        ("names", "message"),
        [
            ({"old": "nowhere"}, "no store 'nowhere'; its stores are 'a', 'b'"),
            ({"a": "b"}, "still has a store 'a'"),
            ({"x": "a", "y": "a"}, "two old stores to one new name"),
        ],
    )
    def test_must_fit_the_topology(self, names: Mapping[str, str], message: str) -> None:
        with pytest.raises(SettingsError, match=message):
            checked_renames(names, ["a", "b"])
