"""Counts of the in-flight records that are in a store and not in memory, by offset and by arrival time.

Offsets are stored as runs, with the number of records per offset, because an operator upstream may turn one record into several.

The age of the oldest record is approximate, because the exact age would need another index. Arrival times are counted in at most 64
*spans*. A span begins at the arrival time of a record and includes later times up to the next span. If there are too many spans, the two
with the nearest begins are merged. The oldest record is at most one span younger than the metric.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, Final

from millstream.core.asynchronous.committable_offset import runs_of
from millstream.core.engine.asynchronous.in_flight_record import Origin
from millstream.core.model.ids import TopicPartition


class OffsetRanges:
    """Counts records by offset. Owned by the queue that stores the records.

    Example:
        >>> offsets = OffsetRanges()
        >>> for offset in (4, 5, 6):
        ...     offsets.count(("t", 0, offset), 1)
        >>> offsets.runs()
        [['t', 0, [[4, 3, 1]]]]
    """

    def __init__(self, runs: Iterable[Any] = ()) -> None:
        self._counts = defaultdict[TopicPartition, defaultdict[int, int]](lambda: defaultdict(int))
        for topic, partition, stored in runs:
            offsets = self._counts[TopicPartition(topic, partition)]
            for first, length, times in stored:
                for offset in range(first, first + length):
                    offsets[offset] = times

    def __iter__(self) -> Iterator[tuple[TopicPartition, int, int]]:
        for partition, offsets in self._counts.items():
            for offset, times in offsets.items():
                yield partition, offset, times

    def count(self, origin: Origin, change: int) -> None:
        """Change the count of an offset. A negative ``change`` removes records."""
        topic, partition, offset = origin
        offsets = self._counts[TopicPartition(topic, partition)]
        offsets[offset] += change
        if not offsets[offset]:
            del offsets[offset]

    def runs(self) -> list[Any]:
        """Return the counts as JSON values: per partition, runs of first offset, length and records per offset."""
        return [
            [*partition, [list(run) for run in runs_of(sorted(offsets.items()))]]
            for partition, offsets in self._counts.items()
            if offsets
        ]


_MOST_SPANS: Final = 64


class AgeHistogram:
    """Counts records by time of arrival. Owned by the queue that stores the records.

    Example:
        >>> ages = AgeHistogram()
        >>> for came_ms in (30, 10, 20):
        ...     ages.count(came_ms, 1)
        >>> ages.count(10, -1)
        >>> ages.oldest, ages.spans()
        (20, [[20, 1], [30, 1]])
    """

    def __init__(self, spans: Iterable[Any] = ()) -> None:
        self._begins: list[int] = []
        self._counts: list[int] = []
        for begin, count in spans:
            self._begins.append(begin)
            self._counts.append(count)

    @property
    def oldest(self) -> int | None:
        """Approximate arrival time of the oldest record, ms since the epoch; None if there is none."""
        return self._begins[0] if self._begins else None

    def count(self, came_ms: int, change: int) -> None:
        """Change the count of an arrival time. A negative ``change`` removes records."""
        index = bisect_right(self._begins, came_ms) - 1
        if change > 0 and (index < 0 or self._begins[index] != came_ms):
            self._begins.insert(index + 1, came_ms)
            self._counts.insert(index + 1, change)
            if len(self._begins) > _MOST_SPANS:
                self._join_nearest()
            return
        self._counts[index] += change
        if not self._counts[index]:
            del self._begins[index], self._counts[index]

    def spans(self) -> list[Any]:
        """Return begin and count of each span, as JSON values."""
        return [list(span) for span in zip(self._begins, self._counts)]

    def _join_nearest(self) -> None:
        begins = self._begins
        first = min(range(len(begins) - 1), key=lambda index: begins[index + 1] - begins[index])
        self._counts[first] += self._counts.pop(first + 1)
        del begins[first + 1]
