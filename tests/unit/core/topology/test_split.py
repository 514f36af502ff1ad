"""Splitting a topology into sub-topologies: what connects nodes, and what runs before the shuffle."""

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


def shuffled_topics(plan: Plan) -> dict[str, bool]:
    """Return for each internal topic whether it goes through the shuffle."""
    return {topic.name: topic.through_shuffle for topic in plan.internal_topics.values()}


def test_unconnected_subtopologies_are_numbered_in_the_order_of_their_sources() -> None:
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


def test_processors_that_share_a_store_are_in_one_subtopology() -> None:
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


def test_a_repartition_separates_two_subtopologies() -> None:
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


def test_only_records_of_a_stateless_subtopology_go_through_the_shuffle() -> None:
    builder = ms.StreamsBuilder()
    counts = builder.stream("in").group_by(lambda k, v: v).count(store="one")
    counts.to_stream().group_by(lambda k, v: str(v), value=ms.serdes.int64).count(store="two")
    plan = builder.build().plan("app")
    assert shuffled_topics(plan) == {"app-one-repartition": True, "app-two-repartition": False}
    assert plan.broker_topics == ("in", "app-two-repartition")


def test_a_subtopology_after_the_shuffle_repartitions_through_a_topic() -> None:
    builder = ms.StreamsBuilder()
    builder.stream("in").repartition(name="first").select_key(lambda k, v: v).repartition(name="second").to(
        "out"
    )
    plan = builder.build().plan("app")
    assert shuffled_topics(plan) == {"app-first-repartition": True, "app-second-repartition": False}
    assert [plan.runs_before_shuffle(sub) for sub in plan.subtopologies] == [True, False, True]


def consistent(plan: Plan) -> bool:
    """Return whether only sub-topologies that run before the shuffle write to it."""
    return all(
        plan.runs_before_shuffle(plan.subtopologies[topic.upstream])
        for topic in plan.internal_topics.values()
        if topic.through_shuffle
    )


def test_a_stream_merged_with_its_own_repartition_uses_a_repartition_topic() -> None:
    builder = ms.StreamsBuilder()
    stream = builder.stream("in")
    stream.merge(stream.repartition(name="again")).to("out")
    plan = builder.build().plan("app")
    assert len(plan.subtopologies) == 1
    assert shuffled_topics(plan) == {"app-again-repartition": False}
    assert consistent(plan)


def test_a_subtopology_that_later_reads_from_the_shuffle_does_not_write_to_it() -> None:
    builder = ms.StreamsBuilder()
    stream = builder.stream("in")
    stream.select_key(lambda k, v: v).group_by_key().count(store="counts")  # at first, it reads only `in`
    stream.merge(builder.stream("other").repartition(name="late")).to("out")
    assert consistent(builder.build().plan("app"))


def test_a_processor_makes_a_subtopology_stateful() -> None:
    stateless = ms.Topology().add_source("in", "x").add_sink("out", "y", "in")
    stateful = ms.Topology().add_source("in", "x").add_processor("p", Quiet, "in")
    assert stateless.plan().subtopologies[0].stateless
    assert not stateful.plan().subtopologies[0].stateless


def test_a_node_cannot_have_a_name_that_a_repartition_needs() -> None:
    builder = ms.StreamsBuilder()
    builder.stream("in", name="counts-repartition-source").group_by(lambda k, v: v).count(store="counts")
    with pytest.raises(
        TopologyError,
        match="repartition 'counts-repartition' needs the name 'counts-repartition-source', which another node has",
    ):
        builder.build().plan()


def test_two_repartitions_with_the_same_name_are_refused() -> None:
    topology = ms.Topology().add_source("in", "x")
    for name in ("first", "second"):
        topology.add(Repartition(name, ("in",), "same", ms.serdes.string, ms.serdes.string))
    with pytest.raises(
        TopologyError, match=r"two repartitions have the name 'same'; set another name=\.\.\. on one of them"
    ):
        topology.plan()


def test_a_printed_plan_lists_what_each_subtopology_reads_keeps_and_writes() -> None:
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


def test_a_partitioner_for_topics_chosen_per_record_needs_the_partitions_of_any_topic() -> None:
    def to(topic: object, **options: object) -> bool:
        builder = ms.StreamsBuilder()
        builder.stream("in").to(topic, **options)  # type: ignore[arg-type]
        return builder.build().plan("app").places_in_any_topic

    def last(topic: str, key: object, value: object, partitions: int) -> int:
        return partitions - 1

    assert to(lambda key, value, context: key, partitioner=last)
    assert not to(lambda key, value, context: key)
    assert not to("out", partitioner=last)
