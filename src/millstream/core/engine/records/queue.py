"""Record queues, and the choice between them.

A task has one *record queue* per partition of its group, or several for a partition that is read through lanes. A queue is never
re-sorted. The task takes the next record from the queue whose *head* has the smallest timestamp (KIP-28, "Stream Synchronization"). Among
equal timestamps, topic and partition decide, so that a run can be repeated exactly.

*Partition time* is the largest timestamp taken from a queue. *Stream time* is the largest timestamp taken from any queue of the task.
Neither ever decreases. KIP-28 defined them as the smallest buffered timestamp. Since version 2.1, Kafka Streams uses the largest timestamp
taken; KIP-353 and Millstream build on that.

Records are taken in *runs*. The same queue is chosen again until its head passes the heads of the other queues, so a run needs one choice
instead of one per record.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from millstream.core.model.ids import TopicPartition
from millstream.core.model.record import Headers, PartitionTimes, Records, Times, TimeSteps


class PendingSteps:
    """The steps of a partition's time that the task of a key range has not passed yet. Owned by the partition's queue.

    An undivided task advances with every record of the partition. The task of a range has only some of these records. If an operator
    depends on the time between two of them, the task also passes the steps of the other records.
    """

    __slots__ = ("_complete", "_complete_times", "_next", "_steps")

    def __init__(self) -> None:
        self._steps = TimeSteps()
        self._complete: list[int] = []
        """The indices of the steps whose record has a key and a value."""
        self._complete_times: list[int] = []
        self._next = 0

    def append(self, steps: TimeSteps) -> None:
        if self._next == len(self._steps.time):
            self._steps, self._complete, self._complete_times, self._next = TimeSteps(), [], [], 0
        first = len(self._steps.time)
        added = [index for index, complete in enumerate(steps.complete) if complete]
        self._complete += [first + index for index in added]
        self._complete_times += [steps.time[index] for index in added]
        self._steps.extend(steps)

    def pending(self) -> TimeSteps | None:
        left = self._steps.not_earlier_than(Times(), self._next)
        return left if left.time else None

    def first_complete(self, behind: int) -> int | None:
        """Return the time of the first pending step after a time whose record has a key and a value; None if there is none."""
        index = max(bisect_left(self._complete, self._next), bisect_right(self._complete_times, behind))
        return self._complete_times[index] if index < len(self._complete) else None

    def pass_until(self, time: int, *, inclusive: bool) -> Times | None:
        """Pass the steps before a time or, if ``inclusive``, up to it. Return the times of the last one; None if none was passed."""
        steps = self._steps
        find = bisect_right if inclusive else bisect_left
        end = find(steps.time, time, self._next)
        if end == self._next:
            return None
        self._next = end
        return Times(steps.time[end - 1], steps.keyed[end - 1], steps.valued[end - 1])


MERGED: Final = "merged"
"""The lane of a repartition topic on the broker. Its records are merged over the tasks that wrote them (``merging``)."""


@dataclass(slots=True)
class Chunk:
    """Deserialised records of one partition, in the order in which they are taken.

    Attributes:
        raw: The records as read, for snapshots and dead letters.
        rows: Per record, its row in ``raw``; None if no record was dropped.
        timestamps: Milliseconds since the epoch, as extracted.
        headers: None if no record has headers.
        before: For a key range, the largest timestamp in the partition before each record; else None.
        keyed_before: As ``before``, of the records with a key.
        valued_before: As ``before``, of the records with a key and a value.
        order: The order of queues: the timestamps or, for a key range, the running maximum of the partition.
    """

    raw: Records
    rows: list[int] | None
    keys: list[Any]
    values: list[Any]
    timestamps: list[int]
    headers: list[Headers] | None
    before: list[int] | None = None
    keyed_before: list[int] | None = None
    valued_before: list[int] | None = None
    order: list[int] = None  # type: ignore[assignment]  # the timestamps by default

    def __post_init__(self) -> None:
        if self.order is None:
            self.order = self.timestamps

    @property
    def is_time(self) -> bool:
        """True if this is not records, but the time of the partition after the records of a key range."""
        return not self.keys

    def times_before(self, index: int) -> Times:
        """Return the times of the partition before a record of a key range."""
        assert self.before is not None
        assert self.keyed_before is not None
        assert self.valued_before is not None
        return Times(self.before[index], self.keyed_before[index], self.valued_before[index])

    def row(self, index: int) -> int:
        return index if self.rows is None else self.rows[index]

    def weights(self) -> list[int] | None:
        """Return the number of records that each record stands for; None if each stands for itself."""
        weights = self.raw.weights
        return weights if weights is None or self.rows is None else [weights[row] for row in self.rows]

    def represented(self, start: int, end: int) -> int:
        """Return the number of records that some of the records stand for."""
        weights = self.weights()
        return end - start if weights is None else sum(weights[start:end])


class QueueId(NamedTuple):
    """The identity of a queue: a partition and, for a shuffled partition, a *lane*.

    Records arrive through Spark's shuffle from several places, each in the order of its own time. The task has a queue for each place, and
    merges them by time. Records from a repartition topic have already been merged and are one lane.
    """

    partition: TopicPartition
    lane: str = ""

    @property
    def is_read_from_broker(self) -> bool:
        """True if the offsets are offsets of a partition on the broker."""
        return self.lane in ("", MERGED)


class Buffered(NamedTuple):
    """The size of a queue's unprocessed records.

    Attributes:
        size: Bytes of keys and values.
        newest_ms: The largest timestamp, ms since the epoch.
    """

    records: int
    size: int
    newest_ms: int


class RecordQueue:
    """The unprocessed records of one partition or lane. Owned by a task."""

    __slots__ = ("chunks", "id", "index", "partition", "partition_time", "position", "steps")

    def __init__(self, queue_id: QueueId, partition_time: int = -1) -> None:
        self.id = queue_id
        self.partition = queue_id.partition
        self.partition_time = partition_time
        self.chunks: deque[Chunk] = deque()
        self.index = 0
        self.steps = PendingSteps()
        self.position: int | None = None
        """The offset after the last record that was fed."""

    def append(self, chunk: Chunk, position: int) -> None:
        if chunk.keys:
            self.chunks.append(chunk)
        self.position = position

    def append_time(self, times: Times) -> None:
        """Append the time of the partition after the records of a key range. It replaces an earlier time at the end of the queue."""
        if self.chunks and self.chunks[-1].is_time:
            self.chunks.pop()
        order, keyed, valued = ([time] for time in times)
        self.chunks.append(Chunk(Records(), [], [], [], [], None, order, keyed, valued, order))

    @property
    def at_time(self) -> bool:
        """True if the queue begins with the time of the partition. The queue must not be empty."""
        return self.chunks[0].is_time

    def last_times(self) -> Times:
        """Return the times of the partition at the end of a key range's queue. The queue must end with a time or be empty."""
        return self.chunks[-1].times_before(-1) if self.chunks else Times()

    def head_time(self) -> int:
        """Return the time by which the queue is ordered among the others. The queue must not be empty."""
        return self.chunks[0].order[self.index]

    def run_until(self, limit: int | None, *, inclusive: bool) -> int:
        """Return the end, in the first chunk, of the run before another queue's head with the time ``limit``."""
        order = self.chunks[0].order
        if limit is None:
            return len(order)
        for i in range(self.index, len(order)):
            if order[i] > limit or (order[i] == limit and not inclusive):
                return i
        return len(order)

    def remove_before(self, end: int) -> None:
        """Remove the records before ``end`` from the first chunk."""
        chunk = self.chunks[0]
        if end > self.index:
            self.partition_time = max(self.partition_time, max(chunk.order[self.index : end]))
        self.index = end
        if end == len(chunk.order):
            self.chunks.popleft()
            self.index = 0

    def committable(self) -> int | None:
        """Return the offset before which all records have been processed; None if unknown, or for a lane of a shuffle."""
        if not self.id.is_read_from_broker:
            return None
        return self.position if (head := self.head_offset()) is None else head

    def head_offset(self) -> int | None:
        chunk = next((chunk for chunk in self.chunks if chunk.keys), None)
        if chunk is None:
            return None
        if self.id.lane == MERGED:  # merged records are not in offset order
            return min(self.buffered().offsets)
        return chunk.raw.offsets[chunk.row(self.index if chunk is self.chunks[0] else 0)]

    def buffered_size(self) -> Buffered:
        count, size, newest = 0, 0, -1
        for chunk, left in self._unprocessed():
            count += len(left)
            rows = list(map(chunk.row, left))
            for column in (chunk.raw.keys, chunk.raw.values):
                size += sum(len(column[row] or b"") for row in rows)
            newest = max([newest, *chunk.timestamps[left.start :]])
        return Buffered(count, size, newest)

    def _unprocessed(self) -> Iterator[tuple[Chunk, range]]:
        """Yield the chunks with the indices of their unprocessed records."""
        for number, chunk in enumerate(self.chunks):
            yield chunk, range(0 if number else self.index, len(chunk.keys))

    def newest_timestamp(self) -> int:
        """Return the partition time after all records of the queue have been taken."""
        return max([self.partition_time, *(max(chunk.order) for chunk in self.chunks)])

    def buffered(self) -> Records:
        """Return the unprocessed records as they were fed, without records that were dropped at deserialisation."""
        records = Records()
        for chunk, left in self._unprocessed():
            records.extend(chunk.raw.take(list(map(chunk.row, left))))
        records.times = self._buffered_times()
        return records

    def _buffered_times(self) -> PartitionTimes | None:
        """Return the times of the partition for the unprocessed records of a key range; None for a whole partition."""
        if not self.chunks or self.chunks[0].before is None:
            return None
        times = PartitionTimes(end=self.last_times(), steps=self.steps.pending())
        for chunk, left in self._unprocessed():
            for index in left:
                times.add(chunk.times_before(index))
        return times


class PartitionGroup:
    """The queues of a task, and the choice between them (Kafka Streams: ``PartitionGroup``). Owned by a task."""

    def __init__(self, queues: dict[QueueId, RecordQueue]) -> None:
        self.queues = queues

    def queue(self, queue_id: QueueId) -> RecordQueue:
        queue = self.queues.get(queue_id)
        if queue is None:
            queue = self.queues[queue_id] = RecordQueue(queue_id)
        return queue

    def choose(self, bounds: Sequence[tuple[int, QueueId]] = ()) -> tuple[RecordQueue, int] | None:
        """Choose the queue to take from, and the end of the run in its first chunk.

        Args:
            bounds: Virtual heads, as time and queue. No record after a virtual head is taken.
        """
        heads = sorted((q.head_time(), q.id) for q in self.queues.values() if q.chunks)
        if not heads or (bounds and min(bounds) < heads[0]):
            return None
        queue = self.queues[heads[0][1]]
        others = [*heads[1:2], *bounds]
        if not others:
            return queue, queue.run_until(None, inclusive=True)
        limit, other = min(others)
        return queue, queue.run_until(limit, inclusive=queue.id < other)

    def buffered_count(self) -> int:
        return sum(len(c.keys) for q in self.queues.values() for c in q.chunks) - sum(
            q.index for q in self.queues.values() if q.chunks
        )
