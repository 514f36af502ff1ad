"""Reorder buffer: in which order the effects of records are applied, however their calls end.

Records of one *group* retire in the order in which they came: a record that is finished early stays until all in front of it are
finished. At order ``key`` a group is a key, at order ``partition`` a partition; at order ``completion`` there are no groups, and records
retire at once. (KIP-311's "store and commit"; Tomasulo's reorder buffer.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable


class ReorderBuffer:
    """The order in which effects are applied for one operator. Owned by the task."""

    __slots__ = ("_finished", "_group_of", "_groups")

    def __init__(self) -> None:
        self._groups: dict[Hashable, deque[int]] = {}
        self._group_of: dict[int, Hashable] = {}
        self._finished: set[int] = set()

    @property
    def finished(self) -> int:
        """How many finished records wait for earlier ones."""
        return len(self._finished)

    def size(self, group: Hashable) -> int:
        """Return the number of unretired records of a group."""
        waiting = self._groups.get(group)
        return 0 if waiting is None else len(waiting)

    def add(self, number: int, group: Hashable) -> None:
        """Add a record behind those of its group; None is no group."""
        if group is not None:
            waiting = self._groups.get(group)
            if waiting is None:
                waiting = self._groups[group] = deque()
            waiting.append(number)
            self._group_of[number] = group

    def is_alone(self, number: int) -> bool:
        """Return whether no other record of the group is unretired."""
        group = self._group_of.get(number)
        return group is None or len(self._groups[group]) == 1

    def remove(self, number: int) -> None:
        """Remove a record that is alone in its group, or has none."""
        group = self._group_of.pop(number, None)
        if group is not None:
            del self._groups[group]

    def finish(self, number: int) -> list[int]:
        """Mark a record as finished; return the records that retire now, in order."""
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
