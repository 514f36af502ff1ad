"""Run queue: calls that begin as soon as the operator may run another one, in two classes.

A call whose time has come does not stand behind all new calls: there may be thousands, and a retry would be late by as long as
they take. But it does not go first either, or records that fail again and again would leave no room for any other. The two classes
take turns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from typing import TypeAlias

from millstream.core.asynchronous.call import Call, Ticket

WaitingCall: TypeAlias = tuple[Call, int]
"""A call, and since when it waits, ms since the epoch."""


class RunQueue:
    """The run queue of a dispatcher.

    Example:
        >>> a, b, c, d = (Call(Ticket("call", number, 1, ""), print, ()) for number in range(4))
        >>> queue = RunQueue()
        >>> for call in (a, b):
        ...     queue.add((call, 0))
        >>> for call in (c, d):
        ...     queue.add_due((call, 0))
        >>> [queue.take()[0].ticket.number for _ in range(4)]
        [2, 0, 3, 1]
    """

    def __init__(self) -> None:
        self._new: deque[WaitingCall] = deque()
        self._due: deque[WaitingCall] = deque()
        self._turn_of_new = False

    def __len__(self) -> int:
        return len(self._new) + len(self._due)

    def __iter__(self) -> Iterator[WaitingCall]:
        yield from self._due
        yield from self._new

    @property
    def first(self) -> WaitingCall:
        return self._next()[0]

    @property
    def since(self) -> int:
        """Since when the oldest call waits, ms since the epoch."""
        return min(queue[0][1] for queue in (self._new, self._due) if queue)

    def add(self, queued: WaitingCall) -> None:
        self._new.append(queued)

    def add_due(self, queued: WaitingCall) -> None:
        """Append a call whose due time has come to the others of its class."""
        self._due.append(queued)

    def add_first(self, queued: Iterable[WaitingCall]) -> None:
        """Put calls back in front, in their order."""
        self._new.extendleft(reversed([*queued]))

    def take(self) -> WaitingCall:
        queue = self._next()
        self._turn_of_new = queue is self._due
        return queue.popleft()

    def drop(self, tickets: Collection[Ticket]) -> list[Call]:
        return [call for queue in (self._due, self._new) for call in drop(queue, tickets)]

    def _next(self) -> deque[WaitingCall]:
        return self._new if not self._due or (self._turn_of_new and self._new) else self._due


def drop(queue: deque[WaitingCall], tickets: Collection[Ticket]) -> list[Call]:
    """Remove and return the calls of some tickets."""
    dropped = [call for call, _ in queue if call.ticket in tickets]
    if dropped:
        kept = [queued for queued in queue if queued[0].ticket not in tickets]
        queue.clear()
        queue.extend(kept)
    return dropped
