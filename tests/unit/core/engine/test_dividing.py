"""Key ranges: how partitions are divided, and that each range keeps the time and order of its partition."""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from millstream.core.engine.records.dividing import append, divided_by_key_range
from millstream.core.engine.records.queue import Chunk, PartitionGroup, PendingSteps, QueueId, RecordQueue
from millstream.core.engine.step_outcome import Snapshot
from millstream.core.engine.task import Task
from millstream.core.model.ids import TaskId, TopicPartition
from millstream.core.model.partitioning import KeyRange, range_of
from millstream.core.model.record import PartitionTimes, Records, Times, TimeSteps
from millstream.core.state.memory import MemoryStores
from millstream.core.topology.analysis.ranges import in_ranges
from millstream.drivers.spark import wire
from millstream.drivers.spark.wire import split_by_range

KEYS = st.none() | st.binary(max_size=6)
ROWS = st.lists(st.tuples(KEYS, st.integers(0, 50)), max_size=30)
BOOLS = st.lists(st.booleans(), min_size=30, max_size=30)


def records_of(rows: list[tuple[bytes | None, int]], first: int = 0) -> Records:
    keys, times = [key for key, _ in rows], [time for _, time in rows]
    return Records(keys, [b"v"] * len(rows), times, list(range(first, first + len(rows))))


@given(st.binary(max_size=20), st.sampled_from([1, 2, 3, 16, 64]))
def test_each_key_is_in_one_range_and_the_ranges_cover_all_hashes(key: bytes, ranges: int) -> None:
    assert [each for each in range(ranges) if KeyRange(each, ranges).holds(key)] == [range_of(key, ranges)]
    bounds = [KeyRange(each, ranges).bounds for each in range(ranges)]
    assert bounds[0][0] == 0
    assert bounds[-1][1] == 1 << 32
    assert all(before[1] == after[0] for before, after in itertools.pairwise(bounds))


@given(ROWS.filter(bool), BOOLS, st.sampled_from([2, 16]), st.booleans())
def test_an_arrow_batch_is_divided_like_records(
    rows: list[tuple[bytes | None, int]], valued: list[bool], ranges: int, with_steps: bool
) -> None:
    records = records_of(rows)
    records.values = [value if kept else None for value, kept in zip(records.values, valued)]
    expected = divided_by_key_range(records, ranges, with_steps=with_steps)
    parts = split_by_range(wire.to_arrow(records), ranges, with_steps=with_steps)
    assert [wire.decode(wire.encode_batch(part)) for part in parts] == expected


@given(ROWS.filter(bool), BOOLS, st.booleans())
def test_partition_times_survive_serialization(
    rows: list[tuple[bytes | None, int]], valued: list[bool], with_steps: bool
) -> None:
    records = records_of(rows)
    records.values = [value if kept else None for value, kept in zip(records.values, valued)]
    for part in divided_by_key_range(records, 2, with_steps=with_steps):
        assert wire.decode(wire.encode(part)) == part


def test_times_without_timestamps_of_values_can_still_be_read() -> None:
    """Snapshots of releases without timestamps of values have records with the timestamps of keys."""
    batch = wire.to_arrow(Records([b"to"], [b""], [5], [0])).append_column("before", pa.array([7]))
    times = wire.decode(wire.encode_batch(batch.replace_schema_metadata({b"times": b"9 8"}))).times
    assert times == PartitionTimes([7], [7], [7], Times(9, 8, 8))


def test_each_step_of_time_is_passed_once() -> None:
    (part,) = divided_by_key_range(
        Records([b"a", None, b"b"], [b"", b"", None], [5, 9, 12], [0, 1, 2]), 1, with_steps=True
    )
    assert part.times is not None
    assert part.times.steps == TimeSteps([5, 9, 12], [5, 5, 12], [5, 5, 5], [True, False, False])
    steps = PendingSteps()
    steps.append(part.times.steps)
    assert (steps.first_complete(4), steps.first_complete(5)) == (5, None)
    assert steps.pass_until(9, inclusive=False) == Times(5, 5, 5)
    assert steps.first_complete(-1) is None
    assert steps.pass_until(9, inclusive=False) is None
    steps.append(TimeSteps([12], [12], [12], [True]))
    assert steps.first_complete(9) == 12
    assert steps.pending() == TimeSteps([9, 12, 12], [5, 12, 12], [5, 5, 12], [False, False, True])
    assert steps.pass_until(12, inclusive=True) == Times(12, 12, 12)
    assert steps.pending() is None


class Order:
    """The order in which a task takes the records of its queues, and the largest timestamp at each of them."""

    def __init__(self) -> None:
        self.queues: dict[QueueId, RecordQueue] = {}
        self.taken: list[tuple[str, int, int]] = []
        self.time = -1

    def feed(self, topic: str, records: Records) -> None:
        queue = self.queues.setdefault(
            QueueId(partition := TopicPartition(topic, 0)), RecordQueue(QueueId(partition))
        )
        chunk = Chunk(records, None, list(records.keys), list(records.values), records.timestamps, None)
        if records.times is None:
            queue.append(chunk, 0)
        else:
            append(queue, chunk, records.times, 0)

    def take(self) -> None:
        group = PartitionGroup(self.queues)
        while (chosen := group.choose()) is not None:
            queue, end = chosen
            chunk = queue.chunks[0]
            for row in range(queue.index, end):
                if not chunk.is_time:
                    self.time = max(self.time, chunk.timestamps[row], *(chunk.before or [-1])[row : row + 1])
                    self.taken.append((queue.partition.topic, chunk.raw.offsets[row], self.time))
            self.time = max(self.time, *chunk.order[queue.index : end], -1)
            queue.remove_before(end)


@given(
    st.lists(st.lists(st.tuples(st.sampled_from("ab"), ROWS), max_size=4), max_size=4),
    st.sampled_from([2, 16]),
)
def test_a_range_takes_its_records_in_the_order_and_at_the_times_of_the_undivided_task(
    batches: list[list[tuple[str, list[Any]]]], ranges: int
) -> None:
    whole, parts = Order(), [Order() for _ in range(ranges)]
    keys: dict[tuple[str, int], bytes | None] = {}
    offsets = {"a": 0, "b": 0}
    for batch in batches:
        for topic, rows in batch:
            records = records_of(rows, offsets[topic])
            keys |= {(topic, offset): key for key, offset in zip(records.keys, records.offsets)}
            offsets[topic] += len(rows)
            whole.feed(topic, records)
            for part, own in zip(parts, divided_by_key_range(records, ranges)):
                part.feed(topic, own)
        for each in (whole, *parts):
            each.take()
        assert {part.time for part in parts} == {whole.time}
    for number, part in enumerate(parts):
        assert part.taken == [
            record for record in whole.taken if range_of(keys[record[:2]], ranges) == number
        ]


def times_in_queue(feeds: list[Records], kept: set[int]) -> list[tuple[int, Times, int]]:
    """Return offset, partition times and order of the kept records of one range in a queue."""
    queue = RecordQueue(QueueId(TopicPartition("in", 0)))
    for records in feeds:
        rows = [row for row, offset in enumerate(records.offsets) if offset in kept]
        keys, values, times = (
            list(map(column.__getitem__, rows))
            for column in (records.keys, records.values, records.timestamps)
        )
        assert records.times is not None
        append(queue, Chunk(records, rows, keys, values, times, None), records.times, 0)
    return [
        (chunk.raw.offsets[chunk.row(index)], chunk.times_before(index), chunk.order[index])
        for chunk in queue.chunks
        for index in range(len(chunk.keys))
    ]


@given(ROWS, BOOLS, st.integers(0, 30), st.sets(st.integers(0, 29)))
def test_times_in_a_queue_do_not_depend_on_the_boundary_between_two_micro_batches(
    rows: list[tuple[bytes | None, int]], valued: list[bool], cut: int, kept: set[int]
) -> None:
    records = records_of(rows)
    records.values = [value if given else None for value, given in zip(records.values, valued)]
    whole = divided_by_key_range(records, 2)
    first, second = records.take(range(len(rows))[:cut]), records.take(range(len(rows))[cut:])
    for number, parts in enumerate(zip(*(divided_by_key_range(part, 2) for part in (first, second)))):
        assert times_in_queue(list(parts), kept) == times_in_queue([whole[number]], kept)


@pytest.mark.parametrize("changelog", ["kafka", "spark"])
def test_a_rebuilt_range_with_changelog_topics_skips_records_that_it_already_processed(
    changelog: str,
) -> None:
    builder = ms.StreamsBuilder()
    builder.stream("in").group_by_key().count(
        store=ms.stores.options("c", changelog=changelog)
    ).to_stream().to("out", value=ms.serdes.int64)
    [undivided] = builder.build().plan("app").subtopologies
    sub, source, stores = in_ranges(undivided, 2), TopicPartition("in", 0), MemoryStores()
    records = records_of([(b"a", 1), (b"b", 2), (b"c", 3), (b"d", 4)])
    mine = divided_by_key_range(records, 2)[0]

    def sent(snapshot: Snapshot | None, *parts: tuple[Records, int]) -> tuple[list[bytes | None], Snapshot]:
        task = Task(sub, TaskId(0, 0), application_id="app", stores=stores, snapshot=snapshot)
        task.init(5)
        for part, position in parts:
            task.feed(source, part, position)
        outcome = task.step(5)
        stores.apply(outcome.changes)
        keys = [key for _, results in outcome.sends for key in results.keys]
        return keys, task.snapshot()

    first, snapshot = sent(None, (mine, 4))
    assert first == mine.keys
    again = divided_by_key_range(records_of([(b"a", 5)], first=4), 2)[0]
    repeated, _ = sent(snapshot.without_committed(), (mine, 4), (again, 5))
    assert repeated == ([] if changelog == "kafka" else mine.keys) + again.keys
