"""Splitting: connected parts, what connects them, and what runs before the shuffle."""

from __future__ import annotations

import pytest

import millstream as ms
from millstream.core.model.errors import TopologyError
from millstream.core.topology.nodes import Repartition
from millstream.core.topology.plan import Plan

STORE = ms.stores.key_value("shared", ms.serdes.string, ms.serdes.string)


class Quiet(ms.Processor):
    def process(self, record: ms.Record) -> None:
        pass


def parts(plan: Plan) -> list[list[str]]:
    return [list(sub.nodes) for sub in plan.subtopologies]


def where(plan: Plan) -> dict[str, bool]:
    """Return per internal topic whether it goes through the shuffle."""
    return {topic.name: topic.through_shuffle for topic in plan.internal_topics.values()}


def test_unconnected_parts_are_numbered_in_the_order_they_were_begun() -> None:
    topology = (
        ms.Topology()
        .add_source("a", "A")
        .add_source("b", "B")
        .add_sink("b-out", "X", "b")
        .add_sink("a-out", "Y", "a")
    )
    plan = topology.plan("app")
    assert parts(plan) == [["a", "a-out"], ["b", "b-out"]]
    assert plan.external_topics == plan.broker_topics == ("A", "B")
    assert plan.sink_topics == ("Y", "X")
    assert plan.subtopology_of["B"].id == 1


def test_a_shared_store_connects() -> None:
    topology = (
        ms.Topology()
        .add_source("a", "A")
        .add_source("b", "B")
        .add_processor("pa", Quiet, "a")
        .add_processor("pb", Quiet, "b")
    )
    assert len(topology.plan().subtopologies) == 2
    topology.add_state_store(STORE, processors=["pa", "pb"])
    plan = topology.plan()
    assert parts(plan) == [["a", "b", "pa", "pb"]]
    assert list(plan.subtopologies[0].stores) == ["shared"]


def test_a_repartition_is_the_border_between_two() -> None:
    builder = ms.StreamsBuilder()
    builder.stream("in").group_by(lambda k, v: v).count(store="counts").to_stream().to(
        "out", value=ms.serdes.int64
    )
    plan = builder.build().plan("app")
    assert parts(plan) == [
        [
            "KSTREAM-SOURCE-0000000000",
            "KSTREAM-KEY-SELECT-0000000001",
            "counts-repartition-filter",
            "counts-repartition-sink",
        ],
        [
            "counts-repartition-source",
            "KSTREAM-AGGREGATE-0000000002",
            "KTABLE-TOSTREAM-0000000006",
            "KSTREAM-SINK-0000000007",
        ],
    ]
    (topic,) = plan.internal_topics.values()
    assert (topic.name, topic.upstream, topic.downstream) == ("app-counts-repartition", 0, 1)
    assert (plan.external_topics, plan.broker_topics, plan.sink_topics) == (("in",), ("in",), ("out",))
    assert [plan.runs_before_shuffle(sub) for sub in plan.subtopologies] == [True, False]
    assert plan.store_fingerprints() == {"counts": "sub-topology 1, timestamped-key-value string -> int64"}


def test_only_what_comes_from_a_stateless_part_goes_through_the_shuffle() -> None:
    builder = ms.StreamsBuilder()
    counts = builder.stream("in").group_by(lambda k, v: v).count(store="one")
    counts.to_stream().group_by(lambda k, v: str(v), value=ms.serdes.int64).count(store="two")
    plan = builder.build().plan("app")
    assert where(plan) == {"app-one-repartition": True, "app-two-repartition": False}
    assert plan.broker_topics == ("in", "app-two-repartition")


def test_a_part_behind_a_shuffle_repartitions_through_a_topic() -> None:
    builder = ms.StreamsBuilder()
    builder.stream("in").repartition(name="first").select_key(lambda k, v: v).repartition(name="second").to(
        "out"
    )
    plan = builder.build().plan("app")
    assert where(plan) == {"app-first-repartition": True, "app-second-repartition": False}
    assert [plan.runs_before_shuffle(sub) for sub in plan.subtopologies] == [True, False, True]


def consistent(plan: Plan) -> bool:
    """Return whether only parts that run before the shuffle send to it."""
    return all(
        plan.runs_before_shuffle(plan.subtopologies[topic.upstream])
        for topic in plan.internal_topics.values()
        if topic.through_shuffle
    )


def test_a_stream_merged_with_its_own_repartition_sends_it_through_a_topic() -> None:
    builder = ms.StreamsBuilder()
    stream = builder.stream("in")
    stream.merge(stream.repartition(name="again")).to("out")
    plan = builder.build().plan("app")
    assert len(plan.subtopologies) == 1
    assert where(plan) == {"app-again-repartition": False}
    assert consistent(plan)


def test_a_part_that_gets_a_shuffle_later_does_not_send_to_another() -> None:
    builder = ms.StreamsBuilder()
    stream = builder.stream("in")
    stream.select_key(lambda k, v: v).group_by_key().count(store="counts")  # made while `in` is all it reads
    stream.merge(builder.stream("other").repartition(name="late")).to("out")
    assert consistent(builder.build().plan("app"))


def test_a_store_or_a_processor_makes_a_part_stateful() -> None:
    stateless = ms.Topology().add_source("in", "x").add_sink("out", "y", "in")
    stateful = ms.Topology().add_source("in", "x").add_processor("p", Quiet, "in")
    assert stateless.plan().subtopologies[0].stateless
    assert not stateful.plan().subtopologies[0].stateless


def test_the_names_a_repartition_needs_are_kept_free() -> None:
    builder = ms.StreamsBuilder()
    builder.stream("in", name="counts-repartition-source").group_by(lambda k, v: v).count(store="counts")
    with pytest.raises(
        TopologyError,
        match="repartition 'counts-repartition' needs the name 'counts-repartition-source', which another node has",
    ):
        builder.build().plan()


def test_two_repartitions_of_one_name_are_refused() -> None:
    topology = ms.Topology().add_source("in", "x")
    for name in ("first", "second"):
        topology.add(Repartition(name, ("in",), "same", ms.serdes.string, ms.serdes.string))
    with pytest.raises(
        TopologyError, match=r"two repartitions have the name 'same'; set another name=\.\.\. on one of them"
    ):
        topology.plan()


def test_a_plan_says_what_an_application_reads_keeps_and_writes() -> None:
    builder = ms.StreamsBuilder()
    counts = builder.stream("in").group_by(lambda k, v: v).count(store="one").to_stream()
    counts.to(lambda key, value, context: key, value=ms.serdes.int64)
    counts.group_by(lambda k, v: str(v), value=ms.serdes.int64).count(store="two")
    assert str(builder.build().plan("app")) == "\n".join(
        [
            "Application app",
            "  sub-topology 0 (before the shuffle)",
            "    reads  in",
            "    writes app-one-repartition (Spark's shuffle)",
            "  sub-topology 1 (one task per partition group)",
            "    reads  app-one-repartition (Spark's shuffle)",
            "    keeps  one (timestamped-key-value string -> int64)",
            "    writes topics chosen per record",
            "    writes app-two-repartition (internal topic)",
            "  sub-topology 2 (one task per partition group)",
            "    reads  app-two-repartition (internal topic)",
            "    keeps  two (timestamped-key-value string -> int64)",
        ]
    )


def test_a_partitioner_for_chosen_topics_needs_the_partitions_of_any_topic() -> None:
    def to(topic: object, **options: object) -> bool:
        builder = ms.StreamsBuilder()
        builder.stream("in").to(topic, **options)  # type: ignore[arg-type]
        return builder.build().plan("app").places_in_any_topic

    def last(topic: str, key: object, value: object, partitions: int) -> int:
        return partitions - 1

    assert to(lambda key, value, context: key, partitioner=last)
    assert not to(lambda key, value, context: key)
    assert not to("out", partitioner=last)
