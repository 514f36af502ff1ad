"""Rules of docs/concepts/semantics.md that no recording of Kafka Streams shows, one test each."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

import penstock as ps
from penstock.core.engine.outcome import Outcome, Snapshot
from penstock.core.engine.task import Task
from penstock.core.model.record import Records
from penstock.core.plan.layout import default_grouper, lay_out


class Spell(ps.Processor):
    """Forwards each record with what the context says of it."""

    def process(self, record: ps.Record) -> None:
        context = self.context
        self.context.forward(record.with_value(f"{record.value} at {context.stream_time_ms}"))


def reading(*topics: str, timestamp: Any = None) -> ps.Topology:
    builder = ps.StreamsBuilder()
    builder.stream(list(topics), timestamp=timestamp).process(Spell).to("out")
    return builder.build()


def task_of(topology: ps.Topology, number: int = 0, snapshot: Snapshot | None = None) -> Task:
    task = Task(
        topology.plan("app").subtopologies[number],
        ps.TaskId(number, 0),
        application_id="app",
        stores={},
        partitions=defaultdict(lambda: 1),
        snapshot=snapshot,
    )
    task.init(now_ms=0)
    return task


def feed(task: Task, topic: str, *timestamps: int, lane: str = "", value: str = "") -> None:
    """Feed records whose values are their topic (or another name) and their timestamp."""
    rows = [(None, f"{value or topic}{timestamp}".encode(), timestamp) for timestamp in timestamps]
    keys, values, times = map(list, zip(*rows))
    task.feed(
        ps.TopicPartition(topic, 0), Records(keys, values, times, [*range(len(rows))]), len(rows), lane=lane
    )


def sent(outcome: Outcome) -> list[str]:
    return [value.decode() for _, records in outcome.sends for value in records.values if value is not None]


def test_the_smallest_head_is_taken_first() -> None:
    task = task_of(reading("a", "b"))
    feed(task, "b", 1, 3, 7)  # b: [1, 3, 7]
    feed(task, "a", 3, 5)  #    a: [3, 5]
    assert sent(task.step(0)) == ["b1 at 1", "a3 at 3", "b3 at 3", "a5 at 5", "b7 at 7"]


def test_a_late_record_keeps_its_place() -> None:
    task = task_of(reading("a"))
    feed(task, "a", 5, 2, 6)
    assert sent(task.step(0)) == ["a5 at 5", "a2 at 5", "a6 at 6"]


def test_lanes_of_a_shuffle_are_merged_by_time() -> None:
    task = task_of(reading("a"))
    feed(task, "a", 2, 4, lane="lines-1", value="one:")
    feed(task, "a", 1, 3, lane="lines-0", value="zero:")
    assert [text.split(" ")[0] for text in sent(task.step(0))] == ["zero:1", "one:2", "zero:3", "one:4"]


def partition_time(_record: ps.ConsumerRecord, before: int) -> int:
    """Give a record the timestamp 10 more than the partition time, so that a restart of it would show."""
    return before + 10


def test_partition_time_begins_anew_in_a_task_without_a_snapshot() -> None:
    topology = reading("a", timestamp=partition_time)
    first = task_of(topology)
    feed(first, "a", 0, 0)
    assert sent(first.step(0)) == ["a0 at 9", "a0 at 19"]
    kept, anew = task_of(topology, snapshot=first.snapshot()), task_of(topology)
    for task in (kept, anew):
        feed(task, "a", 0)
    assert sent(kept.step(0)) == ["a0 at 29"]
    assert sent(anew.step(0)) == ["a0 at 9"]


def test_negative_timestamps() -> None:
    with ps.testing.TopologyTestDriver(reading("a", timestamp=lambda record, _: int(record.value))) as driver:
        driver.pipe("a", "k", "-1", 5)
        driver.pipe("a", "k", "7", 5)
        assert [record.value for record in driver.read("out")] == ["7 at 7"]
        assert driver.metrics() == {"processed_records": 1, "dropped_records": 1}
    driver = ps.testing.TopologyTestDriver(reading("a"))
    with pytest.raises(ps.errors.DeserializationError, match="has no timestamp"):
        driver.pipe("a", "k", "v", -1)


class WallClock(ps.Processor):
    def init(self, context: ps.ProcessorContext) -> None:
        super().init(context)
        context.schedule(100, ps.wall_clock, self.tick)

    def process(self, record: ps.Record) -> None:
        self.context.forward(record)

    def tick(self, now_ms: int) -> None:
        assert self.context.record_metadata is None
        self.context.forward(ps.Record(None, f"tick {now_ms}", 0))


def with_wall_clock() -> Task:
    builder = ps.StreamsBuilder()
    builder.stream("a").process(WallClock).to("out")
    return task_of(builder.build())


def test_the_wall_clock_is_checked_behind_the_records() -> None:
    task = with_wall_clock()
    feed(task, "a", 1, 2)
    outcome = task.step(250)
    assert sent(outcome) == ["a1", "a2", "tick 250"]
    assert outcome.wake_at_ms == 300


def test_a_punctuator_has_no_metadata() -> None:
    assert sent(with_wall_clock().step(100)) == ["tick 100"]


def test_forwarding_is_depth_first() -> None:
    seen: list[str] = []

    class Twice(ps.Processor):
        def process(self, record: ps.Record) -> None:
            for number in (1, 2):
                seen.append(f"forward {number}")
                self.context.forward(record.with_value(number))

    builder = ps.StreamsBuilder()
    stream = builder.stream("a").process(Twice)
    first = stream.peek(lambda _, number: seen.append(f"first {number}"))
    first.foreach(lambda _, number: seen.append(f"below first {number}"))
    stream.foreach(lambda _, number: seen.append(f"second {number}"))
    with ps.testing.TopologyTestDriver(builder.build()) as driver:
        driver.pipe("a", "k", "v")
    assert seen == [
        "forward 1", "first 1", "below first 1", "second 1",
        "forward 2", "first 2", "below first 2", "second 2",
    ]  # fmt: skip


def test_partitions_are_grouped_by_their_number() -> None:
    groups = default_grouper({"a": 2, "b": 3})
    assert [sorted(map(str, group)) for group in groups] == [["a-0", "b-0"], ["a-1", "b-1"], ["b-2"]]


def test_co_partitioning_is_checked() -> None:
    builder = ps.StreamsBuilder()
    builder.stream("a").merge(builder.stream("b")).group_by_key().count(store="counts")
    plan = builder.build().plan("app")
    assert len(lay_out(plan, {"a": 2, "b": 2}).tasks) == 2
    with pytest.raises(ps.errors.CoPartitioningError, match="'a' has 2, 'b' has 3"):
        lay_out(plan, {"a": 2, "b": 3})


def test_committable_is_what_has_been_processed() -> None:
    task = task_of(reading("a"))
    feed(task, "a", 1, 2, 3)
    assert task.step(0, budget=2).committable == {("a", 0): 2}
    assert task.step(0).committable == {("a", 0): 3}
