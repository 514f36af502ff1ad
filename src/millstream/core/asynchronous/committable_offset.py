"""Committable offset: how far a partition has been processed, when records end in another order than they came.

A record is *unfinished* from its arrival at an asynchronous operator until its effects have been applied or it has been dropped. The
committable offset of a partition is its lowest unfinished offset, or the offset after the last record that was taken if none is
unfinished: Millstream never commits an offset beyond an unfinished record.

What is finished beyond the committable offset must not run again after a restart. :class:`Progress` says it in short: the offset
up to which records were taken, and the unfinished ones below it as runs. Everything else below is finished. Offsets that were
never seen (compacted away, or marks of transactions) need no mention: they are never unfinished.

Source: KIP-311, "in-order commit"; KIP-408, the shared counter per partition, which cannot say what lies beyond a gap.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import NamedTuple


class Progress(NamedTuple):
    """How far a partition has been processed.

    Attributes:
        position: The offset after the last record taken.
        unfinished: Runs of unfinished offsets before it, as first offset and length, ascending.
    """

    position: int
    unfinished: tuple[tuple[int, int], ...] = ()


class UnfinishedOffsets:
    """The unfinished offsets of one partition. Owned by a task; not thread-safe.

    One offset may be unfinished several times: one record may become several on its way.
    """

    __slots__ = ("_counts", "_heap")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._heap: list[int] = []

    def begin(self, offset: int, times: int = 1) -> None:
        """Count an offset in, once or several times."""
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
        """Return the committable offset, if every record before ``position`` was taken."""
        lowest = self.lowest()
        return position if lowest is None else min(lowest, position)

    def lowest(self) -> int | None:
        heap = self._heap
        while heap and heap[0] not in self._counts:
            heappop(heap)
        return heap[0] if heap else None

    def progress(self, position: int) -> Progress:
        return Progress(position, tuple(_runs(sorted(self._counts))))


def _runs(offsets: Iterable[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for offset in offsets:
        if runs and sum(runs[-1]) == offset:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((offset, 1))
    return runs
