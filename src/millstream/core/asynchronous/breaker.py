"""Breaker: leaves an endpoint alone that keeps failing.

*closed*: calls go through; so many failures in a row open it. *open*: nothing goes through until a time. Then it is
*half-open*: one call goes through, as a try; its failure opens the breaker again, its success closes it.
"""

from __future__ import annotations

from millstream.core.model.calls import CircuitBreaker
from millstream.core.model.durations import millis


class Breaker:
    """The state of one endpoint.

    Args:
        settings: When it opens, and for how long.

    Example:
        >>> breaker = Breaker(CircuitBreaker(failures=1, reset_after=100))
        >>> breaker.failed(0)
        >>> breaker.allows(99), breaker.allows(100)
        (False, True)
    """

    __slots__ = ("_failures", "_most", "_opens_ms", "_reset", "_trying")

    def __init__(self, settings: CircuitBreaker) -> None:
        self._most = settings.failures
        self._reset = millis(settings.reset_after)
        self._failures = 0
        self._trying = False
        self._opens_ms: int | None = None

    @property
    def closed(self) -> bool:
        """Whether calls go through."""
        return self._opens_ms is None

    @property
    def try_at_ms(self) -> int | None:
        """From when on one call may go through as a try; None if the breaker is closed, or a try runs."""
        return None if self._trying else self._opens_ms

    def allows(self, now_ms: int) -> bool:
        """Return whether a call may go through."""
        return self._opens_ms is None or (now_ms >= self._opens_ms and not self._trying)

    def began(self) -> None:
        """Take note that a call goes through."""
        self._trying = self._opens_ms is not None

    def failed(self, now_ms: int) -> None:
        """Take note that an attempt failed."""
        self._failures += 1
        if self._trying or self._failures >= self._most:
            self._opens_ms = now_ms + self._reset
            self._trying = False

    def succeeded(self) -> None:
        """Take note that an attempt gave an answer."""
        self._failures = 0
        self._trying = False
        self._opens_ms = None
