"""Dispatcher: decides which calls of an operator run when.

Calls run in the async worker on Spark, and in the test driver in tests. Both have one dispatcher per task and operator. It receives
calls, answers and the time, and decides which calls begin, which time out, and how each is settled. It has no thread and no clock, so
the same rules apply in both.

* At most ``max_in_flight`` calls run. Calls of a key run one at a time, or up to ``max_in_flight_per_key`` at once; the calls behind
  them wait in the key queue and do not count.
* A batch takes calls from the run queue and, at order ``key``, the calls behind them in their key queues.
* A call that arrives before it is due begins when it is due. Until then, it counts against the limit of its key at order ``key``, and
  against no other limit.
* A record that has to wait returns to the task, which stores it durably. ``call_queues`` describes what happens to the records behind it.
* A call that needs a thread begins when there is one. Its timeout begins then, too.
* An answer that arrives after the timeout is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any, Final

from millstream.core.asynchronous.async_worker import Queued, Work
from millstream.core.asynchronous.call import (
    Call,
    Failed,
    Raised,
    Returned,
    Settled,
    Start,
    Ticket,
    Waits,
    described,
    failed_attempt,
    in_words,
    last_ms,
    past_deadline,
    settle,
)
from millstream.core.asynchronous.call_queues import KeyQueues, RunQueue
from millstream.core.asynchronous.limits import Endpoints, RateLimit
from millstream.core.model.calls import Calls
from millstream.core.model.durations import earliest, millis

_HELD_UP_MS: Final = 1_000
"""When to look again for a thread. It is looked for earlier if one has become free."""
_LATELY: Final = 50
"""About how many recent calls the average duration covers."""


class Dispatcher:
    """The dispatcher of one operator of one task. Owned by the async worker's session.

    Args:
        numbers: Source of the numbers of starts; shared if a later dispatcher of the operator may receive the end of a start.
    """

    def __init__(self, calls: Calls, seed: str = "", numbers: Iterator[int] | None = None) -> None:
        self._calls = calls
        self._seed = seed
        self._most = calls.batch_records
        self._run_queue = RunQueue()
        self._early: list[tuple[int, int, Call]] = []
        """Calls that are not due yet: a heap of due time, unique number and call."""
        self._key_queues = KeyQueues(calls)
        self._forgotten: set[Ticket] = set()
        self._running: dict[int, Start] = {}
        self._deadlines: list[tuple[int, int]] = []
        self._settled: list[tuple[Ticket, Settled]] = []
        self._numbers = count(1) if numbers is None else numbers
        rate = calls.rate_limit
        self._rate = None if rate is None else RateLimit(rate[0], millis(rate[1]))
        self._endpoints = Endpoints(calls.circuit_breaker)
        self._held_up = False
        """Whether a call could begin, but there was no thread for it."""
        self._call_ms, self._ended = 0.0, 0

    @property
    def idle(self) -> bool:
        return not (self._running or self._run_queue or self._early or self._endpoints)

    @property
    def running(self) -> Collection[int]:
        """The numbers of the starts that are running."""
        return self._running.keys()

    def work(self, now_ms: int) -> Work:
        ages = [now_ms - start.begun_ms for start in self._running.values()] or [0]
        early_ms = max(self._early[0][0] - now_ms, 0) if self._early else None
        wake_at_ms = self.wake_at_ms(now_ms)
        next_ms = None if wake_at_ms is None else max(wake_at_ms - now_ms, 0)
        queued = self._queued(now_ms)
        lasts_ms = self._lasts_ms(queued.limit)
        return Work(
            len(self._running), queued, max(ages), min(ages), self._call_ms, early_ms, next_ms, lasts_ms
        )

    def offer(self, call: Call, now_ms: int) -> None:
        """Add a call. Calls of a key must be added in the order of their records."""
        queues = self._key_queues
        if not queues.limits(call):
            self._admit(call, now_ms)
        elif not queues.serial and call.due_ms > now_ms:
            self._put_off(call)  # the call does not count against the limit of its key until it is due
        elif queues.blocks(call):
            self._settled.append((call.ticket, Returned()))
        elif queues.enter(call, now_ms):
            self._admit(call, now_ms)

    def start(self, now_ms: int, reserve: Callable[[Call], bool] = lambda call: True) -> list[Start]:
        """Start the calls that may begin.

        Args:
            reserve: Reserves what a call needs to run, such as a thread. If it returns False, the call stays in the queue.
        """
        queue, self._held_up = self._run_queue, False
        self._release(now_ms)
        for waiting in self._endpoints.take_tries(now_ms):
            queue.add_first([waiting])
        starts: list[Start] = []
        while queue and len(self._running) < self._calls.max_in_flight:
            call = queue.first[0]
            if call.begun_ms is not None:
                too_late = past_deadline(self._calls, call, now_ms)
                if too_late is not None:
                    queue.take()
                    self._settle(call, too_late)
                    continue
            if self._rate is not None and self._rate.next_ms(now_ms) > now_ms:
                break
            if not self._endpoints.allows(call, now_ms):
                self._endpoints.wait(queue.take())
                continue
            if not self._batch_is_due(now_ms):
                break
            if not reserve(call):
                self._held_up = True
                break
            starts.append(self._begin(now_ms))
        return starts

    def end(self, number: int, answers: Sequence[Any], now_ms: int) -> None:
        """Process the answers of a start, one per call. Ignore them if the start has timed out."""
        start = self._running.get(number)
        if start is not None:
            self._ended = min(self._ended + 1, _LATELY)
            self._call_ms += (now_ms - start.begun_ms - self._call_ms) / self._ended
            self._answer(start, answers, now_ms)

    def expire(self, now_ms: int) -> list[int]:
        """Time out starts that take too long. Return their numbers, for cancellation."""
        expired: list[int] = []
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            _, number = heappop(self._deadlines)
            start = self._running.get(number)
            if start is None:
                continue
            expired.append(number)
            answers = [Raised(self._timeout_of(call, start.begun_ms, now_ms)) for call in start.calls]
            self._answer(start, answers, now_ms)
        return expired

    def forget(self, tickets: Collection[Ticket]) -> None:
        """Forget calls whose results are not needed: do not start waiting ones, and unblock their keys."""
        if not tickets:
            return
        self._forgotten.update(
            call.ticket for start in self._running.values() for call in start.calls if call.ticket in tickets
        )
        self.unblock(tickets)
        self._key_queues.drop(tickets)
        dropped = self._run_queue.drop(tickets) + self._endpoints.drop(tickets)
        early = [call for _, _, call in self._early if call.ticket in tickets]
        if early:
            self._early = [each for each in self._early if each[2].ticket not in tickets]
            heapify(self._early)
            dropped += early if self._key_queues.serial else ()
        for call in dropped:
            self._leave(call, None)

    def unblock(self, tickets: Iterable[Ticket]) -> None:
        """Unblock the keys of waiting records. The task keeps the order from now on.

        The waiting record may never return: by then, another async worker may have it.
        """
        self._key_queues.unblock(tickets)

    def take_settled(self) -> list[tuple[Ticket, Settled]]:
        """Return the results since the last call of this method, in order."""
        settled, self._settled = self._settled, []
        return settled

    def timeout_at_ms(self) -> int | None:
        """Return when the next running call times out, ms since the epoch; None if none will."""
        while self._deadlines and self._deadlines[0][1] not in self._running:
            heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def wake_at_ms(self, now_ms: int) -> int | None:
        """Return when the next call begins or times out, ms since the epoch; None if that depends on an answer."""
        times = [self._early[0][0]] if self._early else []
        times += self._endpoints.try_times_ms()
        if self._run_queue and len(self._running) < self._calls.max_in_flight:
            batch_is_due = self._batch_is_due(now_ms)
            due = now_ms if batch_is_due else self._run_queue.since + self._calls.batch_wait_ms
            due = now_ms + _HELD_UP_MS if self._held_up else due
            times.append(max(due, self._next_by_rate(now_ms)))
        return earliest(self.timeout_at_ms(), *times)

    # Waiting.

    def _queued(self, now_ms: int) -> Queued:
        line, ready, breaker = self._key_queues.size, len(self._run_queue), len(self._endpoints)
        rated = len(self._running) < self._calls.max_in_flight and self._next_by_rate(now_ms) > now_ms
        ready_ahead, rate = (0, ready) if rated else (ready, 0)
        return Queued(line, ready_ahead, rate, breaker, len(self._early))

    def _lasts_ms(self, ready: int) -> int:
        """Return for how long waiting calls keep the operator busy, at least.

        Of the calls that wait for earlier ones of their key, one per key counts: it may run when the earlier ones have ended.

        Args:
            ready: The number of calls that wait only for the limit of running calls.
        """
        if not ready:
            return 0
        starts = (ready + self._key_queues.waiting_keys) / self._most
        return int(starts * self._call_ms / self._calls.max_in_flight)

    def _admit(self, call: Call, now_ms: int) -> None:
        """Queue a call that the limit of its key does not hold back."""
        if call.due_ms > now_ms:
            self._put_off(call)
        elif call.due_ms:
            self._run_queue.add_due((call, now_ms))
        else:
            self._run_queue.add((call, now_ms))

    def _put_off(self, call: Call) -> None:
        heappush(self._early, (call.due_ms, next(self._numbers), call))

    def _release(self, now_ms: int) -> None:
        while self._early and self._early[0][0] <= now_ms:
            call = heappop(self._early)[2]
            if self._key_queues.serial:  # the call has been admitted
                self._run_queue.add_due((call, now_ms))
            else:
                self.offer(call, now_ms)

    def _next_by_rate(self, now_ms: int) -> int:
        """Return when the rate limit allows the next call, ms since the epoch; ``now_ms`` if at once."""
        return now_ms if self._rate is None else self._rate.next_ms(now_ms)

    # Beginning.

    def _begin(self, now_ms: int) -> Start:
        calls = self._take_batch(now_ms)
        number, deadline_ms = next(self._numbers), self._deadline(calls, now_ms)
        start = self._running[number] = Start(number, calls, now_ms, self._calls.batch is not None)
        if deadline_ms is not None:
            heappush(self._deadlines, (deadline_ms, number))
        if self._rate is not None:
            self._rate.take(now_ms)
        self._endpoints.began(calls[0].endpoint, number)
        return start

    def _take_batch(self, now_ms: int) -> tuple[Call, ...]:
        queue, most = self._run_queue, self._most
        if most == 1:
            return (queue.take()[0],)
        calls: list[Call] = []
        while queue and len(calls) < most:
            call, _ = queue.take()
            calls.append(call)
            calls += self._key_queues.take_behind(call, most - len(calls), now_ms)
        return tuple(calls)

    def _deadline(self, calls: Sequence[Call], now_ms: int) -> int | None:
        options = self._calls
        deadline = None if options.timeout is None else now_ms + millis(options.timeout)
        if options.total_timeout is not None:  # the call with the most time left determines the deadline
            begun = max(now_ms if call.begun_ms is None else call.begun_ms for call in calls)
            deadline = earliest(deadline, last_ms(options, begun))
        return None if deadline is None else max(deadline, now_ms)

    def _timeout_of(self, call: Call, begun_ms: int, now_ms: int) -> TimeoutError:
        begun = begun_ms if call.begun_ms is None else call.begun_ms
        last = last_ms(self._calls, begun)
        if last is not None and now_ms >= last:
            return TimeoutError(f"all attempts together took more than total_timeout={last - begun} ms")
        return TimeoutError(f"no answer within {now_ms - begun_ms} ms (timeout={self._calls.timeout!r})")

    def _batch_is_due(self, now_ms: int) -> bool:
        most = self._most
        if most == 1 or now_ms - self._run_queue.since >= self._calls.batch_wait_ms:
            return True
        available = 0
        for call, _ in self._run_queue:
            available += 1 + self._key_queues.waiting_behind(call)
            if available >= most:
                return True
        return False

    # Ending.

    def _answer(self, start: Start, answers: Sequence[Any], now_ms: int) -> None:
        del self._running[start.number]
        if self._calls.circuit_breaker is not None:
            failed = all(map(failed_attempt, answers))
            endpoint = start.calls[0].endpoint
            freed = self._endpoints.ended(endpoint, start.number, now_ms, failed=failed)
            self._run_queue.add_first(freed)
        for call, answer in zip(start.calls, answers):
            if self._forgotten and call.ticket in self._forgotten:
                self._forgotten.remove(call.ticket)
                self._leave(call, None)
                continue
            begun = start.begun_ms if call.begun_ms is None else call.begun_ms
            try:
                settled = settle(self._calls, call, answer, begun_ms=begun, now_ms=now_ms, seed=self._seed)
            except Exception as error:  # raised by an object of the user; its record must not wait forever
                settled = Failed(call.attempt, in_words(error), error)
            self._settle(call, settled)

    def _settle(self, call: Call, settled: Settled) -> None:
        self._settled.append((call.ticket, described(settled)))
        self._leave(call, settled)

    def _leave(self, call: Call, settled: Settled | None) -> None:
        """Admit the calls behind a call in its key queue, or return them to the task."""
        if not self._key_queues.limits(call):
            return
        returned, runs = self._key_queues.leave(call, waits=isinstance(settled, Waits))
        if returned:
            self._settled.extend((ticket, Returned()) for ticket in returned)
        for waiting in runs:
            self._admit(*waiting)
