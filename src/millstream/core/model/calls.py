"""Calls: what a topology asks of the world outside, how often, and what an answer may be.

An *asynchronous operator* calls a function of the user for each record. The call runs outside the task, so a slow one holds
nothing up. The function gives a result, or says that there is none yet or none at all:

* :func:`retry`: the attempt failed; make another one later;
* :func:`delay`: it is too early; ask again at a time;
* :func:`dead_letter`: no attempt will help; keep the record in a topic of its own;
* :func:`skip`: there is nothing to do for this record.

What it raises is a failed attempt too. :class:`Retry` says which failures are tried again, when, and how often.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from inspect import iscoroutinefunction
from typing import Any, Final, Literal, TypeAlias, TypedDict, get_args

from millstream.core.model.durations import Duration, millis
from millstream.core.model.errors import TopologyError

_EPOCH: Final = datetime.fromtimestamp(0, UTC)

CallOrder = Literal["key", "partition", "completion"]
"""In which order the effects of records are applied: as they came per key, as they came per partition, or as calls end."""


@dataclass(frozen=True)
class TryAgain:
    """The attempt failed; made by :func:`retry`. ``in_ms`` is None where the operator's :class:`Retry` says when."""

    in_ms: int | None = None


@dataclass(frozen=True)
class Later:
    """It is too early; made by :func:`delay`. One of the two is given: a time, or how long from the answer on."""

    until_ms: int | None = None
    in_ms: int | None = None


@dataclass(frozen=True)
class DeadLetter:
    """No attempt will help; made by :func:`dead_letter`.

    Attributes:
        text: The cause, as what a call gives; the topic, as ``on_failure`` of an operator.
    """

    text: str


@dataclass(frozen=True)
class Skip:
    """There is nothing to do for the record; made by :func:`skip`."""


def retry(in_: Duration | None = None) -> TryAgain:
    """Say that the attempt failed and another one is to be made.

    Args:
        in_: How long from now, at least 1 ms; None is as the operator's :class:`Retry` says. How many attempts there are, it says
            too; without one, any number.

    Returns:
        What the function of an asynchronous operator returns.

    Source: KIP-311, "Robust failure handling with retries".

    Example:
        >>> retry(in_=500)
        TryAgain(in_ms=500)
    """
    return TryAgain(None if in_ is None else _not_negative("retry(in_=...)", in_))


def delay(until: int | datetime | None = None, *, in_: Duration | None = None) -> Later:
    """Say that it is too early for this record: the function is to be called again at a time, as the same attempt.

    Args:
        until: The time, as ms since the epoch or a ``datetime`` with a time zone.
        in_: How long from now, in place of a time; at least 1 ms.

    Returns:
        What the function of an asynchronous operator returns.

    Raises:
        ValueError: Unless exactly one of the two is given, or if a datetime has no time zone.
        TypeError: If the time is something else, above all a float such as ``time.time()`` gives, which counts seconds.

    Source: KIP-311, "Delayed processing".

    Example:
        >>> delay(until=1_700_000_000_000)
        Later(until_ms=1700000000000, in_ms=None)
    """
    if (until is None) == (in_ is None):
        raise ValueError("delay() wants a time, until=..., or how long from now, in_=...")
    if in_ is not None:
        return Later(in_ms=_not_negative("delay(in_=...)", in_))
    if isinstance(until, datetime):
        if until.tzinfo is None:
            raise ValueError(
                f"delay(until={until!r}): a datetime without a time zone is a different time in each place; give it one"
            )
        until = -(
            (_EPOCH - until) // timedelta(milliseconds=1)
        )  # never before the microsecond that was asked for
    if not isinstance(until, int) or isinstance(until, bool):
        raise TypeError(
            f"delay(until={until!r}): a time is an int of ms since the epoch, or a datetime with a time zone"
        )
    return Later(until_ms=until)


def dead_letter(text: str) -> DeadLetter:
    """Say that no attempt will help, with the cause; or, as ``on_failure`` of an operator, where such records are kept.

    Args:
        text: Returned by a call: the cause; the record goes to the topic of ``on_failure=ms.dead_letter(...)``, or where there
            is none to that of the setting ``dead_letter_topic``. As ``on_failure``: the topic.

    Returns:
        What the function of an asynchronous operator returns, or what ``on_failure`` is.

    Example:
        >>> dead_letter("no such customer")
        DeadLetter(text='no such customer')
    """
    return DeadLetter(str(text))


def skip() -> Skip:
    """Say that there is nothing to do for the record: it ends here, and is counted as dropped.

    Returns:
        What the function of an asynchronous operator returns.

    Example:
        >>> skip()
        Skip()
    """
    return Skip()


@dataclass(frozen=True)
class Retry:
    """When a failed attempt is followed by another one.

    The wait grows from ``initial`` by ``factor`` up to ``cap``; ``jitter`` of it is left to chance, so that calls that failed
    together do not come back together.

    Args:
        initial: How long after the first failed attempt; ``timedelta`` or ms.
        factor: By what each further wait is longer, at least 1.
        cap: The longest wait.
        jitter: Which part of a wait is left to chance, 0 to 1: 0.2 is between 80 % and 120 % of it.
        max_attempts: How many attempts there are in all; None is any number.
        max_elapsed: How long after the first attempt began another one may begin; None is any time.
        on: Exceptions that are tried again, a tuple of classes; what else is raised is final. :func:`retry` is always tried again.

    Raises:
        TopologyError: If a value is impossible.

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
    on: tuple[type[BaseException], ...] = (Exception,)

    def __post_init__(self) -> None:
        _not_negative("Retry(initial=...)", self.initial)
        if millis(self.cap) < millis(self.initial):
            raise TopologyError(f"Retry(cap={self.cap!r}) is shorter than initial={self.initial!r}")
        for name in ("factor", "jitter"):
            number = getattr(self, name)
            if not isinstance(number, (int, float)) or not math.isfinite(number):
                raise TopologyError(f"Retry({name}={number!r}): it is a number")
        if self.factor < 1:
            raise TopologyError(f"Retry(factor={self.factor}): waits do not get shorter; give at least 1")
        if not 0 <= self.jitter <= 1:
            raise TopologyError(f"Retry(jitter={self.jitter}): it is a part of the wait, 0 to 1")
        if self.max_attempts is not None:
            _at_least_one("Retry(max_attempts=...)", self.max_attempts)
        if self.max_elapsed is not None:
            _not_negative("Retry(max_elapsed=...)", self.max_elapsed)
        on = self.on if isinstance(self.on, tuple) else (self.on,)
        if not all(isinstance(each, type) and issubclass(each, BaseException) for each in on):
            raise TopologyError(
                f"Retry(on={self.on!r}): it is a tuple of exception classes, such as (ConnectionError, TimeoutError)"
            )

    def wait_ms(self, attempt: int, seed: str) -> int:
        """Give how long to wait after a failed attempt.

        Args:
            attempt: Its number, from 1.
            seed: What chance is made of: the same seed and attempt give the same wait.

        Returns:
            Milliseconds.
        """
        initial, longest = millis(self.initial), millis(self.cap)
        try:
            wait = min(initial * self.factor ** (attempt - 1), longest)
        except OverflowError:
            wait = longest if initial else 0
        return min(round(wait * (1 + self.jitter * (2 * _chance(f"{seed}:{attempt}") - 1))), longest)

    def allows(self, attempt: int, begun_ms: int, next_ms: int) -> bool:
        """Tell whether there may be another attempt.

        Args:
            attempt: The one that failed, from 1.
            begun_ms: When the first one began, ms since the epoch.
            next_ms: When the next one would begin.
        """
        if self.max_attempts is not None and attempt >= self.max_attempts:
            return False
        return self.max_elapsed is None or next_ms - begun_ms <= millis(self.max_elapsed)


@dataclass(frozen=True)
class CircuitBreaker:
    """When an endpoint that keeps failing is left alone for a while.

    After ``failures`` failed attempts in a row nothing is called for ``reset_after``; then one call tries whether the endpoint
    is back. Records wait meanwhile, and their attempts are not used up.

    Args:
        failures: How many in a row.
        reset_after: How long it is left alone; ``timedelta`` or ms.

    Raises:
        TopologyError: If a value is impossible.

    Example:
        >>> CircuitBreaker(failures=3, reset_after=10_000)
        CircuitBreaker(failures=3, reset_after=10000)
    """

    failures: int = 5
    reset_after: Duration = 30_000

    def __post_init__(self) -> None:
        _at_least_one("CircuitBreaker(failures=...)", self.failures)
        _not_negative("CircuitBreaker(reset_after=...)", self.reset_after)


OnFailure: TypeAlias = Literal["fail", "skip"] | DeadLetter
"""What becomes of a record whose call failed for good: the application stops, it is left out, or it is kept in a topic."""


Answer: TypeAlias = TryAgain | Later | DeadLetter | Skip
"""What a call may give in place of a result."""


class CallOptions(TypedDict, total=False):
    """The options of asynchronous operators, as keywords. What each means is told by :class:`Calls`."""

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
    """How the calls of one operator are made, per task.

    Attributes:
        order: In which order effects are applied. ``key``: as the records of a key came, and never two calls of one key at
            once; records without a key have no order. ``partition``: as the records of a partition came; calls overlap.
            ``completion``: as calls end.
        max_in_flight: How many calls run at once, at most.
        max_in_flight_per_key: How many of them for one key; None is no limit of its own. At order ``key`` it is one anyway.
        timeout: How long an attempt may take; ``timedelta`` or ms, None is for ever.
        total_timeout: How long all attempts may take together, with the waits between them: no attempt begins later. After
            :func:`delay` the time begins anew. A batch has the time of the record in it that has most left.
        retry: Which failed attempts are followed by another; None is none, but for :func:`retry`.
        on_failure: ``fail`` stops the application, ``skip`` leaves the record out, ``ms.dead_letter(topic)`` keeps it.
        batch: ``(max_records, max_wait)``: the function gets a list of up to so many records, and gives a list of as many
            results. A batch that is not full is called when its first record has waited so long.
        rate_limit: ``(calls, per)``: in no such time do more calls begin.
        circuit_breaker: When an endpoint that keeps failing is left alone.
        endpoint: ``(key, value) -> endpoint`` for the circuit breaker; None is one endpoint for the operator.

    Raises:
        TopologyError: If an option is impossible.

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
            raise TopologyError(f"order is 'key', 'partition' or 'completion', not {self.order!r}")
        _at_least_one("max_in_flight", self.max_in_flight)
        if self.max_in_flight_per_key is not None:
            _at_least_one("max_in_flight_per_key", self.max_in_flight_per_key)
            if self.order == "key" and self.max_in_flight_per_key > 1:
                raise TopologyError(
                    f"max_in_flight_per_key={self.max_in_flight_per_key}: at order='key' the calls of a key follow each other; leave it "
                    "out, or set order='partition' or order='completion'"
                )
        for name in ("timeout", "total_timeout"):
            limit = getattr(self, name)
            if limit is not None and millis(limit) < 1:
                raise TopologyError(f"{name} is at least 1 ms, not {limit!r}")
        for name, kind, call in (
            ("retry", Retry, "ms.Retry(max_attempts=3)"),
            ("circuit_breaker", CircuitBreaker, "ms.CircuitBreaker(failures=5)"),
        ):
            option = getattr(self, name)
            if option is not None and not isinstance(option, kind):
                raise TopologyError(
                    f"{name} is made by ms.{kind.__name__}(...), as in {name}={call}, not {option!r}"
                )
        if not _is_policy(self.on_failure):
            raise TopologyError(
                f"on_failure is 'fail', 'skip' or ms.dead_letter('topic'), not {self.on_failure!r}"
            )
        self._check_pairs()
        self._check_endpoint()

    def _check_pairs(self) -> None:
        for name, parts in (("batch", "(max_records, max_wait)"), ("rate_limit", "(calls, per)")):
            pair = getattr(self, name)
            if pair is not None and not (isinstance(pair, tuple) and len(pair) == 2):
                raise TopologyError(f"{name}={parts}: these are two values, not {pair!r}")
        if self.batch is not None:
            _at_least_one("max_records of batch=(max_records, max_wait)", self.batch[0])
            _not_negative("batch=(max_records, max_wait)", self.batch[1])
        if self.rate_limit is not None:
            _at_least_one("calls of rate_limit=(calls, per)", self.rate_limit[0])
            if millis(self.rate_limit[1]) < 1:
                raise TopologyError(f"rate_limit=(calls, per): both are at least 1, not {self.rate_limit!r}")

    def _check_endpoint(self) -> None:
        if self.endpoint is None:
            return
        if not callable(self.endpoint) or iscoroutinefunction(self.endpoint):
            raise TopologyError(
                f"endpoint is a plain function (key, value) -> endpoint, called where the record is, not {self.endpoint!r}"
            )
        if self.circuit_breaker is None:
            raise TopologyError(
                "endpoint=... says what a circuit breaker is for; give circuit_breaker=... too"
            )
        if self.batch is not None:
            raise TopologyError(
                "a batch is one call to one endpoint: leave out batch=... or endpoint=..., or use one operator per endpoint"
            )

    @property
    def batch_records(self) -> int:
        """How many records a call takes at most."""
        return 1 if self.batch is None else self.batch[0]

    @property
    def batch_wait_ms(self) -> int:
        """How long a call waits for more records, ms."""
        return 0 if self.batch is None else millis(self.batch[1])


_CHANCES: Final = 1 << 64


def _chance(seed: str) -> float:
    """Give a number from 0 to 1 that looks random, always the same for a seed."""
    return int.from_bytes(blake2b(seed.encode(), digest_size=8).digest(), "big") / _CHANCES


def _is_policy(on_failure: object) -> bool:
    return on_failure in ("fail", "skip") or (isinstance(on_failure, DeadLetter) and on_failure.text != "")


def _at_least_one(what: str, count: int) -> None:
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise TopologyError(f"{what} is a whole number of at least 1, not {count!r}")


def _not_negative(what: str, duration: Duration) -> int:
    ms = millis(duration)
    if ms < 0:
        raise TopologyError(f"{what} is not negative, but {duration!r} is")
    return ms
