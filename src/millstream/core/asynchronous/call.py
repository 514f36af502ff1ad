"""Call: one attempt for one record, as it goes to the async worker; and what comes back.

A *ticket* names a call so that its result finds the record: operator, number of the record in that operator, the *turn* (how
often the record was sent to an async worker) and the *epoch* of the attempt at a micro-batch that sent it. A micro-batch
that is repeated may number other records alike, and a record may be sent again because its async worker died; the result
of a ticket that is no longer in flight is ignored.

What comes back for a ticket is *settled*:

* :class:`Done`: the result;
* :class:`Waits`: another attempt is due at a time;
* :class:`Failed`: no more attempts;
* :class:`Skipped`: there is nothing to do;
* :class:`Returned`: not called, because a record of the same key in front of it waits.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from millstream.core.model.answers import DeadLetter, Later, Skip, TryAgain, dead_letter, delay, retry, skip
from millstream.core.model.calls import Calls, Retry
from millstream.core.model.durations import millis
from millstream.core.model.errors import ProcessingError

_NOT_CALLED = (skip, retry, delay, dead_letter)
LEAST_MS: Final = 1
"""The least wait of a record, so that a function is not called again in the same moment."""


class Ticket(NamedTuple):
    """The name of a call.

    Attributes:
        number: The number of the record in its operator and task.
        turn: How often the record has been sent, from 1.
        epoch: The attempt at a micro-batch that has sent it.
    """

    operator: str
    number: int
    turn: int
    epoch: str


TicketGroup: TypeAlias = tuple[str, int]
"""What tickets of one operator share that were sent together: epoch and turn."""

InFlightTickets: TypeAlias = Mapping[TicketGroup, Set[int]]
"""Tickets of one operator: the numbers by group. A micro-batch may send tens of thousands of them."""


def grouped(tickets: Iterable[Ticket]) -> dict[str, dict[TicketGroup, set[int]]]:
    """Group tickets for sending, by operator."""
    groups: dict[str, dict[TicketGroup, set[int]]] = {}
    for operator, number, turn, epoch in tickets:
        groups.setdefault(operator, {}).setdefault((epoch, turn), set()).add(number)
    return groups


def tickets(operator: str, in_flight: InFlightTickets) -> Iterator[Ticket]:
    """Return the tickets of an operator one by one, those of each group by number."""
    for (epoch, turn), numbers in in_flight.items():
        for number in sorted(numbers):
            yield Ticket(operator, number, turn, epoch)


class Call(NamedTuple):
    """A call that the async worker is to make.

    Attributes:
        args: Its arguments; in a batch, each is a list.
        queue_key: Calls with the same key wait for each other; None waits for no other.
        attempt: The number of the attempt, from 1.
        begun_ms: When the first attempt began; None if this is the first.
        endpoint: Names its circuit breaker.
        due_ms: When it may begin, ms since the epoch; 0 is at once.
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
    """The exception of a call, in place of a result."""

    error: Exception


class Done(NamedTuple):
    """The result of a call."""

    value: Any


class Start(NamedTuple):
    """One execution of a function: calls that begin together.

    Attributes:
        calls: One call, or those of a batch.
        begun_ms: When they began, ms since the epoch.
        deadline_ms: When it times out, ms since the epoch; None for never.
        batch: Whether the function takes lists.
    """

    number: int
    calls: tuple[Call, ...]
    begun_ms: int
    deadline_ms: int | None
    batch: bool

    def run(self) -> Any:
        """Call the function; its result may be an awaitable."""
        if not self.batch:
            return self.calls[0].function(*self.calls[0].args)
        return self.calls[0].function(*(list(column) for column in zip(*(call.args for call in self.calls))))

    def answers(self, result: Any) -> list[Any]:
        """Return the answer to each call from the function's result.

        A batch's function gives a list with a result per record; an exception in it is what that record raised.
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
        """Return the answer to each call from the function's exception.

        What would end a thread or cancel a task (``CancelledError``, ``SystemExit``) is a failed attempt like any other.
        """
        if not isinstance(error, Exception):
            error = ProcessingError(f"the call ended with {in_words(error)}")
        return [Raised(error)] * len(self.calls)


Why: TypeAlias = Literal["retry", "delay", "until"]


@dataclass(frozen=True)
class Waits:
    """Another attempt is due, or the call is delayed.

    Attributes:
        due_ms: When it is due, ms since the epoch.
        begun_ms: When the first attempt began; None if the next one counts as the first.
        why: Whether an attempt failed, or the function asked for a delay, or named a time.
        cause: Why it failed, as text for people; empty for a delay.
    """

    due_ms: int
    attempt: int
    begun_ms: int | None
    why: Why
    cause: str = ""

    def moved(self, by_ms: int) -> Waits:
        """Shift times to a clock that is ahead; a time that the function named stays."""
        if self.why == "until":
            return self
        begun_ms = None if self.begun_ms is None else self.begun_ms + by_ms
        return replace(self, due_ms=self.due_ms + by_ms, begun_ms=begun_ms)


@dataclass(frozen=True)
class Failed:
    """The call has failed for good.

    Attributes:
        cause: Why, as text for people.
        error: What was raised; None if nothing was.
        to_dead_letters: Whether the function asked for the dead-letter topic.
    """

    attempts: int
    cause: str
    error: Exception | None = None
    to_dead_letters: bool = False


@dataclass(frozen=True)
class Skipped:
    """The function skips the record."""


@dataclass(frozen=True)
class Returned:
    """The record was not called, because an earlier one of its key waits."""


Settled: TypeAlias = Done | Waits | Failed | Skipped | Returned


def failed_attempt(answer: Any) -> bool:
    return isinstance(answer, (Raised, TryAgain))


def settle(calls: Calls, call: Call, answer: Any, *, begun_ms: int, now_ms: int, seed: str) -> Settled:
    """Decide what follows from an answer.

    Args:
        answer: A result, one of the answers of ``millstream.core.model.answers``, or :class:`Raised`.
        begun_ms: When the first attempt began, ms since the epoch.
        now_ms: When the answer came, ms since the epoch.

    Returns:
        ``Waits`` only if the next attempt begins within the total timeout; otherwise ``Failed``.
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
    """Return whether an answer is a function such as ``ms.skip``, where ``ms.skip()`` was meant."""
    return callable(answer) and any(answer is each for each in _NOT_CALLED)


def in_words(error: BaseException) -> str:
    """Return an error as text for people, also if its text cannot be computed.

    Example:
        >>> in_words(ValueError("no such customer"))
        'ValueError: no such customer'
    """
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return f"{type(error).__name__} (its message cannot be printed)"


def past_deadline(calls: Calls, call: Call, now_ms: int) -> Failed | None:
    """Return the failure of a call that would begin after its total timeout; None if it is in time."""
    if call.begun_ms is None or (deadline := last_ms(calls, call.begun_ms)) is None or now_ms < deadline:
        return None
    total_ms = deadline - call.begun_ms
    cause = f"total_timeout={total_ms} ms was over before attempt {call.attempt} could begin"
    return Failed(call.attempt - 1, cause, TimeoutError(cause))


def last_ms(calls: Calls, begun_ms: int) -> int | None:
    """Return the end of a record's total timeout, ms since the epoch; None without a timeout."""
    return None if calls.total_timeout is None else begun_ms + millis(calls.total_timeout)


def _failed(call: Call, answer: TryAgain | Raised) -> Failed:
    if isinstance(answer, TryAgain):
        return Failed(call.attempt, "the call requested another attempt")
    return Failed(call.attempt, in_words(answer.error), answer.error)


def _wait_ms(calls: Calls, call: Call, answer: TryAgain | Raised, seed: str) -> int | None:
    """Return the wait after a failed attempt, ms; None if it is not retried."""
    if isinstance(answer, TryAgain):
        if answer.in_ms is not None:
            return max(answer.in_ms, LEAST_MS)
    elif calls.retry is None or not isinstance(answer.error, calls.retry.on):
        return None
    policy = calls.retry or Retry()
    return max(policy.wait_ms(call.attempt, f"{seed}:{call.ticket.number}"), LEAST_MS)


def _retried(calls: Calls, failed: Failed, begun_ms: int, due_ms: int) -> Waits | Failed:
    """Return another attempt, or the failure if it would be too late."""
    if not (calls.retry or Retry()).allows(failed.attempts, begun_ms, due_ms):
        return failed
    if (deadline := last_ms(calls, begun_ms)) is not None and due_ms >= deadline:
        return replace(failed, cause=f"{failed.cause} (and the total timeout leaves no time for another)")
    return Waits(due_ms, failed.attempts + 1, begun_ms, "retry", failed.cause)


def _in_short(result: Any) -> str:
    many = f" of {len(result)}" if isinstance(result, (list, tuple)) else ""
    return f"a {type(result).__name__}{many}"
