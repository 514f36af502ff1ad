"""The ends of an application's topics as the brokers last stated them, and the lag that follows from them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from millstream.core.model.positions import Offsets


class TopicEnds:
    """The ends that were read when the last micro-batch was planned. While no broker answers, those before remain.

    Attributes:
        known: The offset after the last record, by topic and partition.
    """

    def __init__(self) -> None:
        self.known: Offsets = {}
        self._known_at = time.monotonic()
        self._is_answered = True

    def note(self, ends: Offsets | None) -> None:
        """Keep the ends; None if no broker answers."""
        self._is_answered = ends is not None
        if ends is not None:
            self.known, self._known_at = ends, time.monotonic()

    def unknown_s(self) -> float:
        """Return for how many seconds no broker has stated the ends; 0 if one did at the last request, however long ago that is."""
        return 0.0 if self._is_answered else time.monotonic() - self._known_at

    def lag(self, positions: Offsets, stream_of: Callable[[str], str]) -> dict[str, int]:
        """Return the number of records that are not processed yet, by stream."""
        lag: Counter[str] = Counter()
        for topic, partitions in self.known.items():
            read = positions.get(topic, {})
            lag[stream_of(topic)] += sum(max(end - read.get(p, 0), 0) for p, end in partitions.items())
        return dict(lag)
