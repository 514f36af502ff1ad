"""Sizes: how large the records of the first micro-batch are, before a task has reported it."""

from __future__ import annotations

from typing import Final

from millstream.core.model.positions import Offsets
from millstream.core.ports import Fetcher, OffsetRange
from millstream.core.runtime.admission import ranges

RECORDS_OF_UNKNOWN_SIZE: Final = 100_000
"""Records of a micro-batch while their size is unknown."""
_TOPICS: Final = 8


class RecordSizes:
    """Estimates the size of records. Owned by the planner."""

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher
        self._sampled: float | None = None
        self._has_sampled = False

    def per_record(self, reported: float | None, positions: Offsets, allowed: Offsets) -> float | None:
        """Return the average size of a record, bytes; None if unknown.

        Before any task has reported, and if more records wait than a micro-batch of unknown size may hold, a few records of
        each of the largest topics are read, once. The topic with the largest records counts.

        Args:
            reported: The average that tasks have reported in this run; None before the first report.
        """
        if reported is not None:
            return reported
        waiting = ranges(positions, allowed)
        if not self._has_sampled and sum(map(_length, waiting)) > RECORDS_OF_UNKNOWN_SIZE:
            self._has_sampled = True
            self._sampled = self._sample(waiting)
        return self._sampled

    def _sample(self, waiting: list[OffsetRange]) -> float | None:
        largest: dict[str, OffsetRange] = {}
        for planned in sorted(waiting, key=_length):
            largest[planned.topic] = planned
        chosen = sorted(largest.values(), key=_length)[-_TOPICS:]
        sampled = [self._fetcher.sample_bytes(planned) for planned in chosen]
        known = [size for size in sampled if size is not None]
        return max(known) if len(known) == len(sampled) else None


def _length(planned: OffsetRange) -> int:
    return planned.end - planned.start
