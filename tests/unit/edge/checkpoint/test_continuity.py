"""What a start takes over from a checkpoint, and state that it refuses to drop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

import millstream as ms
from millstream.core.model.errors import (
    CheckpointError,
    IncompatibleTopologyError,
    SettingsError,
    TopicRecreatedError,
)
from millstream.core.ports import TopicFacts
from millstream.core.runtime.batch_plan import Initialization
from millstream.core.state.segments.log import Manifest, encode_manifest
from millstream.core.topology.analysis.ranges import divided_plan
from millstream.core.topology.async_nodes import with_additional_stores
from millstream.core.topology.evolution import Remembered
from millstream.core.topology.layout import default_grouper
from millstream.core.topology.plan import Plan
from millstream.core.topology.routing import routing_of
from millstream.drivers.spark.driver.checkpoint import CheckpointProgress
from millstream.edge.checkpoint.continuity import (
    Continuity,
    check_finished,
    check_same_kinds,
    check_shared,
    continuity,
    rebuilds,
)
from unit.helpers import Quiet


def calling(name: str | None) -> Plan:
    """Return a plan with an asynchronous call of this name, or without one."""
    builder = ms.StreamsBuilder()
    stream = builder.stream("in")
    if name is not None:
        stream = stream.map_values_async(str.upper, name=name)
    stream.to("out")
    return builder.build().plan("app")


def acknowledging() -> Plan:
    """Return a plan with another operator in place of that of ``calling("call")``."""
    builder = ms.StreamsBuilder()
    builder.stream("in").process(Quiet, acknowledges=True, name="call").to("out")
    return builder.build().plan("app")


def remembered(plan: Plan) -> dict[str, Any]:
    parts = {"0": [["in"], sorted(plan.store_fingerprints()), 2]}
    return {
        "stores": plan.store_fingerprints(),
        "unfinished": dict(plan.keepers),
        "topics": {},
        "parts": parts,
    }


def continued(plan: Plan, before: Plan, renamed: dict[str, str] | None = None) -> Continuity:
    offset = remembered(before)
    names = with_additional_stores(renamed or {}, plan.keepers)
    return continuity(
        plan, CheckpointProgress(3, True, False, 2, offset, offset, 3), names, exactly_once=False
    )


def manifests_with(*counts: int) -> list[bytes]:
    """Return the manifests of tasks with these numbers of unfinished records."""
    return [encode_manifest(Manifest(), {"unfinished": {"call-unfinished": count}}) for count in counts]


class TestUnfinishedRecords:
    def test_of_a_removed_operator_are_not_left_behind(self) -> None:
        now = continued(calling(None), calling("call"))
        with pytest.raises(IncompatibleTopologyError, match=r"'call-unfinished', and 1,005 of them"):
            check_finished(now, lambda: manifests_with(5, 1_000))

    def test_do_not_block_a_start_if_the_operator_has_finished_them(self) -> None:
        now = continued(calling(None), calling("call"))
        check_finished(now, lambda: [*manifests_with(0, 0), encode_manifest(Manifest(), {})])

    def test_are_not_looked_up_while_the_operator_exists(self) -> None:
        check_finished(continued(calling("call"), calling("call")), self.fail_if_read)

    def test_stay_with_a_renamed_operator(self) -> None:
        now = continued(calling("ask"), calling("call"), {"call-unfinished": "ask-unfinished"})
        assert set(now.remembered.stores) == set(calling("ask").store_fingerprints())
        check_finished(now, self.fail_if_read)

    def test_do_not_continue_in_an_operator_of_another_kind(self) -> None:
        now = continued(acknowledging(), calling("call"))
        message = r"'call-unfinished' is process\(acknowledges=True\) .* but map_values_async .* left 5 records there"
        with pytest.raises(IncompatibleTopologyError, match=message):
            check_same_kinds(now, lambda: manifests_with(5, 0))
        check_same_kinds(now, lambda: manifests_with(0, 0))

    def test_have_no_known_kind_in_an_older_checkpoint(self) -> None:
        offset = {**remembered(calling("call")), "unfinished": ["call-unfinished"]}
        progress = CheckpointProgress(3, True, False, 2, offset, offset, 3)
        check_same_kinds(continued_from(acknowledging(), progress), self.fail_if_read)

    @staticmethod
    def fail_if_read() -> list[bytes]:
        raise AssertionError("reading what tasks remember takes a Spark job")


class TestAMicroBatchThatRemovesSubtopologies:
    """If its topology fails in it, the earlier topology repeats it and must find its state."""

    def test_does_not_renumber_them_for_the_earlier_topology(self) -> None:
        both, fewer = tables("counts", "prices"), tables("counts", "rates")
        before = self.offset(continued_from(both, None))
        failed = self.offset(continued_from(fewer, CheckpointProgress(3, True, False, 2, before, before, 3)))
        assert failed["parts"]["1"] == [[], [], 2]
        for complete in (False, True):
            processed, last = (failed, 4) if complete else (before, 3)
            progress = CheckpointProgress(4, complete, False, 2, failed, processed, last, before)
            now = continued_from(both, progress).plan
            assert [sorted(sub.stores) for sub in now.subtopologies] == [["counts"], ["prices"], []]
            now = continued_from(fewer, progress).plan
            assert [sorted(sub.stores) for sub in now.subtopologies] == [["counts"], [], ["rates"]]

    @staticmethod
    def offset(now: Continuity) -> dict[str, Any]:
        layout = now.laid_out({"counts": 2, "prices": 2, "rates": 2}, default_grouper)
        lineage = now.lineage(layout, {})
        remembered = Remembered(now.plan.store_fingerprints(), {}, lineage.parts, {}, {}, {}, lineage.routing)
        return {**remembered.to_json(), "topics": {}}


def tables(*topics: str) -> Plan:
    builder = ms.StreamsBuilder()
    for topic in topics:
        builder.table(topic, store=topic)
    return builder.build().plan("app")


def continued_from(plan: Plan, progress: CheckpointProgress | None) -> Continuity:
    return continuity(plan, progress, {}, exactly_once=False)


class TestATopicThatOneEditRemovesAndALaterOneAdds:
    """The checkpoint keeps its positions. They are those of the same topic only if it was not created again in the meantime."""

    @staticmethod
    def ids(plan: Plan, before: dict[str, str], found: dict[str, str]) -> Mapping[str, str]:
        """Return the topic ids that the next micro-batch writes to a checkpoint."""
        offset = {"parts": {"0": [["counts"], ["counts"], 2]}, "topic_ids": before}
        now = continued_from(plan, CheckpointProgress(3, True, False, 2, offset, offset, 3))
        facts = {topic: TopicFacts(found[topic], 2) for topic in plan.broker_topics}
        now.check_topics(facts, restart_recreated=False)
        return now.lineage(now.laid_out({"counts": 2, "prices": 2}, default_grouper), facts).topic_ids

    def test_continues_if_it_is_the_same_topic(self) -> None:
        without = self.ids(tables("counts"), {"counts": "c", "prices": "p"}, {"counts": "c"})
        again = self.ids(tables("counts", "prices"), dict(without), {"counts": "c", "prices": "p"})
        assert again == {"counts": "c", "prices": "p"}

    def test_is_refused_if_it_was_recreated(self) -> None:
        without = self.ids(tables("counts"), {"counts": "c", "prices": "p"}, {"counts": "c"})
        with pytest.raises(TopicRecreatedError, match="'prices'"):
            self.ids(tables("counts", "prices"), dict(without), {"counts": "c", "prices": "other"})


class TestAStandbyWithAnEmptyCheckpoint:
    def test_is_refused_if_the_previous_driver_has_committed_offsets(self) -> None:
        with pytest.raises(CheckpointError, match=r"file:/mine is empty, .* share a checkpoint"):
            check_shared(tables("prices"), "file:/mine", {"prices": {0: 5}})

    def test_may_start_if_no_offset_is_committed(self) -> None:
        check_shared(tables("prices"), "file:/mine", {"prices": {}})

    def test_may_rebuild_stores_from_changelog_topics(self) -> None:
        builder = ms.StreamsBuilder()
        builder.stream("in").group_by_key().count(store=ms.stores.options("counts", changelog="kafka"))
        check_shared(builder.build().plan("app"), "file:/mine", {"in": {0: 5}})


class TestRebuilding:
    """Stores are rebuilt from changelog topics until all tasks have begun."""

    BEGIN: ClassVar[dict[str, Any]] = {"tick": 1, "begin": Initialization(rebuild=True).to_json()}

    @pytest.mark.parametrize("possible", [True, False])
    @pytest.mark.parametrize(
        "progress",
        [None, CheckpointProgress(0, True, False, 2, {"tick": 0}, {"tick": 0}, 0)],
        ids=["no checkpoint", "an empty micro-batch"],
    )
    def test_starts_if_it_is_possible(self, progress: CheckpointProgress | None, *, possible: bool) -> None:
        assert rebuilds(progress, lambda: possible) is possible

    @pytest.mark.parametrize("processed", [{}, {"tick": 0}], ids=["the first", "after an empty one"])
    def test_is_completed_after_the_micro_batch_was_interrupted(self, processed: dict[str, Any]) -> None:
        complete = 0 if processed else -1
        interrupted = CheckpointProgress(complete + 1, False, False, 2, self.BEGIN, processed, complete)
        assert rebuilds(interrupted, self.fail_if_asked)

    def test_ends_with_the_micro_batch(self) -> None:
        assert not rebuilds(
            CheckpointProgress(0, True, False, 2, self.BEGIN, self.BEGIN, 0), self.fail_if_asked
        )
        later = {"tick": 2, "begin": Initialization().to_json()}
        assert not rebuilds(CheckpointProgress(1, False, False, 2, later, self.BEGIN, 0), self.fail_if_asked)

    @staticmethod
    def fail_if_asked() -> bool:
        raise AssertionError("asked")


def test_key_ranges_of_the_checkpoint_must_publish_their_positions_like_those_of_the_settings() -> None:
    def built(changelog: Any) -> Plan:
        builder = ms.StreamsBuilder()
        builder.stream("clicks").group_by_key().count(store=ms.stores.options("counts", changelog="kafka"))
        builder.stream("orders").group_by_key().count(store=ms.stores.options("others", changelog=changelog))
        return builder.build().plan("app")

    before = divided_plan(built("kafka"), 4)
    partitions = {"clicks": 1, "orders": 1}
    layout = continuity(before, None, {}, exactly_once=True).laid_out(partitions, default_grouper)
    parts = {str(sub.id): [sorted(sub.source_topics), list(sub.stores), 16] for sub in before.subtopologies}
    offset = {**remembered(before), "routing": routing_of(before, layout).to_json(), "parts": parts}
    progress = CheckpointProgress(3, True, False, 2, offset, offset, 3)
    assert continuity(built("kafka"), progress, {}, exactly_once=True).plan.subtopologies[1].ranges > 1
    assert continuity(built("spark"), progress, {}, exactly_once=False).plan.subtopologies[1].ranges > 1
    with pytest.raises(
        SettingsError, match="sub-topology 1, which reads 'orders', has no store with a changelog"
    ):
        continuity(built("spark"), progress, {}, exactly_once=True)
