"""Co-processed topics are planned together; all others are not."""

from __future__ import annotations

from typing import Any

import millstream as ms
from millstream.core.model.ids import TaskId, TopicPartition
from millstream.core.runtime.inputs import CoProcessed, co_processed
from millstream.core.topology.layout import lay_out
from unit.helpers import forwarding, processor_topology


def groups_of(topology: ms.Topology, **counts: int) -> tuple[CoProcessed, ...]:
    plan = topology.plan("app")
    return co_processed(plan, lay_out(plan, counts))


def partition_names(group: CoProcessed) -> list[str]:
    return [str(p) for p in group.partitions]


def value_text(context: Any, record: Any) -> str:
    return str(record.value)


def test_a_single_topic_is_not_co_processed() -> None:
    assert groups_of(processor_topology(forwarding(value_text)), **{"in": 4}) == ()


def test_topics_that_are_processed_record_by_record_are_not_co_processed() -> None:
    builder = ms.StreamsBuilder()
    builder.stream(["a", "b"]).map_values(str.upper).to("out")
    assert groups_of(builder.build(), a=2, b=2) == ()


def test_a_topic_that_is_re_keyed_by_several_readers_is_one_input() -> None:
    builder = ms.StreamsBuilder()
    builder.stream("a").select_key(lambda k, v: v).group_by_key().count(store="counts")
    assert groups_of(builder.build(), a=4) == ()


def test_topics_that_meet_in_a_processor_are_co_processed() -> None:
    (group,) = groups_of(processor_topology(forwarding(value_text), topics=["a", "b"]), a=2, b=2)
    assert partition_names(group) == ["a-0", "a-1", "b-0", "b-1"]
    assert group.broker_time
    assert [len(inputs) for inputs in group.tasks.values()] == [2, 2]


def test_partitions_without_a_counterpart_are_not_co_processed() -> None:
    (group,) = groups_of(processor_topology(forwarding(value_text), topics=["a", "b"]), a=3, b=1)
    assert (list(group.tasks), partition_names(group)) == ([TaskId(0, 0)], ["a-0", "b-0"])


def test_an_input_through_the_shuffle_is_fed_by_all_re_keyed_partitions() -> None:
    builder = ms.StreamsBuilder()
    table = builder.stream("b").to_table(store="table")
    grouped = builder.stream("a").select_key(lambda k, v: v).repartition(name="again")
    grouped.merge(table.to_stream()).process(forwarding(value_text)).to("out")
    (group,) = groups_of(builder.build(), a=3, b=2)
    assert partition_names(group) == ["a-0", "a-1", "a-2", "b-0", "b-1"]
    (first, *_) = group.tasks.values()
    assert {i.partition: i.shuffled for i in first} == {
        TopicPartition("app-again-repartition", 0): True,
        TopicPartition("b", 0): False,
    }
    assert next(i for i in first if i.shuffled).feeders == tuple(TopicPartition("a", p) for p in range(3))


def test_an_extractor_anywhere_makes_the_time_differ_from_broker_time() -> None:
    def when(record: Any, partition_time: int) -> int:
        return int(record.timestamp)

    (group,) = groups_of(
        processor_topology(forwarding(value_text), topics=["a", "b"], timestamp=when), a=1, b=1
    )
    assert not group.broker_time
    builder = ms.StreamsBuilder()
    again = builder.stream("a", timestamp=when).select_key(lambda k, v: v).repartition(name="again")
    again.merge(builder.stream("b")).process(forwarding(value_text)).to("out")
    (group,) = groups_of(builder.build(), a=1, b=1)
    assert not group.broker_time


def test_parts_that_share_a_topic_are_planned_together() -> None:
    builder = ms.StreamsBuilder()
    shared = builder.stream("a").select_key(lambda k, v: v)
    shared.repartition(name="one").merge(builder.stream("b")).process(forwarding(value_text)).to("out")
    shared.repartition(name="two").merge(builder.stream("c")).process(forwarding(value_text)).to("out")
    (group,) = groups_of(builder.build(), a=1, b=1, c=1)
    assert (partition_names(group), len(group.tasks)) == (["a-0", "b-0", "c-0"], 2)
