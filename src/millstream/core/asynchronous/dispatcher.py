"""Dispatcher: which calls of an operator run when, on the side where they run.

Whoever executes calls (the station on Spark, the test driver in a test) has one dispatcher per task and operator. It is told of
calls, of answers and of the time, and says which calls to begin, which to give up, and what has been settled. It has no
thread and no clock, so both run by the same rules.

* At most ``max_in_flight`` calls run. Calls of a *line* run one after the other, or as many at once as ``max_in_flight_per_key``
  says; those behind wait in the line and take no place.
* A batch takes what is ready, and at order ``key`` those that follow in the same line.
* A call that is handed over before it is due begins when it is due. It takes no place until then, but that of its key.
* A record that has to wait goes back to the task, which remembers it durably. At order ``key`` all behind it in the line go back
  too, and whatever still arrives of that line, until the task knows of it or the record itself comes again.
* An answer that comes after its timeout is ignored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any, NamedTuple

from millstream.core.asynchronous.breaker import Breaker
from millstream.core.asynchronous.call import (
    Call,
    Failed,
    Raised,
    Returned,
    Settled,
    Ticket,
    Waits,
    failed_attempt,
    in_words,
    last_ms,
    past_deadline,
    settle,
)
from millstream.core.asynchronous.rate import Rate
from millstream.core.asynchronous.ready import Ready
from millstream.core.asynchronous.station import Queued
from millstream.core.model.calls import Calls
from millstream.core.model.durations import earliest, millis
from millstream.core.model.errors import ProcessingError


class Start(NamedTuple):
    """What to begin.

    Attributes:
        number: Names it, for its answer.
        calls: The calls it answers: one, or those of a batch.
        deadline_ms: When it is given up, ms since the epoch; None is never.
        batch: Whether the function takes lists.
    """

    number: int
    calls: tuple[Call, ...]
    deadline_ms: int | None
    batch: bool

    def run(self) -> Any:
        """Call the function; give what it gives, which may have to be awaited."""
        if not self.batch:
            return self.calls[0].function(*self.calls[0].args)
        return self.calls[0].function(*(list(column) for column in zip(*(call.args for call in self.calls))))

    def answers(self, result: Any) -> list[Any]:
        """Return the answer to each call from what the function gave.

        A batch's function gives a list with a result per record; an exception in it is what that record raised.
        """
        if not self.batch:
            return [result]
        if not isinstance(result, (list, tuple)) or len(result) != len(self.calls):
            wrong = ProcessingError(
                f"the function of a batch of {len(self.calls)} records gave {_in_short(result)}; let it return a list with "
                "one result per record"
            )
            return self.raised(wrong)
        return [Raised(answer) if isinstance(answer, Exception) else answer for answer in result]

    def raised(self, error: BaseException) -> list[Any]:
        """Return the answer to each call from what the function raised.

        What would end a thread or cancel a task (``CancelledError``, ``SystemExit``) is a failed attempt like any other.
        """
        if not isinstance(error, Exception):
            error = ProcessingError(f"the call ended with {in_words(error)}")
        return [Raised(error)] * len(self.calls)


class Dispatcher:
    """The calls of one operator of one task, where they run. Owned by who executes them.

    Args:
        calls: The operator's options.
        seed: What the jitter of retries is made of.
        numbers: What names the starts; shared where an answer may come to another dispatcher than the one that began.
    """

    def __init__(self, calls: Calls, seed: str = "", numbers: Iterator[int] | None = None) -> None:
        self._calls = calls
        self._seed = seed
        self._serial = calls.order == "key"
        self._per_line = 1 if self._serial else calls.max_in_flight_per_key
        self._ready = Ready()
        self._early: list[tuple[int, int, Call]] = []
        """What had to wait for a time, the first due first: when, a number that no two have, and the call."""
        self._lines: dict[Hashable, _Line] = {}
        self._blocked: dict[Hashable, Ticket] = {}
        self._forgotten: set[Ticket] = set()
        self._running: dict[int, _Run] = {}
        self._deadlines: list[tuple[int, int]] = []
        self._settled: list[tuple[Ticket, Settled]] = []
        self._numbers = count(1) if numbers is None else numbers
        rate = calls.rate_limit
        self._rate = None if rate is None else Rate(rate[0], millis(rate[1]))
        self._breakers: dict[str, Breaker] = {}
        self._held: dict[str, deque[tuple[Call, int]]] = {}

    @property
    def running(self) -> int:
        """How many calls run."""
        return len(self._running)

    @property
    def idle(self) -> bool:
        """Whether no call runs or waits."""
        return not (self._running or self._ready or self._early or self._held)

    def queued(self, now_ms: int) -> Queued:
        """Return how many calls have not begun, and why.

        Args:
            now_ms: The time, ms since the epoch.
        """
        in_line = sum(len(line.queue) for line in self._lines.values())
        breaker, early = sum(map(len, self._held.values())), len(self._early)
        free = len(self._running) < self._calls.max_in_flight
        if free and self._rate is not None and self._rate.next_ms(now_ms) > now_ms:
            return Queued(in_line, 0, len(self._ready), breaker, early)
        return Queued(in_line, len(self._ready), 0, breaker, early)

    def offer(self, call: Call, now_ms: int) -> None:
        """Take in a call.

        Args:
            call: The call; calls of one line come in the order of their records.
            now_ms: The time, ms since the epoch.
        """
        key = call.line
        if key is None or self._per_line is None:
            self._admit(call, now_ms)
            return
        if not self._serial and call.due_ms > now_ms:
            self._put_off(call)  # it takes no place of its key until it is due
            return
        if key in self._blocked:
            if self._blocked[key].number != call.ticket.number:
                self._settled.append((call.ticket, Returned()))
                return
            del self._blocked[key]
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line()
        if line.out < self._per_line:
            line.out += 1
            self._admit(call, now_ms)
        else:
            line.queue.append((call, now_ms))

    def start(self, now_ms: int) -> list[Start]:
        """Return what begins now."""
        self._release(now_ms)
        self._try_again(now_ms)
        starts: list[Start] = []
        while self._ready and len(self._running) < self._calls.max_in_flight:
            call = self._ready.first[0]
            too_late = past_deadline(self._calls, call, now_ms)
            if too_late is not None:
                self._ready.take()
                self._settle(call, too_late)
                continue
            if self._rate is not None and self._rate.next_ms(now_ms) > now_ms:
                break
            if not self._breaker_allows(call, now_ms):
                self._held.setdefault(call.endpoint, deque()).append(self._ready.take())
                continue
            if not self._batch_is_due(now_ms):
                break
            starts.append(self._begin(now_ms))
        return starts

    def end(self, number: int, answers: Sequence[Any], now_ms: int) -> None:
        """Take in the answers to what was begun; without effect if it was given up.

        Args:
            number: Its number.
            answers: One per call: a result, an answer of ``ms.retry`` and the like, or ``Raised``.
            now_ms: The time, ms since the epoch.
        """
        run = self._running.pop(number, None)
        if run is None:
            return
        self._note(run.start.calls[0].endpoint, answers, now_ms)
        for call, answer in zip(run.start.calls, answers):
            if call.ticket in self._forgotten:
                self._forgotten.remove(call.ticket)
                self._leave(call, None)
                continue
            begun = run.begun_ms if call.begun_ms is None else call.begun_ms
            try:
                settled = settle(self._calls, call, begun, answer, now_ms, self._seed)
            except Exception as error:  # of an object of the user's: its record must not wait for ever
                settled = Failed(call.attempt, in_words(error), error)
            self._settle(call, settled)

    def expire(self, now_ms: int) -> list[int]:
        """Give up what takes too long; give its numbers, so that it can be cancelled."""
        expired: list[int] = []
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            _, number = heappop(self._deadlines)
            run = self._running.get(number)
            if run is None:
                continue
            expired.append(number)
            answers = [Raised(self._timeout_of(call, run.begun_ms, now_ms)) for call in run.start.calls]
            self.end(number, answers, now_ms)
        return expired

    def forget(self, tickets: Collection[Ticket]) -> None:
        """Forget calls whose answers nobody will ask for: those that have not begun are not made, and none blocks its line."""
        if not tickets:
            return
        self._forgotten.update(
            call.ticket
            for run in self._running.values()
            for call in run.start.calls
            if call.ticket in tickets
        )
        self.unblock(tickets)
        for line in self._lines.values():
            _keep(line.queue, tickets)
        dropped = self._ready.drop(tickets)
        for queue in self._held.values():
            dropped += [call for call, _ in queue if call.ticket in tickets]
            _keep(queue, tickets)
        early = [each for each in self._early if each[2].ticket in tickets]
        if early:
            self._early = [each for each in self._early if each[2].ticket not in tickets]
            heapify(self._early)
            dropped += [call for _, _, call in early if self._has_place(call)]
        for call in dropped:
            self._leave(call, None)
        self._held = {endpoint: held for endpoint, held in self._held.items() if held}

    def unblock(self, tickets: Collection[Ticket]) -> None:
        """Let what waits no longer block its line here: the task knows that it waits, and hands over what is behind it in time.

        The record itself may never come again: another station may have got it in the meantime.
        """
        for key in [key for key, ticket in self._blocked.items() if ticket in tickets]:
            del self._blocked[key]

    def take_settled(self) -> list[tuple[Ticket, Settled]]:
        """Return what was settled since the last call, in the order in which it was."""
        settled, self._settled = self._settled, []
        return settled

    def wake_at_ms(self, now_ms: int) -> int | None:
        """Return when something begins or is given up without an answer; None if never."""
        while self._deadlines and self._deadlines[0][1] not in self._running:
            heappop(self._deadlines)
        times = [self._deadlines[0][0]] if self._deadlines else []
        times += [self._early[0][0]] if self._early else []
        times += [at for endpoint in self._held if (at := self._breakers[endpoint].try_at_ms) is not None]
        if self._ready and len(self._running) < self._calls.max_in_flight:
            batch_is_due = self._batch_is_due(now_ms)
            due = now_ms if batch_is_due else self._ready.since + self._calls.batch_wait_ms
            times.append(due if self._rate is None else max(due, self._rate.next_ms(now_ms)))
        return min(times, default=None)

    def early_ms(self, now_ms: int) -> int | None:
        """Return in how many milliseconds the first of the calls that wait for a time is due; None if there is none."""
        return max(self._early[0][0] - now_ms, 0) if self._early else None

    # Times.

    def _admit(self, call: Call, now_ms: int) -> None:
        """Let a call begin as soon as it is due; it has its place in its line."""
        if call.due_ms > now_ms:
            self._put_off(call)
        elif call.due_ms:
            self._ready.add_due((call, now_ms))
        else:
            self._ready.add((call, now_ms))

    def _put_off(self, call: Call) -> None:
        heappush(self._early, (call.due_ms, next(self._numbers), call))

    def _release(self, now_ms: int) -> None:
        """Make ready what has become due."""
        while self._early and self._early[0][0] <= now_ms:
            call = heappop(self._early)[2]
            if self._has_place(call):
                self._ready.add_due((call, now_ms))
            else:
                self.offer(call, now_ms)

    def _has_place(self, call: Call) -> bool:
        """Return whether a call that waits for its time is the one of its line, or in line with nothing."""
        return self._serial or call.line is None or self._per_line is None

    # Beginning.

    def _begin(self, now_ms: int) -> Start:
        calls: list[Call] = []
        most = self._calls.batch_records
        while self._ready and len(calls) < most:
            call, _ = self._ready.take()
            calls.append(call)
            if self._serial and call.line is not None:
                line = self._lines[call.line]
                while line.queue and len(calls) < most and line.queue[0][0].due_ms <= now_ms:
                    calls.append(line.queue.popleft()[0])
                    line.out += 1
        start = Start(
            next(self._numbers), tuple(calls), self._deadline(calls, now_ms), self._calls.batch is not None
        )
        self._running[start.number] = _Run(start, now_ms)
        if start.deadline_ms is not None:
            heappush(self._deadlines, (start.deadline_ms, start.number))
        if self._rate is not None:
            self._rate.take(now_ms)
        if self._calls.circuit_breaker is not None:
            self._breakers[calls[0].endpoint].began()
        return start

    def _deadline(self, calls: Sequence[Call], now_ms: int) -> int | None:
        options = self._calls
        deadline = None if options.timeout is None else now_ms + millis(options.timeout)
        if options.total_timeout is not None:  # of the one in the batch that has most time
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
        most = self._calls.batch_records
        if most == 1 or now_ms - self._ready.since >= self._calls.batch_wait_ms:
            return True
        available = 0
        for call, _ in self._ready:
            available += 1
            if self._serial and call.line is not None:
                available += len(self._lines[call.line].queue)
            if available >= most:
                return True
        return False

    # Circuit breakers.

    def _breaker_allows(self, call: Call, now_ms: int) -> bool:
        settings = self._calls.circuit_breaker
        if settings is None:
            return True
        breaker = self._breakers.get(call.endpoint)
        if breaker is None:
            breaker = self._breakers[call.endpoint] = Breaker(settings)
        return breaker.allows(now_ms)

    def _note(self, endpoint: str, answers: Sequence[Any], now_ms: int) -> None:
        breaker = self._breakers.get(endpoint)
        if breaker is None:
            return
        if all(map(failed_attempt, answers)):
            breaker.failed(now_ms)
        else:
            breaker.succeeded()
        if breaker.closed and endpoint in self._held:
            self._ready.add_first(self._held.pop(endpoint))

    def _try_again(self, now_ms: int) -> None:
        """Let one call of each endpoint that may be tried again be the first."""
        for endpoint in [e for e in self._held if self._breakers[e].allows(now_ms)]:
            held = self._held[endpoint]
            self._ready.add_first([held.popleft()])
            if not held:
                del self._held[endpoint]

    # Lines.

    def _settle(self, call: Call, settled: Settled) -> None:
        self._settled.append((call.ticket, settled))
        self._leave(call, settled)

    def _leave(self, call: Call, settled: Settled | None) -> None:
        key = call.line
        if key is None or self._per_line is None:
            return
        line = self._lines[key]
        line.out -= 1
        if self._serial and isinstance(settled, Waits):
            first = self._blocked.get(key, call.ticket)
            self._blocked[key] = min(first, call.ticket, key=lambda ticket: ticket.number)
        if key in self._blocked:
            self._settled.extend((behind.ticket, Returned()) for behind, _ in line.queue)
            line.queue.clear()
        while line.queue and line.out < self._per_line:
            line.out += 1
            self._admit(*line.queue.popleft())
        if not line.out:
            del self._lines[key]


def _keep(queue: deque[tuple[Call, int]], dropped: Collection[Ticket]) -> None:
    kept = [each for each in queue if each[0].ticket not in dropped]
    queue.clear()
    queue.extend(kept)


def _in_short(result: Any) -> str:
    many = f" of {len(result)}" if isinstance(result, (list, tuple)) else ""
    return f"a {type(result).__name__}{many}"


class _Line:
    """Calls that follow each other: those that wait, and how many are ready or running."""

    __slots__ = ("out", "queue")

    def __init__(self) -> None:
        self.queue: deque[tuple[Call, int]] = deque()
        self.out = 0


class _Run(NamedTuple):
    """What runs, and since when."""

    start: Start
    begun_ms: int
