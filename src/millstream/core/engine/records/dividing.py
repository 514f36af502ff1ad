"""Dividing: distributes the records of a partition to the tasks of its key ranges, with the times of the partition.

Stream time is the time of the whole partition, because late records and closed windows must not depend on the number of ranges. Each
record therefore carries the largest timestamp before it in the partition, and each range receives the largest timestamp of all, even if it
has no records. If an operator depends on the times between two records of a range, each range also receives all *steps* of the
partition's time.

The task of a range takes the records of its queues in the order of the running maximum. This is the order of an undivided task, which
takes the smallest head: a record that is older than one before it is taken directly after that record.

``millstream.drivers.spark.wire`` does the same for Arrow batches.
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.core.engine.records.queue import Chunk, RecordQueue
from millstream.core.model.partitioning import range_of
from millstream.core.model.record import PartitionTimes, Records, Times, TimeSteps


def divided_by_key_range(records: Records, ranges: int, *, with_steps: bool = False) -> list[Records]:
    """Split the records of one partition by key range, in order.

    Args:
        with_steps: True if each range receives the steps of the partition's time.

    Example:
        >>> words = Records([b"to", b"be", b"or"], [b""] * 3, [5, 9, 7], [0, 1, 2])
        >>> [(part.keys, part.times.before, part.times.end.all) for part in divided_by_key_range(words, 2)]
        [([b'be'], [5], 9), ([b'to', b'or'], [-1, 9], 9)]
    """
    parts = [Records(headers=None if records.headers is None else []) for _ in range(ranges)]
    times = [PartitionTimes() for _ in range(ranges)]
    now, steps = Times(), TimeSteps()
    for row, (key, timestamp) in enumerate(zip(records.keys, records.timestamps)):
        number = range_of(key, ranges)
        part = parts[number]
        part.keys.append(key)
        part.values.append(records.values[row])
        part.timestamps.append(timestamp)
        part.offsets.append(records.offsets[row])
        if part.headers is not None and records.headers is not None:
            part.headers.append(records.headers[row])
        times[number].add(now)
        complete = key is not None and records.values[row] is not None
        now = Times(
            max(now.all, timestamp),
            now.keyed if key is None else max(now.keyed, timestamp),
            max(now.valued, timestamp) if complete else now.valued,
        )
        steps.add(now, complete=complete)
    for part, own in zip(parts, times):
        own.end, own.steps = now, steps if with_steps else None
        part.times = own
    return parts


def append(queue: RecordQueue, chunk: Chunk, times: PartitionTimes, position: int) -> None:
    """Append records of a key range to its queue, followed by the time of the partition.

    Args:
        times: Times of the partition, by row of the chunk's raw records.
    """
    last = queue.last_times()
    chunk.before = _times_of_rows(times.before, chunk.rows, last.all)
    chunk.keyed_before = _times_of_rows(times.keyed_before, chunk.rows, last.keyed)
    chunk.valued_before = _times_of_rows(times.valued_before, chunk.rows, last.valued)
    chunk.order = list(map(max, chunk.before, chunk.timestamps))
    if times.steps is not None:
        queue.steps.append(times.steps.not_earlier_than(last))
    queue.append(chunk, position)
    end = Times(*map(max, last, times.end))
    if end.all >= 0:
        queue.append_time(end)


def _times_of_rows(times: list[int], rows: Sequence[int] | None, last: int) -> list[int]:
    """Return the times of some rows, at least ``last``, the previous time in the queue."""
    chosen = times if rows is None else map(times.__getitem__, rows)
    return [max(last, time) for time in chosen]
