"""Calls: the requests of a topology to external systems, and their limits.

An *asynchronous operator* calls a user function for each record, outside the task. The function returns a result, or one of the answers of
``millstream.core.model.answers``. An exception is a failed attempt.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from inspect import iscoroutinefunction
from typing import Any, Final, Literal, TypeAlias, TypedDict, get_args

from millstream.core.model.answers import DeadLetter, Later, Skip, TryAgain
from millstream.core.model.durations import Duration, millis, not_negative
from millstream.core.model.errors import TopologyError
from millstream.core.model.topics import checked_name

CallOrder = Literal["key", "partition", "completion"]
"""Order in which the effects of records are applied: input order per key, input order per partition, or as calls complete."""


@dataclass(frozen=True)
class Retry:
    """Defines when a failed attempt is retried.

    The wait grows from ``initial`` by ``factor`` up to ``cap``. ``jitter`` randomises part of it, so that calls that failed together are
    not retried together.

    Args:
        initial: Wait after the first failed attempt; ``timedelta`` or ms.
        factor: Factor by which the wait grows after each attempt, at least 1.
        cap: The longest wait; ``timedelta`` or ms.
        jitter: Random part of a wait, 0 to 1: with 0.2, the wait is between 80 % and 120 % of its length.
        max_attempts: Maximum total number of attempts; None means no limit.
        max_elapsed: Maximum time from the start of the first attempt to the start of another; :func:`delay` restarts this time. None means
            no limit.
        on: Tuple of the exception classes that are retried; other exceptions are final. :func:`retry` always causes a retry. A call that
            ends with ``SystemExit`` or is cancelled counts as one with a ``ProcessingError``.

    Raises:
        TopologyError: If a value is out of range.

    Source: KIP-311; async engine of Apache Flink (``AsyncRetryStrategies``).

    Example:
        >>> import millstream as ms
        >>> policy = ms.Retry(initial=100, factor=2, cap=300, jitter=0, max_attempts=5)
        >>> [policy.wait_ms(attempt, seed="") for attempt in (1, 2, 3)]
        [100, 200, 300]
    """

    initial: Duration = 100
    factor: float = 2.0
    cap: Duration = 60_000
    jitter: float = 0.2
    max_attempts: int | None = None
    max_elapsed: Duration | None = None
    on: tuple[type[Exception], ...] = (Exception,)

    def __post_init__(self) -> None:
        not_negative("Retry(initial=...)", self.initial)
        if millis(self.cap) < millis(self.initial):
            raise TopologyError(f"Retry(cap={self.cap!r}) is shorter than initial={self.initial!r}")
        for name in ("factor", "jitter"):
            number = getattr(self, name)
            if not isinstance(number, (int, float)) or not math.isfinite(number):
                raise TopologyError(f"Retry({name}={number!r}): it must be a number")
        if self.factor < 1:
            raise TopologyError(
                f"Retry(factor={self.factor}): it must be at least 1, because waits cannot get shorter"
            )
        if not 0 <= self.jitter <= 1:
            raise TopologyError(
                f"Retry(jitter={self.jitter}): it must be a fraction of the wait, from 0 to 1"
            )
        if self.max_attempts is not None:
            _at_least_one("Retry(max_attempts=...)", self.max_attempts)
        if self.max_elapsed is not None:
            not_negative("Retry(max_elapsed=...)", self.max_elapsed)
        on = self.on if isinstance(self.on, tuple) else (self.on,)
        if not all(isinstance(each, type) and issubclass(each, BaseException) for each in on):
            raise TopologyError(
                f"Retry(on={self.on!r}): it must be a tuple of exception classes, such as (ConnectionError, TimeoutError)"
            )
        for each in on:
            if not issubclass(each, Exception):
                raise TopologyError(
                    f"Retry(on={self.on!r}): {each.__name__} is no subclass of Exception. A call that ends with it counts as one with a "
                    "ms.errors.ProcessingError, which can be retried"
                )

    def wait_ms(self, attempt: int, seed: str) -> int:
        """Return the wait after a failed attempt. For an example, see :class:`Retry`.

        Args:
            attempt: Number of the attempt, from 1.
            seed: Seed of the jitter. The same seed and attempt return the same wait.

        Returns:
            Wait, ms.
        """
        initial, longest = millis(self.initial), millis(self.cap)
        try:
            wait = min(initial * self.factor ** (attempt - 1), longest)
        except OverflowError:
            wait = longest if initial else 0
        return min(round(wait * (1 + self.jitter * (2 * _chance(f"{seed}:{attempt}") - 1))), longest)

    def allows(self, attempt: int, begun_ms: int, next_ms: int) -> bool:
        """Return whether another attempt is allowed.

        Args:
            attempt: Number of the failed attempt, from 1.
            begun_ms: Start of the first attempt, ms since the epoch.
            next_ms: Start of the next attempt, ms since the epoch.
        """
        if self.max_attempts is not None and attempt >= self.max_attempts:
            return False
        return self.max_elapsed is None or next_ms - begun_ms <= millis(self.max_elapsed)


@dataclass(frozen=True)
class CircuitBreaker:
    """Defines when calls to a failing endpoint are suspended.

    After ``failures`` consecutive failed attempts, there are no calls for ``reset_after``; then a single call tests the endpoint.
    Meanwhile, records wait without using up attempts.

    Args:
        failures: Number of consecutive failures.
        reset_after: Duration of the suspension; ``timedelta`` or ms.

    Raises:
        TopologyError: If a value is out of range.

    Source: the pattern of that name; Kafka Streams has no counterpart.

    Example:
        >>> CircuitBreaker(failures=3, reset_after=10_000)
        CircuitBreaker(failures=3, reset_after=10000)
    """

    failures: int = 5
    reset_after: Duration = 30_000

    def __post_init__(self) -> None:
        _at_least_one("CircuitBreaker(failures=...)", self.failures)
        not_negative("CircuitBreaker(reset_after=...)", self.reset_after)


OnFailure: TypeAlias = Literal["fail", "skip"] | DeadLetter
"""What happens to a record whose call failed permanently: stop the application, drop the record, or send it to a dead-letter topic."""


Answer: TypeAlias = TryAgain | Later | DeadLetter | Skip
"""What a call may return instead of a result."""


class CallOptions(TypedDict, total=False):
    """The options of asynchronous operators, as keywords. See :class:`Calls`."""

    order: CallOrder
    max_in_flight: int
    max_in_flight_per_key: int | None
    timeout: Duration | None
    total_timeout: Duration | None
    retry: Retry | None
    on_failure: OnFailure
    rate_limit: tuple[int, Duration] | None
    circuit_breaker: CircuitBreaker | None
    endpoint: Callable[[Any, Any], str] | None


@dataclass(frozen=True, kw_only=True)
class Calls:
    """The options for the calls of one operator, per task.

    Attributes:
        order: Order in which effects are applied. ``key``: input order per key, with at most one concurrent call per key; records
            without a key have no order. ``partition``: input order per partition; calls overlap. ``completion``: as calls complete.
        max_in_flight: Maximum number of concurrent calls.
        max_in_flight_per_key: Maximum number of concurrent calls per key; None means no separate limit. With order ``key``, it is
            always one.
        timeout: Maximum duration of an attempt; ``timedelta`` or ms, None means no limit.
        total_timeout: Maximum duration of all attempts, including waits: no attempt starts later. :func:`delay` restarts this time. A
            batch has the time of the record with the most time left. ``timedelta`` or ms, None means no limit.
        retry: Which failed attempts are retried; None retries none, except those that return :func:`retry`.
        on_failure: ``fail`` stops the application, ``skip`` drops the record, ``ms.dead_letter(topic)`` sends it to a topic.
        batch: ``(max_records, max_wait)``: the function takes a list of up to ``max_records`` records and returns a list of equally
            many results. An incomplete batch is called once its first record has waited for ``max_wait``.
        rate_limit: ``(calls, per)``: at most ``calls`` calls start within any period of length ``per``. Each async worker counts for itself
            and from its start, so after a restart, or when a task moves to another host, up to ``calls`` calls start at once.
        circuit_breaker: When calls to a failing endpoint are suspended.
        endpoint: ``(key, value) -> endpoint`` for the circuit breaker; None means one endpoint for the operator.

    Raises:
        TopologyError: If an option is invalid.

    Source: KIP-311, "Issue" and "Execute".

    Example:
        >>> Calls(max_in_flight=10, timeout=2_000, retry=Retry(max_attempts=3), on_failure="skip").batch_records
        1
    """

    order: CallOrder = "key"
    max_in_flight: int = 100
    max_in_flight_per_key: int | None = None
    timeout: Duration | None = None
    total_timeout: Duration | None = None
    retry: Retry | None = None
    on_failure: OnFailure = "fail"
    batch: tuple[int, Duration] | None = None
    rate_limit: tuple[int, Duration] | None = None
    circuit_breaker: CircuitBreaker | None = None
    endpoint: Callable[[Any, Any], str] | None = None

    def __post_init__(self) -> None:
        if self.order not in get_args(CallOrder):
            raise TopologyError(f"order must be 'key', 'partition' or 'completion', not {self.order!r}")
        _at_least_one("max_in_flight", self.max_in_flight)
        if self.max_in_flight_per_key is not None:
            _at_least_one("max_in_flight_per_key", self.max_in_flight_per_key)
            if self.order == "key" and self.max_in_flight_per_key > 1:
                raise TopologyError(
                    f"max_in_flight_per_key={self.max_in_flight_per_key}: with order='key', the calls of a key run one after the other; "
                    "leave it out, or set order='partition' or order='completion'"
                )
        for name in ("timeout", "total_timeout"):
            limit = getattr(self, name)
            if limit is not None and millis(limit) < 1:
                raise TopologyError(f"{name} must be at least 1 ms, not {limit!r}")
        for name, kind, call in (
            ("retry", Retry, "ms.Retry(max_attempts=3)"),
            ("circuit_breaker", CircuitBreaker, "ms.CircuitBreaker(failures=5)"),
        ):
            option = getattr(self, name)
            if option is not None and not isinstance(option, kind):
                raise TopologyError(
                    f"{name} must be created with ms.{kind.__name__}(...), as in {name}={call}, not {option!r}"
                )
        if isinstance(self.on_failure, DeadLetter) and self.on_failure.text != "":
            checked_name(self.on_failure.text, "topic")
        elif self.on_failure not in ("fail", "skip"):
            raise TopologyError(
                f"on_failure must be 'fail', 'skip' or ms.dead_letter('topic'), not {self.on_failure!r}"
            )
        self._check_pairs()
        self._check_endpoint()

    def _check_pairs(self) -> None:
        for name, parts in (("batch", "(max_records, max_wait)"), ("rate_limit", "(calls, per)")):
            pair = getattr(self, name)
            if pair is not None and not (isinstance(pair, tuple) and len(pair) == 2):
                raise TopologyError(f"{name}={parts}: it must be a pair of values, not {pair!r}")
        if self.batch is not None:
            _at_least_one("max_records of batch=(max_records, max_wait)", self.batch[0])
            not_negative("batch=(max_records, max_wait)", self.batch[1])
        if self.rate_limit is not None:
            _at_least_one("calls of rate_limit=(calls, per)", self.rate_limit[0])
            if millis(self.rate_limit[1]) < 1:
                raise TopologyError(
                    f"rate_limit=(calls, per): both must be at least 1, not {self.rate_limit!r}"
                )

    def _check_endpoint(self) -> None:
        if self.endpoint is None:
            return
        if not callable(self.endpoint) or iscoroutinefunction(self.endpoint):
            raise TopologyError(
                f"endpoint must be a plain function (key, value) -> endpoint, which runs in the task, not {self.endpoint!r}"
            )
        if self.circuit_breaker is None:
            raise TopologyError("endpoint=... needs circuit_breaker=...")
        if self.batch is not None:
            raise TopologyError(
                "a batch is one call to one endpoint: leave out batch=... or endpoint=..., or use one operator per endpoint"
            )

    @property
    def batch_records(self) -> int:
        """Maximum number of records per call."""
        return 1 if self.batch is None else self.batch[0]

    @property
    def batch_wait_ms(self) -> int:
        """Maximum time a call waits for more records, ms."""
        return 0 if self.batch is None else millis(self.batch[1])


_CHANCES: Final = 1 << 64


def _chance(seed: str) -> float:
    """Return a pseudo-random number from 0 to 1 that depends only on the seed."""
    return int.from_bytes(blake2b(seed.encode(), digest_size=8).digest(), "big") / _CHANCES


def _at_least_one(what: str, count: int) -> None:
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise TopologyError(f"{what} must be a whole number of at least 1, not {count!r}")
