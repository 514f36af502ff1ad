"""Ready: calls that begin as soon as there is a place for them, new ones and those that had a time to wait for.

Calls whose time has come do not stand behind all the new ones: there may be thousands, and a retry would be late by as long as
they take. But they do not go first either, or records that fail again and again would leave no place for any other. The two take
turns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator

from millstream.core.asynchronous.call import Call, Ticket

Since = tuple[Call, int]
"""A call, and since when it has been there, ms since the epoch."""


class Ready:
    """Calls that are ready. Owned by a dispatcher.

    Example:
        >>> a, b, c, d = (Call(Ticket("call", number, 1, ""), print, ()) for number in range(4))
        >>> ready = Ready()
        >>> for call in (a, b):
        ...     ready.add((call, 0))
        >>> for call in (c, d):
        ...     ready.add_due((call, 0))
        >>> [ready.take()[0].ticket.number for _ in range(4)]
        [2, 0, 3, 1]
    """

    def __init__(self) -> None:
        self._new: deque[Since] = deque()
        self._due: deque[Since] = deque()
        self._turn_of_new = False

    def __len__(self) -> int:
        return len(self._new) + len(self._due)

    def __iter__(self) -> Iterator[Since]:
        yield from self._due
        yield from self._new

    @property
    def first(self) -> Since:
        """The one that is next."""
        return self._next()[0]

    @property
    def since(self) -> int:
        """Since when the one has been there that came first, ms since the epoch."""
        return min(queue[0][1] for queue in (self._new, self._due) if queue)

    def add(self, one: Since) -> None:
        """Put a call behind all others."""
        self._new.append(one)

    def add_due(self, one: Since) -> None:
        """Put a call whose time has come behind the others of its kind."""
        self._due.append(one)

    def add_first(self, ones: Iterable[Since]) -> None:
        """Put calls back in front of the others, as they were in line."""
        self._new.extendleft(reversed([*ones]))

    def take(self) -> Since:
        """Take the next one out."""
        queue = self._next()
        self._turn_of_new = queue is self._due
        return queue.popleft()

    def drop(self, tickets: Collection[Ticket]) -> list[Call]:
        """Take the calls of some tickets out."""
        dropped = [call for call, _ in self if call.ticket in tickets]
        for queue in (self._new, self._due):
            kept = [each for each in queue if each[0].ticket not in tickets]
            queue.clear()
            queue.extend(kept)
        return dropped

    def _next(self) -> deque[Since]:
        return self._new if not self._due or (self._turn_of_new and self._new) else self._due
