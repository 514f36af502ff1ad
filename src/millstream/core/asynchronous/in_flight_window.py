"""In-flight window: decides which records a task sends to the async worker.

The async worker runs between micro-batches. The task therefore sends more records than can be called at once, up to a limit. It sends
only a few records with the same *queue key*; the others of that *key queue* stay in the task, so that a hot key leaves room for other
keys. Key queues take turns.

A record whose next attempt is due later waits in the task and does not count against the limit. The task sends it shortly before it is
due, ahead of all new records and against a separate limit of the same size. At order ``key``, the record *blocks* its key queue until
it has been sent again.

The number of waiting records is not limited here: they are in the operator's store and do not hold up records of other keys.
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable, Mapping
from heapq import heappop, heappush


class InFlightWindow:
    """The in-flight window of one operator. Owned by the task.

    Args:
        limit: Initial limit of records in flight.
        limit_per_key: Initial limit of records in flight per key; None for no limit.
        blocking: True if a waiting record blocks its key, as at order ``key``.
    """

    def __init__(self, limit: int, limit_per_key: int | None, *, blocking: bool) -> None:
        self.limit = limit
        self.in_flight = 0
        self._limit_per_key = limit_per_key
        self._raised: dict[Hashable, int] = {}
        self._blocking = blocking
        self._queues: dict[Hashable, _KeyWindow] = {}
        self._queue_of: dict[int, _KeyWindow] = {}
        self._turns: deque[_KeyWindow] = deque()
        self._due: list[tuple[int, int]] = []
        self._waiting: dict[int, int] = {}
        self._overdue: OrderedDict[int, _KeyWindow] = OrderedDict()
        """Records that waited and are due, with their key queues. They are sent first."""
        self._waited: set[int] = set()
        """Records that waited and are in flight."""

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def waiting_numbers(self) -> Iterable[int]:
        return self._waiting

    @property
    def parked(self) -> int:
        """How many records could be called but have not been sent."""
        return len(self._queue_of) - self.in_flight - len(self._waiting)

    @property
    def blocked(self) -> int:
        """How many of the parked records are behind a waiting record of their key."""
        queues = {self._queue_of[number] for number in self._waiting}
        return sum(len(queue.queue) for queue in queues if queue.waiting)

    def is_blocked(self, key: Hashable) -> bool:
        queue = self._queues.get(key)
        return queue is not None and bool(queue.waiting)

    @property
    def longest(self) -> int:
        """The number of unfinished records in the longest key queue."""
        return max((queue.size for key, queue in self._queues.items() if key is not None), default=0)

    def size(self, key: Hashable) -> int:
        queue = self._queues.get(key)
        return 0 if queue is None else queue.size

    def add(self, number: int, key: Hashable) -> None:
        """Append a record to its key queue; None for a record without a key."""
        queue = self._enter(number, key)
        queue.queue.append(number)
        if not queue.has_turn:
            self._give_turn(queue)

    def take(self, now_ms: int) -> int | None:
        """Return the next record to send; None if there is none or the window is full."""
        if self._due:
            self._release(now_ms)
        while self._overdue and len(self._waited) < self.limit:
            number, queue = self._overdue.popitem(last=False)
            in_order = not self._blocking or queue.key is None or queue.queue[0] == number
            if in_order and queue.may_send():
                queue.queue.remove(number)  # it is among the first
                self._waited.add(number)
                return self._taken(number, queue)
        if self.in_flight - len(self._waited) >= self.limit:
            return None
        while self._turns:
            queue = self._turns.popleft()
            queue.has_turn = False
            if queue.may_send():
                number = queue.queue.popleft()
                self._overdue.pop(number, None)
                return self._taken(number, queue)
        return None

    def give_back(self, number: int) -> None:
        queue = self._back(number)
        if queue.queue and number > queue.queue[0]:
            insort(queue.queue, number)
        else:
            queue.queue.appendleft(number)
        self._give_turn(queue)

    def wait(self, number: int, due_ms: int) -> None:
        queue = self._back(number)
        if self._blocking and queue.key is not None:
            queue.waiting.add(number)
        self._waiting[number] = due_ms
        heappush(self._due, (due_ms, number))
        self._give_turn(queue)

    def bring_forward(self, number: int, due_ms: int) -> None:
        """If a record waits, make it due earlier."""
        if number in self._waiting:
            self._waiting[number] = due_ms
            heappush(self._due, (due_ms, number))

    def resume(self, number: int, key: Hashable, *, due_ms: int | None, in_flight: bool) -> None:
        """Restore a record after a restart. Records must be restored in the order of their numbers.

        Args:
            due_ms: When the next attempt is due, ms since the epoch; None if the record does not wait.
        """
        if due_ms is None and not in_flight:
            self.add(number, key)
            return
        queue = self._enter(number, key)
        queue.in_flight += 1
        self.in_flight += 1
        if due_ms is not None:
            self.wait(number, due_ms)

    def end(self, number: int) -> None:
        queue = self._back(number)
        self._leave(number, queue)
        if queue.queue:
            self._give_turn(queue)

    def waits_alone(self, number: int) -> bool:
        """Return True if a record waits and no other record of its key is in the window."""
        if number not in self._waiting:  # the record may have been answered
            return False
        queue = self._queue_of[number]
        return queue.key is None or queue.size == 1

    def remove(self, number: int) -> None:
        queue = self._queue_of[number]
        queue.waiting.discard(number)
        del self._waiting[number]
        self._leave(number, queue)

    def next_due(self) -> int | None:
        """Return when the next waiting record is due, ms since the epoch; None if none waits."""
        self._drop_stale()
        return self._due[0][0] if self._due else None

    def raised_limit(self, key: Hashable) -> int:
        """Return the raised limit of a key; 0 if its limit is not raised."""
        return self._raised.get(key, 0)

    def raise_limits(self, limits: Mapping[Hashable, int]) -> None:
        """Set the raised limits of some keys, and reset all others."""
        before, self._raised = self._raised, dict(limits)
        for key in before.keys() | self._raised.keys():
            queue = self._queues.get(key)
            if queue is not None:
                queue.limit = self._limit_of(key)
                self._give_turn(queue)

    def _limit_of(self, key: Hashable) -> int | None:
        return None if key is None else self._raised.get(key, self._limit_per_key)

    def _enter(self, number: int, key: Hashable) -> _KeyWindow:
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = _KeyWindow(key, self._limit_of(key))
        queue.size += 1
        self._queue_of[number] = queue
        return queue

    def _leave(self, number: int, queue: _KeyWindow) -> None:
        del self._queue_of[number]
        queue.size -= 1
        if not queue.size:
            del self._queues[queue.key]

    def _release(self, now_ms: int) -> None:
        self._drop_stale()
        while self._due and self._due[0][0] <= now_ms:
            _, number = heappop(self._due)
            del self._waiting[number]
            queue = self._queue_of[number]
            queue.waiting.discard(number)
            insort(queue.queue, number)
            self._overdue[number] = queue
            self._give_turn(queue)
            self._drop_stale()

    def _drop_stale(self) -> None:
        due = self._due
        while due and self._waiting.get(due[0][1]) != due[0][0]:
            heappop(due)

    def _back(self, number: int) -> _KeyWindow:
        queue = self._queue_of[number]
        queue.in_flight -= 1
        self.in_flight -= 1
        self._waited.discard(number)
        return queue

    def _taken(self, number: int, queue: _KeyWindow) -> int:
        queue.in_flight += 1
        self.in_flight += 1
        if queue.queue:
            self._give_turn(queue)
        return number

    def _give_turn(self, queue: _KeyWindow) -> None:
        if not queue.has_turn and queue.may_send():
            queue.has_turn = True
            self._turns.append(queue)


class _KeyWindow:
    """The records of one key: ``queue`` holds those not sent, ``waiting`` those that wait and block the key."""

    __slots__ = ("has_turn", "in_flight", "key", "limit", "queue", "size", "waiting")

    def __init__(self, key: Hashable, limit: int | None) -> None:
        self.key = key
        self.limit = limit
        self.queue: deque[int] = deque()
        self.in_flight = 0
        self.size = 0
        self.has_turn = False
        self.waiting: set[int] = set()

    def may_send(self) -> bool:
        if not self.queue or (self.limit is not None and self.in_flight >= self.limit):
            return False
        return not self.waiting or min(self.waiting) > self.queue[0]
