"""Call: one attempt for one record, as a task sends it to the async worker, and its result.

A *ticket* identifies a call, so that its result can be matched to the record. It consists of the operator, the number of the record in
that operator, the *turn* (how often the record has been sent) and the *epoch* of the attempt at a micro-batch that sent it. The number
alone is not unique: a repeated micro-batch may assign it to another record, and a record may be sent again. The result of a ticket that
is no longer in flight is ignored.

A ticket is *settled* in one of these ways:

* :class:`Done`: the call has returned a result.
* :class:`Waits`: another attempt is due at a later time.
* :class:`Failed`: there are no more attempts.
* :class:`Skipped`: the function skips the record.
* :class:`Returned`: the call was not made, because an earlier record of the same key waits.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from millstream.core.model.answers import DeadLetter, Later, Skip, TryAgain, dead_letter, delay, retry, skip
from millstream.core.model.calls import Calls, Retry
from millstream.core.model.durations import millis
from millstream.core.model.errors import ProcessingError

_NOT_CALLED = (skip, retry, delay, dead_letter)
MAX_TRACEBACK: Final = 10_000
"""Limit of a traceback in characters, because it travels between processes and is stored. The end of a long one is kept."""
LEAST_MS: Final = 1
"""Minimum wait before the next attempt, so that a record is not called again at once."""


class Ticket(NamedTuple):
    """The identity of a call.

    Attributes:
        number: The number of the record in its operator and task.
        turn: How often the record has been sent, from 1.
        epoch: The attempt at a micro-batch that sent the record.
    """

    operator: str
    number: int
    turn: int
    epoch: str


TicketGroup: TypeAlias = tuple[str, int]
"""Epoch and turn, which tickets of one operator share if they were sent together."""

InFlightTickets: TypeAlias = Mapping[TicketGroup, Set[int]]
"""Tickets of one operator: record numbers by group. Compact, because a micro-batch may send tens of thousands."""


def grouped(tickets: Iterable[Ticket]) -> dict[str, dict[TicketGroup, set[int]]]:
    groups: dict[str, dict[TicketGroup, set[int]]] = {}
    for operator, number, turn, epoch in tickets:
        groups.setdefault(operator, {}).setdefault((epoch, turn), set()).add(number)
    return groups


def tickets(operator: str, in_flight: InFlightTickets) -> Iterator[Ticket]:
    for (epoch, turn), numbers in in_flight.items():
        for number in sorted(numbers):
            yield Ticket(operator, number, turn, epoch)


class Call(NamedTuple):
    """A call for the async worker.

    Attributes:
        args: The arguments for one record. A function of a batch receives a list for each argument.
        queue_key: Calls with the same key wait for each other; a call with None waits for no other.
        attempt: The number of the attempt, from 1.
        begun_ms: When the first attempt began, ms since the epoch; None if this is the first.
        endpoint: The name of the circuit breaker that applies.
        due_ms: When the call may begin, ms since the epoch; 0 for at once.
    """

    ticket: Ticket
    function: Callable[..., Any]
    args: tuple[Any, ...]
    queue_key: Hashable = None
    attempt: int = 1
    begun_ms: int | None = None
    endpoint: str = ""
    due_ms: int = 0


class Raised(NamedTuple):
    error: Exception


class Done(NamedTuple):
    value: Any


class Start(NamedTuple):
    """One execution of a function, for one call or a batch of calls.

    Attributes:
        begun_ms: When it began, ms since the epoch.
        batch: True if the function takes lists.
    """

    number: int
    calls: tuple[Call, ...]
    begun_ms: int
    batch: bool

    def run(self) -> Any:
        """Call the function. The result may be an awaitable."""
        if not self.batch:
            return self.calls[0].function(*self.calls[0].args)
        return self.calls[0].function(*(list(column) for column in zip(*(call.args for call in self.calls))))

    def answers(self, result: Any) -> list[Any]:
        """Split the function's result into one answer per call.

        The function of a batch returns a list with one result per record. An exception in the list counts as raised for that record.
        """
        if not self.batch:
            return [result]
        if not isinstance(result, (list, tuple)) or len(result) != len(self.calls):
            wrong = ProcessingError(
                f"the function of a batch of {len(self.calls)} records returned {_in_short(result)}; it must return a list with "
                "one result per record"
            )
            return self.raised(wrong)
        return [Raised(answer) if isinstance(answer, Exception) else answer for answer in result]

    def raised(self, error: BaseException) -> list[Any]:
        """Return the function's exception as the answer to each call.

        Exceptions that would end a thread or cancel a task (``CancelledError``, ``SystemExit``) count as failed attempts, too.
        """
        if not isinstance(error, Exception):
            error = ProcessingError(f"the call ended with {in_words(error)}")
        return [Raised(error)] * len(self.calls)


Why: TypeAlias = Literal["retry", "delay", "until"]


@dataclass(frozen=True)
class Waits:
    """The call is to be repeated later, as a retry or because the function asked for a delay.

    Attributes:
        due_ms: When the next attempt is due, ms since the epoch.
        attempt: The number of the next attempt.
        begun_ms: When the first attempt began, ms since the epoch; None if the next attempt counts as the first.
        why: "retry" after a failed attempt; "delay" or "until" if the function asked for a delay or chose a time.
        cause: The failure, as text for users; empty for a delay.
    """

    due_ms: int
    attempt: int
    begun_ms: int | None
    why: Why
    cause: str = ""

    def moved(self, by_ms: int) -> Waits:
        """Shift the times to a clock that is ahead by ``by_ms``. A time that the function chose stays the same."""
        if self.why == "until":
            return self
        begun_ms = None if self.begun_ms is None else self.begun_ms + by_ms
        return replace(self, due_ms=self.due_ms + by_ms, begun_ms=begun_ms)


@dataclass(frozen=True)
class Failed:
    """The call has failed and is not repeated.

    Attributes:
        error: The exception; None if none was raised, or if the failure was stored.
        to_dead_letters: True if the function asked for the dead-letter topic.
        kind: The name of the exception's class, with its module; empty if none was raised, or if an older version stored the failure.
        trace: The traceback of the exception; empty without one.
    """

    attempts: int
    cause: str
    error: Exception | None = None
    to_dead_letters: bool = False
    kind: str = ""
    trace: str = ""


@dataclass(frozen=True)
class Skipped:
    """The function skips the record."""


@dataclass(frozen=True)
class Returned:
    """The call was not made, because an earlier record of its key waits."""


Settled: TypeAlias = Done | Waits | Failed | Skipped | Returned


def described(settled: Settled) -> Settled:
    """Return a failure with the class and the traceback of its exception as texts, for dead letters. Other results stay the same."""
    if not isinstance(settled, Failed) or settled.error is None:
        return settled
    return replace(settled, kind=class_of(settled.error), trace=traceback_of(settled.error))


def failed_attempt(answer: Any) -> bool:
    return isinstance(answer, (Raised, TryAgain))


def settle(calls: Calls, call: Call, answer: Any, *, begun_ms: int, now_ms: int, seed: str) -> Settled:
    """Decide how an answer settles its ticket.

    Args:
        answer: A result, an answer of ``millstream.core.model.answers``, or :class:`Raised`.
        begun_ms: When the first attempt began, ms since the epoch.
        now_ms: When the answer arrived, ms since the epoch.
        seed: Seed of the jitter of retries.

    Returns:
        After a failed attempt, ``Waits`` if the next attempt can begin within the total timeout; otherwise ``Failed``.
    """
    if isinstance(answer, Skip):
        return Skipped()
    if isinstance(answer, DeadLetter):
        return Failed(call.attempt, answer.text, to_dead_letters=True)
    if isinstance(answer, Later):
        if answer.until_ms is not None:
            return Waits(answer.until_ms, call.attempt, None, "until")
        return Waits(now_ms + max(answer.in_ms or 0, LEAST_MS), call.attempt, None, "delay")
    if isinstance(answer, (TryAgain, Raised)):
        failed, wait_ms = _failed(call, answer), _wait_ms(calls, call, answer, seed)
        return failed if wait_ms is None else _retried(calls, failed, begun_ms, now_ms + wait_ms)
    if lacks_parentheses(answer):
        wrong = ProcessingError(
            f"the function returned ms.{answer.__name__} itself; call it: ms.{answer.__name__}(...)"
        )
        return Failed(call.attempt, in_words(wrong), wrong)
    return Done(answer)


def lacks_parentheses(answer: Any) -> bool:
    """Return True for a function such as ``ms.skip``, returned in place of ``ms.skip()``."""
    return callable(answer) and any(answer is each for each in _NOT_CALLED)


def class_of(error: BaseException) -> str:
    """Return the name of an exception's class, with its module."""
    return f"{type(error).__module__}.{type(error).__qualname__}"


def traceback_of(error: BaseException) -> str:
    """Return the traceback of an exception, which loses it when it is pickled; empty if it was not raised in this process."""
    if error.__traceback__ is None:
        return ""
    return "".join(traceback.format_exception(error))[-MAX_TRACEBACK:]


def in_words(error: BaseException) -> str:
    """Return an error as text for users, even if its ``__str__`` fails."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return f"{type(error).__name__} (its message cannot be printed)"


def past_deadline(calls: Calls, call: Call, now_ms: int) -> Failed | None:
    """Return the failure of a call that would begin after its total timeout; None if the call is in time."""
    if call.begun_ms is None or (deadline := last_ms(calls, call.begun_ms)) is None or now_ms < deadline:
        return None
    total_ms = deadline - call.begun_ms
    cause = f"total_timeout={total_ms} ms expired before attempt {call.attempt} could begin"
    return Failed(call.attempt - 1, cause, TimeoutError(cause))


def last_ms(calls: Calls, begun_ms: int) -> int | None:
    """Return the end of a record's total timeout, ms since the epoch; None without a timeout."""
    return None if calls.total_timeout is None else begun_ms + millis(calls.total_timeout)


def _failed(call: Call, answer: TryAgain | Raised) -> Failed:
    if isinstance(answer, TryAgain):
        return Failed(call.attempt, "the call requested another attempt")
    return Failed(call.attempt, in_words(answer.error), answer.error)


def _wait_ms(calls: Calls, call: Call, answer: TryAgain | Raised, seed: str) -> int | None:
    """Return the wait after a failed attempt, ms; None if there is no retry."""
    if isinstance(answer, TryAgain):
        if answer.in_ms is not None:
            return max(answer.in_ms, LEAST_MS)
    elif calls.retry is None or not isinstance(answer.error, calls.retry.on):
        return None
    policy = calls.retry or Retry()
    return max(policy.wait_ms(call.attempt, f"{seed}:{call.ticket.number}"), LEAST_MS)


def _retried(calls: Calls, failed: Failed, begun_ms: int, due_ms: int) -> Waits | Failed:
    """Return the next attempt; the failure if the next attempt would be too late."""
    if not (calls.retry or Retry()).allows(failed.attempts, begun_ms, due_ms):
        return failed
    if (deadline := last_ms(calls, begun_ms)) is not None and due_ms >= deadline:
        return replace(failed, cause=f"{failed.cause} (and total_timeout leaves no time for another attempt)")
    return Waits(due_ms, failed.attempts + 1, begun_ms, "retry", failed.cause)


def _in_short(result: Any) -> str:
    many = f" of {len(result)}" if isinstance(result, (list, tuple)) else ""
    return f"a {type(result).__name__}{many}"
