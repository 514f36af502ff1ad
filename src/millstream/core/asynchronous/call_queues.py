"""Queues of an operator's calls in the async worker: one key queue per key, and the run queue.

The key queues decide when a call may run; which records the task sends is decided by the task's in-flight window. At order ``key``, a
record that has to wait *blocks* its key: the calls behind it are returned to the task, and so are calls that arrive later. The key stays
blocked until the task has learned of the wait, or until the record itself is sent again.

The *run queue* holds the calls that may begin as soon as the operator has capacity. It has two classes, new calls and due calls
(retries and delayed calls), which take turns, so that neither class delays the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Iterable, Iterator
from typing import TypeAlias

from millstream.core.asynchronous.call import Call, Ticket
from millstream.core.model.calls import Calls

WaitingCall: TypeAlias = tuple[Call, int]
"""A call, and when it began to wait, ms since the epoch."""


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

    def __bool__(self) -> bool:
        return bool(self._new or self._due)

    def __iter__(self) -> Iterator[WaitingCall]:
        yield from self._due
        yield from self._new

    @property
    def first(self) -> WaitingCall:
        return self._next()[0]

    @property
    def since(self) -> int:
        """When the oldest call began to wait, ms since the epoch."""
        return min(queue[0][1] for queue in (self._new, self._due) if queue)

    def add(self, queued: WaitingCall) -> None:
        self._new.append(queued)

    def add_due(self, queued: WaitingCall) -> None:
        self._due.append(queued)

    def add_first(self, queued: Iterable[WaitingCall]) -> None:
        """Put calls at the head of the queue, in their order."""
        self._new.extendleft(reversed([*queued]))

    def take(self) -> WaitingCall:
        queue = self._next()
        self._turn_of_new = queue is self._due
        return queue.popleft()

    def drop(self, tickets: Collection[Ticket]) -> list[Call]:
        return [call for queue in (self._due, self._new) for call in drop(queue, tickets)]

    def _next(self) -> deque[WaitingCall]:
        return self._new if not self._due or (self._turn_of_new and self._new) else self._due


class KeyQueues:
    """The key queues of one operator. Owned by the operator's dispatcher."""

    def __init__(self, calls: Calls) -> None:
        self.serial = calls.order == "key"
        self._limit = 1 if self.serial else calls.max_in_flight_per_key
        self._queues: dict[Hashable, _KeyQueue] = {}
        self._blocked: dict[Hashable, Ticket] = {}
        self.size = 0
        """The number of waiting calls."""

    @property
    def waiting_keys(self) -> int:
        """The number of keys with waiting calls."""
        return sum(1 for queue in self._queues.values() if queue.waiting)

    def limits(self, call: Call) -> bool:
        """Return True if a limit applies to the call's key."""
        return call.queue_key is not None and self._limit is not None

    def blocks(self, call: Call) -> bool:
        """Return True if an earlier record blocks the call's key. A call of the blocking record itself unblocks the key."""
        ticket = self._blocked.get(call.queue_key)
        if ticket is not None and ticket.number == call.ticket.number:
            del self._blocked[call.queue_key]
            return False
        return ticket is not None

    def enter(self, call: Call, now_ms: int) -> bool:
        """Add a new call. Return True if it may run now, False if it waits in its key queue."""
        assert self._limit is not None
        queue = self._queues.get(call.queue_key)
        if queue is None:
            queue = self._queues[call.queue_key] = _KeyQueue()
        if queue.running < self._limit:
            queue.running += 1
            return True
        queue.waiting.append((call, now_ms))
        self.size += 1
        return False

    def waiting_behind(self, call: Call) -> int:
        """Return how many waiting calls of the same key could join a call's batch."""
        return len(self._queues[call.queue_key].waiting) if self.serial and call.queue_key is not None else 0

    def take_behind(self, call: Call, limit: int, now_ms: int) -> Iterable[Call]:
        """Remove due calls behind a call, to run in the same batch."""
        if self.serial and call.queue_key is not None:
            queue = self._queues[call.queue_key]
            while limit > 0 and queue.waiting and queue.waiting[0][0].due_ms <= now_ms:
                limit -= 1
                self.size -= 1
                queue.running += 1
                yield queue.waiting.popleft()[0]

    def leave(self, call: Call, *, waits: bool) -> tuple[list[Ticket], list[WaitingCall]]:
        """Remove a call that ran. At order ``key``, it blocks its key if its record ``waits``.

        Returns:
            Tickets of the calls to return to the task, and the calls that may run now.
        """
        assert self._limit is not None
        key = call.queue_key
        queue = self._queues[key]
        queue.running -= 1
        if waits and self.serial:
            first = self._blocked.get(key, call.ticket)
            self._blocked[key] = min(first, call.ticket, key=lambda ticket: ticket.number)
        returned: list[Ticket] = []
        if self._blocked and key in self._blocked:
            returned = [behind.ticket for behind, _ in queue.waiting]
            queue.waiting.clear()
        runs: list[WaitingCall] = []
        while queue.waiting and queue.running < self._limit:
            queue.running += 1
            runs.append(queue.waiting.popleft())
        self.size -= len(returned) + len(runs)
        if not queue.running:
            del self._queues[key]
        return returned, runs

    def drop(self, tickets: Collection[Ticket]) -> None:
        for queue in self._queues.values():
            self.size -= len(drop(queue.waiting, tickets))

    def unblock(self, tickets: Iterable[Ticket]) -> None:
        if not self._blocked:  # almost always, and there may be tens of thousands of tickets
            return
        unblocking = frozenset(tickets)
        for key in [key for key, ticket in self._blocked.items() if ticket in unblocking]:
            del self._blocked[key]


class _KeyQueue:
    """The calls of one key. ``running`` counts the calls in the run queue, too."""

    __slots__ = ("running", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[WaitingCall] = deque()
        self.running = 0


def drop(queue: deque[WaitingCall], tickets: Collection[Ticket]) -> list[Call]:
    dropped = [call for call, _ in queue if call.ticket in tickets]
    if dropped:
        kept = [queued for queued in queue if queued[0].ticket not in tickets]
        queue.clear()
        queue.extend(kept)
    return dropped
