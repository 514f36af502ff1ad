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
        self._key_of: dict[int, Hashable] = {}
        self._turns: deque[Hashable] = deque()
        self._due: list[tuple[int, int]] = []
        self._waiting: dict[int, int] = {}
        self._overdue: OrderedDict[int, Hashable] = OrderedDict()
        """Records that waited and are due, with their keys. They are sent first."""
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
        return len(self._key_of) - self.in_flight - len(self._waiting)

    @property
    def blocked(self) -> int:
        """How many of the parked records are behind a waiting record of their key."""
        if not self._blocking:
            return 0
        keys = {self._key_of[number] for number in self._waiting} - {None}
        return sum(len(self._queues[key].queue) for key in keys)

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
        self._key_of[number] = key
        queue = self._queues.get(key) or self._new_queue(key)
        queue.size += 1
        queue.queue.append(number)
        if not queue.has_turn:
            self._give_turn(key, queue)

    def take(self, now_ms: int) -> int | None:
        """Return the next record to send; None if there is none or the window is full."""
        if self._due:
            self._release(now_ms)
        while self._overdue and len(self._waited) < self.limit:
            number, key = self._overdue.popitem(last=False)
            queue = self._queues[key]
            in_order = not self._blocking or key is None or queue.queue[0] == number
            if in_order and self._may_send(key, queue):
                queue.queue.remove(number)  # it is among the first
                self._waited.add(number)
                return self._taken(number, key, queue)
        if self.in_flight - len(self._waited) >= self.limit:
            return None
        while self._turns:
            key = self._turns.popleft()
            next_queue = self._queues.get(key)
            if next_queue is None:
                continue
            next_queue.has_turn = False
            if self._may_send(key, next_queue):
                number = next_queue.queue.popleft()
                self._overdue.pop(number, None)
                return self._taken(number, key, next_queue)
        return None

    def give_back(self, number: int) -> None:
        key, queue = self._back(number)
        if queue.queue and number > queue.queue[0]:
            insort(queue.queue, number)
        else:
            queue.queue.appendleft(number)
        self._give_turn(key, queue)

    def wait(self, number: int, due_ms: int) -> None:
        key, queue = self._back(number)
        if self._blocking and key is not None:
            queue.waiting.add(number)
        self._waiting[number] = due_ms
        heappush(self._due, (due_ms, number))
        self._give_turn(key, queue)

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
        self._key_of[number] = key
        queue = self._queues.get(key) or self._new_queue(key)
        queue.size += 1
        queue.in_flight += 1
        self.in_flight += 1
        if due_ms is not None:
            self.wait(number, due_ms)

    def end(self, number: int) -> None:
        key, queue = self._back(number)
        del self._key_of[number]
        queue.size -= 1
        if not queue.size:
            del self._queues[key]
        elif queue.queue:
            self._give_turn(key, queue)

    def waits_alone(self, number: int) -> bool:
        """Return True if a record waits and no other record of its key is in the window."""
        if number not in self._waiting:  # the record may have been answered
            return False
        key = self._key_of[number]
        return key is None or self._queues[key].size == 1

    def remove(self, number: int) -> None:
        key = self._key_of.pop(number)
        queue = self._queues[key]
        queue.waiting.discard(number)
        queue.size -= 1
        del self._waiting[number]
        if not queue.size:
            del self._queues[key]

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
                queue.limit = self._raised.get(key, self._limit_per_key)
                self._give_turn(key, queue)

    def _new_queue(self, key: Hashable) -> _KeyWindow:
        queue = self._queues[key] = _KeyWindow(self._raised.get(key, self._limit_per_key))
        return queue

    def _release(self, now_ms: int) -> None:
        self._drop_stale()
        while self._due and self._due[0][0] <= now_ms:
            _, number = heappop(self._due)
            del self._waiting[number]
            key = self._key_of[number]
            queue = self._queues[key]
            queue.waiting.discard(number)
            insort(queue.queue, number)
            self._overdue[number] = key
            self._give_turn(key, queue)
            self._drop_stale()

    def _drop_stale(self) -> None:
        due = self._due
        while due and self._waiting.get(due[0][1]) != due[0][0]:
            heappop(due)

    def _back(self, number: int) -> tuple[Hashable, _KeyWindow]:
        key = self._key_of[number]
        queue = self._queues[key]
        queue.in_flight -= 1
        self.in_flight -= 1
        self._waited.discard(number)
        return key, queue

    def _taken(self, number: int, key: Hashable, queue: _KeyWindow) -> int:
        queue.in_flight += 1
        self.in_flight += 1
        if queue.queue:
            self._give_turn(key, queue)
        return number

    def _may_send(self, key: Hashable, queue: _KeyWindow) -> bool:
        free = key is None or queue.limit is None or queue.in_flight < queue.limit
        return bool(queue.queue) and free and not (queue.waiting and min(queue.waiting) < queue.queue[0])

    def _give_turn(self, key: Hashable, queue: _KeyWindow) -> None:
        if not queue.has_turn and self._may_send(key, queue):
            queue.has_turn = True
            self._turns.append(key)


class _KeyWindow:
    """The records of one key: ``queue`` holds those not sent, ``waiting`` those that wait and block the key."""

    __slots__ = ("has_turn", "in_flight", "limit", "queue", "size", "waiting")

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.queue: deque[int] = deque()
        self.in_flight = 0
        self.size = 0
        self.has_turn = False
        self.waiting: set[int] = set()
