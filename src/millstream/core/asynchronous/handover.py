"""Handover: which unfinished records a task hands to the station, and which wait with the task.

A station works between micro-batches, so it is handed more records than it calls at once, up to a limit. Records in the same
*line* (records of one key) take a few places of it at most; the others of the line are *parked*, so a hot key leaves room
for the rest. Lines take turns.

A record whose next attempt is due later waits with the task. It takes no place. When it is handed over, shortly before it is due,
it goes first, and has a place of its own: there are as many for such records as for all others. At order ``key`` it *closes* its line for
those behind it: they stay where they are until it has been handed over again, in front of them.

Nothing here limits how many records wait: they lie in the operator's store, not in the way of others.
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable, Mapping
from heapq import heappop, heappush


class Handover:
    """What one operator hands over. Owned by the task.

    Args:
        most: How many records may be with the station, to begin with.
        most_per_line: How many of one line, to begin with; None is any number.
        closing: Whether a record that waits closes its line.
    """

    def __init__(self, most: int, most_per_line: int | None, *, closing: bool) -> None:
        self.most = most
        """How many records may be with the station."""
        self._per_line = most_per_line
        self._wide: dict[Hashable, int] = {}
        self._closing = closing
        self._lines: dict[Hashable, _Line] = {}
        self._line_of: dict[int, Hashable] = {}
        self._turns: deque[Hashable] = deque()
        self._due: list[tuple[int, int]] = []
        self._waiting: dict[int, int] = {}
        self._first: OrderedDict[int, Hashable] = OrderedDict()
        """Records that have waited and go first, with their lines."""
        self._waited: set[int] = set()
        """Those of them that are with the station."""
        self.out = 0
        """How many records are with the station."""

    @property
    def waiting(self) -> int:
        """How many records wait for a time."""
        return len(self._waiting)

    def waiting_numbers(self) -> Iterable[int]:
        """Return the records that wait for a time."""
        return self._waiting

    @property
    def parked(self) -> int:
        """How many records could be called and are not handed over."""
        return len(self._line_of) - self.out - len(self._waiting)

    @property
    def behind_waiting(self) -> int:
        """How many of the parked records can not be called yet, because one of their line waits."""
        if not self._closing:
            return 0
        keys = {self._line_of[number] for number in self._waiting} - {None}
        return sum(len(self._lines[key].queue) for key in keys)

    def is_closed(self, line: Hashable) -> bool:
        """Return whether a record of a line waits, and others behind it."""
        there = self._lines.get(line)
        return there is not None and bool(there.waiting)

    @property
    def longest_line(self) -> int:
        """How many unfinished records the longest line has."""
        return max((line.size for key, line in self._lines.items() if key is not None), default=0)

    def in_line(self, line: Hashable) -> int:
        """Return how many unfinished records of a line are here."""
        there = self._lines.get(line)
        return 0 if there is None else there.size

    def add(self, number: int, line: Hashable) -> None:
        """Take in a record, behind all others of its line; None is in line with nothing."""
        self._line_of[number] = line
        there = self._lines.get(line) or self._new_line(line)
        there.size += 1
        there.queue.append(number)
        if not there.has_turn:
            self._give_turn(line, there)

    def take(self, now_ms: int) -> int | None:
        """Return the next record to hand over, None if there is none or no place for it."""
        if self._due:
            self._release(now_ms)
        while self._first and len(self._waited) < self.most:
            number, key = self._first.popitem(last=False)
            there = self._lines[key]
            in_order = not self._closing or key is None or there.queue[0] == number
            if in_order and self._may_go(key, there):
                there.queue.remove(number)  # it is among the first
                self._waited.add(number)
                return self._taken(number, key, there)
        if self.out - len(self._waited) >= self.most:
            return None
        while self._turns:
            key = self._turns.popleft()
            line = self._lines.get(key)
            if line is None:
                continue
            line.has_turn = False
            if self._may_go(key, line):
                number = line.queue.popleft()
                self._first.pop(number, None)
                return self._taken(number, key, line)
        return None

    def give_back(self, number: int) -> None:
        """Take back a record that was not called."""
        key, line = self._back(number)
        if line.queue and number > line.queue[0]:
            insort(line.queue, number)
        else:
            line.queue.appendleft(number)
        self._give_turn(key, line)

    def wait(self, number: int, due_ms: int) -> None:
        """Take back a record whose next attempt is due at a time."""
        key, line = self._back(number)
        if self._closing and key is not None:
            line.waiting.add(number)
        self._waiting[number] = due_ms
        heappush(self._due, (due_ms, number))
        self._give_turn(key, line)

    def bring_forward(self, number: int, due_ms: int) -> None:
        """Let a record that waits be due earlier."""
        self._waiting[number] = due_ms
        heappush(self._due, (due_ms, number))

    def resume(self, number: int, line: Hashable, *, due_ms: int | None, out: bool) -> None:
        """Take in a record as it was before a restart; records come in the order of their numbers.

        Args:
            number: The record.
            line: Its line.
            due_ms: When its next attempt is due, if it waits.
            out: Whether it is with the station.
        """
        if due_ms is None and not out:
            self.add(number, line)
            return
        self._line_of[number] = line
        there = self._lines.get(line) or self._new_line(line)
        there.size += 1
        there.out += 1
        self.out += 1
        if due_ms is not None:
            self.wait(number, due_ms)

    def end(self, number: int) -> None:
        """Forget a record that was with the station."""
        key, line = self._back(number)
        del self._line_of[number]
        line.size -= 1
        if not line.size:
            del self._lines[key]
        elif line.queue:
            self._give_turn(key, line)

    def waits_alone(self, number: int) -> bool:
        """Return whether a record waits, and nothing is in line with it."""
        if number not in self._waiting:  # answered already, perhaps
            return False
        key = self._line_of[number]
        return key is None or self._lines[key].size == 1

    def leave(self, number: int) -> None:
        """Forget a record that waits alone."""
        key = self._line_of.pop(number)
        line = self._lines[key]
        line.waiting.discard(number)
        line.size -= 1
        del self._waiting[number]
        if not line.size:
            del self._lines[key]

    def next_due(self) -> int | None:
        """Return when a record that waits is due next, ms since the epoch; None if none waits."""
        self._forget_stale()
        return self._due[0][0] if self._due else None

    def widened(self, line: Hashable) -> int:
        """Return how many records of a line may be with the station if more are than to begin with, else 0."""
        return self._wide.get(line, 0)

    def widen(self, lines: Mapping[Hashable, int]) -> None:
        """Let more records of some lines be with the station, and of all others as many as to begin with."""
        before, self._wide = self._wide, dict(lines)
        for key in before.keys() | self._wide.keys():
            line = self._lines.get(key)
            if line is not None:
                line.most = self._wide.get(key, self._per_line)
                self._give_turn(key, line)

    def _new_line(self, key: Hashable) -> _Line:
        line = self._lines[key] = _Line(self._wide.get(key, self._per_line))
        return line

    def _release(self, now_ms: int) -> None:
        self._forget_stale()
        while self._due and self._due[0][0] <= now_ms:
            _, number = heappop(self._due)
            del self._waiting[number]
            key = self._line_of[number]
            line = self._lines[key]
            line.waiting.discard(number)
            insort(line.queue, number)
            self._first[number] = key
            self._give_turn(key, line)
            self._forget_stale()

    def _forget_stale(self) -> None:
        due = self._due
        while due and self._waiting.get(due[0][1]) != due[0][0]:
            heappop(due)

    def _back(self, number: int) -> tuple[Hashable, _Line]:
        key = self._line_of[number]
        line = self._lines[key]
        line.out -= 1
        self.out -= 1
        self._waited.discard(number)
        return key, line

    def _taken(self, number: int, key: Hashable, line: _Line) -> int:
        line.out += 1
        self.out += 1
        if line.queue:
            self._give_turn(key, line)
        return number

    def _may_go(self, key: Hashable, line: _Line) -> bool:
        free = key is None or line.most is None or line.out < line.most
        return bool(line.queue) and free and not (line.waiting and min(line.waiting) < line.queue[0])

    def _give_turn(self, key: Hashable, line: _Line) -> None:
        if not line.has_turn and self._may_go(key, line):
            line.has_turn = True
            self._turns.append(key)


class _Line:
    """Records that follow each other: those not handed over, how many are, and those that close the line."""

    __slots__ = ("has_turn", "most", "out", "queue", "size", "waiting")

    def __init__(self, most: int | None) -> None:
        self.most = most
        self.queue: deque[int] = deque()
        self.out = 0
        self.size = 0
        self.has_turn = False
        self.waiting: set[int] = set()
