"""Offset ranges: where the in-flight records come from that lie in a store and not in memory, for the committable offset.

They are remembered as runs, with how many records there are of each offset: one record may have become several on its way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from millstream.core.engine.asynchronous.in_flight_record import Origin
from millstream.core.model.ids import TopicPartition


class OffsetRanges:
    """Counts records by offset. Owned by the queue that stores the records.

    Args:
        runs: The last return value of :meth:`runs`.

    Example:
        >>> offsets = OffsetRanges()
        >>> for offset in (4, 5, 6):
        ...     offsets.count(("t", 0, offset), 1)
        >>> offsets.runs()
        [['t', 0, [[4, 3, 1]]]]
    """

    def __init__(self, runs: Iterable[Any] = ()) -> None:
        self.changed = False
        """Whether anything was counted since the last :meth:`runs`."""
        self._counts: dict[TopicPartition, Counter[int]] = {
            TopicPartition(topic, partition): Counter(dict(_offsets(kept))) for topic, partition, kept in runs
        }

    def __iter__(self) -> Iterator[tuple[TopicPartition, int, int]]:
        for partition, offsets in self._counts.items():
            for offset, times in offsets.items():
                yield partition, offset, times

    def count(self, origin: Origin | None, change: int) -> None:
        """Change the count of an offset; None counts a record without origin."""
        self.changed = True
        if origin is not None:
            topic, partition, offset = origin
            offsets = self._counts.setdefault(TopicPartition(topic, partition), Counter())
            offsets[offset] += change
            if not offsets[offset]:
                del offsets[offset]

    def runs(self) -> list[Any]:
        """Return JSON values: per partition, runs of first offset, length and records per offset."""
        self.changed = False
        return [[*partition, _runs(offsets)] for partition, offsets in self._counts.items() if offsets]


def _runs(offsets: Counter[int]) -> list[list[int]]:
    runs = []
    numbered = enumerate(sorted(offsets.items()))
    for (_, times), run in groupby(numbered, key=lambda each: (each[1][0] - each[0], each[1][1])):
        members = [offset for _, (offset, _) in run]
        runs.append([members[0], len(members), times])
    return runs


def _offsets(runs: list[list[int]]) -> Iterator[tuple[int, int]]:
    for first, length, times in runs:
        for offset in range(first, first + length):
            yield offset, times
