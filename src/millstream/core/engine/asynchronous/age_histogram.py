"""Age histogram: about how long the oldest of the records waits that lie in a store and not in memory.

To know it exactly would take an index of its own in the store, for a figure that people look at. So times are counted in at most
64 *spans*: each begins at the time of a record and takes in the later ones up to the next span. When there would be more, the
two that are nearest to each other become one. A span whose records have all gone is forgotten. So the oldest record is at most one
span younger than what is said here, and as long as there are few times, nothing is rounded.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Any, Final

_MOST: Final = 64


class AgeHistogram:
    """Counts records by time of arrival. Owned by the queue that stores the records.

    Args:
        spans: The last return value of :meth:`spans`.

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
        """When the oldest record arrived, about, ms since the epoch; None if there is none."""
        return self._begins[0] if self._begins else None

    def count(self, came_ms: int, change: int) -> None:
        """Change the count of an arrival time; negative counts out."""
        index = bisect_right(self._begins, came_ms) - 1
        if change > 0 and (index < 0 or self._begins[index] != came_ms):
            self._begins.insert(index + 1, came_ms)
            self._counts.insert(index + 1, change)
            if len(self._begins) > _MOST:
                self._join_nearest()
            return
        self._counts[index] += change
        if not self._counts[index]:
            del self._begins[index], self._counts[index]

    def spans(self) -> list[Any]:
        """Return start and count of each span, as JSON values."""
        return [list(span) for span in zip(self._begins, self._counts)]

    def _join_nearest(self) -> None:
        begins = self._begins
        first = min(range(len(begins) - 1), key=lambda index: begins[index + 1] - begins[index])
        self._counts[first] += self._counts.pop(first + 1)
        del begins[first + 1]
