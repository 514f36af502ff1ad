"""Reorder buffer: restores the order of records whose calls end out of order.

Records of a *group* retire in the order in which they arrived: a finished record stays in the buffer until all earlier records of its
group are finished. At order ``key``, a group is a key; at order ``partition``, a partition. At order ``completion``, there are no
groups, and records retire at once.

Source: KIP-311, "store and commit"; Tomasulo's reorder buffer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable


class ReorderBuffer:
    """The reorder buffer of one operator. Owned by the task."""

    __slots__ = ("_finished", "_group_of", "_groups")

    def __init__(self) -> None:
        self._groups: dict[Hashable, deque[int]] = {}
        self._group_of: dict[int, Hashable] = {}
        self._finished: set[int] = set()

    @property
    def finished(self) -> int:
        """How many finished records wait for earlier records."""
        return len(self._finished)

    def size(self, group: Hashable) -> int:
        waiting = self._groups.get(group)
        return 0 if waiting is None else len(waiting)

    def add(self, number: int, group: Hashable) -> None:
        """Append a record to its group; None for no group."""
        if group is not None:
            waiting = self._groups.get(group)
            if waiting is None:
                waiting = self._groups[group] = deque()
            waiting.append(number)
            self._group_of[number] = group

    def is_alone(self, number: int) -> bool:
        """Return True if all other records of the group have retired."""
        group = self._group_of.get(number)
        return group is None or len(self._groups[group]) == 1

    def remove(self, number: int) -> None:
        group = self._group_of.pop(number, None)
        if group is not None:
            del self._groups[group]

    def finish(self, number: int) -> list[int]:
        """Mark a record as finished. Return the records that retire now, in order."""
        group = self._group_of.get(number)
        if group is None:
            return [number]
        waiting, finished = self._groups[group], self._finished
        if waiting[0] != number:
            finished.add(number)
            return []
        retired = [waiting.popleft()]
        del self._group_of[number]
        while waiting and waiting[0] in finished:
            first = waiting.popleft()
            finished.remove(first)
            del self._group_of[first]
            retired.append(first)
        if not waiting:
            del self._groups[group]
        return retired
