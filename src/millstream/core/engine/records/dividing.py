"""Dividing: the records of a partition go to the tasks of its key ranges, with the times of the partition.

Stream time is that of the partition, not of the range: what is late, and which windows close, must not depend on how many ranges
there are. So each record brings along the largest timestamp in front of it, and each range, also one without records, hears the
largest of all. A task of a range takes the records of its queues in the order of the running maximum: that gives the same order as
the smallest head of undivided queues, because a record that is older than one in front of it is taken right behind that one.

``millstream.drivers.spark.executor.partitioning`` does the same for Arrow batches.
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.core.engine.records.queue import Chunk, RecordQueue
from millstream.core.model.partitioning import range_of
from millstream.core.model.record import PartitionTimes, Records


def divided(records: Records, ranges: int) -> list[Records]:
    """Split the records of one partition by key range; the order stays.

    Example:
        >>> words = Records([b"to", b"be", b"or"], [b""] * 3, [5, 9, 7], [0, 1, 2])
        >>> [(part.keys, part.times.before, part.times.end) for part in divided(words, 2)]
        [([b'be'], [5], 9), ([b'to', b'or'], [-1, 9], 9)]
    """
    parts = [Records(headers=None if records.headers is None else []) for _ in range(ranges)]
    times = [PartitionTimes() for _ in range(ranges)]
    time = keyed = -1
    for row, (key, timestamp) in enumerate(zip(records.keys, records.timestamps)):
        number = range_of(key, ranges)
        part = parts[number]
        part.keys.append(key)
        part.values.append(records.values[row])
        part.timestamps.append(timestamp)
        part.offsets.append(records.offsets[row])
        if part.headers is not None and records.headers is not None:
            part.headers.append(records.headers[row])
        times[number].before.append(time)
        times[number].keyed_before.append(keyed)
        time = max(time, timestamp)
        keyed = keyed if key is None else max(keyed, timestamp)
    for part, own in zip(parts, times):
        own.end, own.keyed_end = time, keyed
        part.times = own
    return parts


def append(queue: RecordQueue, chunk: Chunk, times: PartitionTimes, position: int) -> None:
    """Append records of a key range to its queue, with the time of the partition behind them.

    Args:
        times: Times of the partition, by row of the chunk's raw records.
        position: The offset after what was read.
    """
    last, keyed_last = queue.last_times()
    chunk.before = _from(times.before, chunk.rows, last)
    chunk.keyed_before = _from(times.keyed_before, chunk.rows, keyed_last)
    chunk.order = list(map(max, chunk.before, chunk.timestamps))
    queue.append(chunk, position)
    end, keyed_end = max(last, times.end), max(keyed_last, times.keyed_end)
    if end >= 0:
        queue.append_time(end, keyed_end)


def _from(times: list[int], rows: Sequence[int] | None, last: int) -> list[int]:
    """Return the times of some rows, but not less than ``last``, the time in front of them in the queue."""
    chosen = times if rows is None else [times[row] for row in rows]
    return chosen if last < 0 else [max(last, time) for time in chosen]
