"""Limits of an operator's calls: the rate limit, and the circuit breakers of endpoints that keep failing."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from typing import Any

from millstream.core.asynchronous.call import Call, Ticket
from millstream.core.asynchronous.call_queues import WaitingCall, drop
from millstream.core.model.calls import Calls, CircuitBreaker
from millstream.core.model.durations import millis
from millstream.core.model.errors import ProcessingError


def endpoint_of(calls: Calls, key: Any, value: Any) -> str:
    """Return the name of the circuit breaker that applies to a record; empty for that of the operator.

    Raises:
        ProcessingError: If the user's function does not return a name.
    """
    if calls.endpoint is None:
        return ""
    name: object = calls.endpoint(key, value)
    if not isinstance(name, str):
        raise ProcessingError(f"endpoint=... must return the name of the endpoint as a str, not {name!r}")
    return name


class RateLimit:
    """The rate limit of one operator.

    The limit holds for *every* period of length ``per_ms``, as services with a hard quota require. Rejected: a token bucket, which
    allows up to twice as many calls in the first period.
    """

    __slots__ = ("_begun", "_calls", "_per")

    def __init__(self, calls: int, per_ms: int) -> None:
        self._calls = calls
        self._per = per_ms
        self._begun: deque[int] = deque()

    def next_ms(self, now_ms: int) -> int:
        """Return when the next call may begin, ms since the epoch; ``now_ms`` if at once."""
        return now_ms if len(self._begun) < self._calls else max(now_ms, self._begun[0] + self._per)

    def take(self, now_ms: int) -> None:
        """Count a call that begins now. ``next_ms`` must allow it."""
        if len(self._begun) == self._calls:
            self._begun.popleft()
        self._begun.append(now_ms)


class Breaker:
    """The circuit breaker of one endpoint.

    *Closed*: calls may begin; ``failures`` failures in a row open the breaker. *Open*: no call may begin for ``reset_after``. Then the
    breaker is *half-open*: one call may begin as a trial. If it fails, the breaker opens again; if it succeeds, the breaker closes.
    While the breaker is not closed, only the failure of the trial counts: the other calls began before it opened.

    Example:
        >>> breaker = Breaker(CircuitBreaker(failures=1, reset_after=100))
        >>> breaker.began(1)
        >>> breaker.failed(1, 0)
        >>> breaker.allows(99), breaker.allows(100)
        (False, True)
    """

    __slots__ = ("_failures", "_most", "_opens_ms", "_reset", "_running", "_trial")

    def __init__(self, settings: CircuitBreaker) -> None:
        self._most = settings.failures
        self._reset = millis(settings.reset_after)
        self._failures = 0
        self._running = 0
        self._trial: int | None = None
        """The number of the start that is the trial."""
        self._opens_ms: int | None = None

    @property
    def closed(self) -> bool:
        return self._opens_ms is None

    @property
    def unused(self) -> bool:
        """Whether it is like a new one: closed, without failures and without running calls."""
        return self.closed and not self._failures and not self._running

    @property
    def try_at_ms(self) -> int | None:
        """When a trial call may begin, ms since the epoch; None if the breaker is closed or a trial is running."""
        return self._opens_ms if self._trial is None else None

    def allows(self, now_ms: int) -> bool:
        return self._opens_ms is None or (now_ms >= self._opens_ms and self._trial is None)

    def began(self, number: int) -> None:
        """Count a start. If the breaker is open, it is the trial."""
        self._running += 1
        if not self.closed:
            self._trial = number

    def failed(self, number: int, now_ms: int) -> None:
        self._running -= 1
        if not self.closed and number != self._trial:
            return
        self._failures += 1
        if not self.closed or self._failures >= self._most:
            self._opens_ms, self._trial = now_ms + self._reset, None

    def succeeded(self) -> None:
        self._running -= 1
        self._failures = 0
        self._opens_ms = self._trial = None


class Endpoints:
    """The circuit breakers of one operator by endpoint, and the calls that wait for them. Without settings, there are none."""

    def __init__(self, settings: CircuitBreaker | None) -> None:
        self._settings = settings
        self._breakers: dict[str, Breaker] = {}
        self._waiting: dict[str, deque[WaitingCall]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def allows(self, call: Call, now_ms: int) -> bool:
        breaker = self._breakers.get(call.endpoint)
        return breaker is None or breaker.allows(now_ms)

    def wait(self, waiting: WaitingCall) -> None:
        self._waiting.setdefault(waiting[0].endpoint, deque()).append(waiting)

    def began(self, endpoint: str, number: int) -> None:
        if self._settings is None:
            return
        if endpoint not in self._breakers:
            self._breakers[endpoint] = Breaker(self._settings)
        self._breakers[endpoint].began(number)

    def ended(self, endpoint: str, number: int, now_ms: int, *, failed: bool) -> Collection[WaitingCall]:
        """Update the breaker after a start has ended. Return the calls that may begin now."""
        breaker = self._breakers[endpoint]
        if failed:
            breaker.failed(number, now_ms)
        else:
            breaker.succeeded()
        if breaker.unused:  # the names of endpoints may never end
            del self._breakers[endpoint]
        return self._waiting.pop(endpoint, ()) if breaker.closed else ()

    def take_tries(self, now_ms: int) -> Iterator[WaitingCall]:
        """Remove and return one waiting call for each endpoint whose breaker allows a trial."""
        for endpoint in [endpoint for endpoint in self._waiting if self._breakers[endpoint].allows(now_ms)]:
            waiting = self._waiting[endpoint]
            yield waiting.popleft()
            if not waiting:
                del self._waiting[endpoint]

    def try_times_ms(self) -> list[int]:
        """Return when trial calls of endpoints with waiting calls may begin, ms since the epoch."""
        times = (self._breakers[endpoint].try_at_ms for endpoint in self._waiting)
        return [time for time in times if time is not None]

    def drop(self, tickets: Collection[Ticket]) -> list[Call]:
        dropped = [call for waiting in self._waiting.values() for call in drop(waiting, tickets)]
        self._waiting = {endpoint: waiting for endpoint, waiting in self._waiting.items() if waiting}
        return dropped
