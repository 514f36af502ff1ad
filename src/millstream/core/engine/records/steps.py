"""Pending steps: the steps of a partition's time that a task of a key range has not passed yet.

An undivided task moves on with every record of the partition. The task of a range has few of these records; where an operator
depends on what time was between two of them, the task passes the steps that the others made.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from millstream.core.model.record import Times, TimeSteps


class PendingSteps:
    """The steps of one record queue. Owned by the queue."""

    __slots__ = ("_complete", "_complete_times", "_next", "_steps")

    def __init__(self) -> None:
        self._steps = TimeSteps()
        self._complete: list[int] = []
        """The indices of the steps with complete records."""
        self._complete_times: list[int] = []
        self._next = 0

    def append(self, steps: TimeSteps) -> None:
        """Add steps behind those already here."""
        if self._next == len(self._steps.time):
            self._steps, self._complete, self._complete_times, self._next = TimeSteps(), [], [], 0
        first = len(self._steps.time)
        added = [index for index, complete in enumerate(steps.complete) if complete]
        self._complete += [first + index for index in added]
        self._complete_times += [steps.time[index] for index in added]
        self._steps.extend(steps)

    def pending(self) -> TimeSteps | None:
        """Return the steps that are left, None if there are none."""
        left = self._steps.behind(Times(), self._next)
        return left if left.time else None

    def first_complete(self, behind: int) -> int | None:
        """Return the first step left that is later than a time and has a complete record."""
        index = max(bisect_left(self._complete, self._next), bisect_right(self._complete_times, behind))
        return self._complete_times[index] if index < len(self._complete) else None

    def pass_until(self, time: int, *, inclusive: bool) -> Times | None:
        """Pass the steps before a time, or up to it; return the times at the last one, None if there was none to pass."""
        steps = self._steps
        find = bisect_right if inclusive else bisect_left
        end = find(steps.time, time, self._next)
        if end == self._next:
            return None
        self._next = end
        return Times(steps.time[end - 1], steps.keyed[end - 1], steps.valued[end - 1])
