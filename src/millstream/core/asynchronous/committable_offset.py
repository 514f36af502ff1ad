"""Committable offset: how far a partition has been processed when records finish out of order.

A record is *unfinished* from its arrival at an asynchronous operator until its effects have been applied or it has been dropped. The
committable offset of a partition is its lowest unfinished offset. If no record is unfinished, it is the offset after the last record
taken. Millstream never commits an offset beyond an unfinished record.

A record that has finished beyond the committable offset must not run again after a restart. :class:`Progress` describes this compactly:
the position, and the unfinished offsets before it as runs. All other offsets before the position are finished. Offsets without a record
(compacted away, or transaction markers) need no entry, because they are never unfinished.

Source: KIP-311, "in-order commit". KIP-408 proposes one shared counter per partition, which cannot represent the state beyond a gap.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from typing import NamedTuple


class Progress(NamedTuple):
    """How far a partition has been processed.

    Attributes:
        position: The offset after the last record taken.
        unfinished: Runs of unfinished offsets before the position, as first offset and length, ascending.
    """

    position: int
    unfinished: tuple[tuple[int, int], ...] = ()


class UnfinishedOffsets:
    """The unfinished offsets of one partition. Owned by a task; not thread-safe.

    An offset may be unfinished several times, because an operator upstream may turn one record into several.
    """

    __slots__ = ("_counts", "_heap")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._heap: list[int] = []

    def begin(self, offset: int, times: int = 1) -> None:
        count = self._counts.get(offset, 0)
        if not count:
            heappush(self._heap, offset)
        self._counts[offset] = count + times

    def begin_all(self, offsets: Iterable[int]) -> None:
        counts = self._counts
        for offset in offsets:
            counts[offset] = counts.get(offset, 0) + 1
        self._heap = sorted(counts)

    def end(self, offset: int) -> None:
        count = self._counts[offset]
        if count > 1:
            self._counts[offset] = count - 1
        else:
            del self._counts[offset]

    def committable(self, position: int) -> int:
        """Return the committable offset, given that every record before ``position`` has been taken."""
        lowest = self.lowest()
        return position if lowest is None else min(lowest, position)

    def lowest(self) -> int | None:
        heap = self._heap
        while heap and heap[0] not in self._counts:
            heappop(heap)
        return heap[0] if heap else None

    def progress(self, position: int) -> Progress:
        runs = runs_of((offset, 1) for offset in sorted(self._counts))
        return Progress(position, tuple((first, length) for first, length, _ in runs))


def runs_of(counts: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """Return runs of consecutive offsets with equal counts, as first offset, length and count.

    Args:
        counts: Offsets and their counts, ascending.
    """
    first = length = times = 0
    for offset, count in counts:
        if offset == first + length and count == times:
            length += 1
            continue
        if length:
            yield first, length, times
        first, length, times = offset, 1, count
    if length:
        yield first, length, times
