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
"""How long a record waits at least: one that would not wait at all would be called again and again in the same moment."""


class Ticket(NamedTuple):
    """The name of a call.

    Attributes:
        operator: The node.
        number: The record, counted per operator and task.
        turn: How often the record has been sent, from 1.
        epoch: Which attempt at which micro-batch sent it.
    """

    operator: str
    number: int
    turn: int
    epoch: str


TicketGroup: TypeAlias = tuple[str, int]
"""What tickets of one operator that were sent together share: epoch and turn."""

InFlightTickets: TypeAlias = Mapping[TicketGroup, Set[int]]
"""Tickets of one operator: the numbers of each group. Tens of thousands of them are sent in each micro-batch."""


def grouped(tickets: Iterable[Ticket]) -> dict[str, dict[TicketGroup, set[int]]]:
    """Return tickets as they are sent, by operator."""
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
        ticket: Its name.
        function: What to call.
        args: With what; in a batch, each argument is a list.
        queue_key: Calls with one queue key wait for each other; None waits for no other.
        attempt: From 1.
        begun_ms: When the first attempt began, None if this is it.
        endpoint: Whose circuit breaker it is about.
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
    """What a call that raised gives in place of a result."""

    error: Exception


class Done(NamedTuple):
    """The result of a call."""

    value: Any


Why: TypeAlias = Literal["retry", "delay", "until"]


@dataclass(frozen=True)
class Waits:
    """Another attempt is due.

    Attributes:
        due_ms: When, ms since the epoch.
        attempt: The number of that attempt.
        begun_ms: When the first attempt began; None if that one counts as the first.
        why: Whether an attempt failed, or it was too early: for a while, or until a time that the function named.
        cause: Why it failed, for people; empty if it was too early.
    """

    due_ms: int
    attempt: int
    begun_ms: int | None
    why: Why
    cause: str = ""

    def moved(self, by_ms: int) -> Waits:
        """Return the same by a clock that is ahead; a time that the function named stays."""
        if self.why == "until":
            return self
        begun_ms = None if self.begun_ms is None else self.begun_ms + by_ms
        return replace(self, due_ms=self.due_ms + by_ms, begun_ms=begun_ms)


@dataclass(frozen=True)
class Failed:
    """No more attempts.

    Attributes:
        attempts: How many there were.
        cause: Why, for people.
        error: What was raised, None if nothing was.
        to_dead_letters: Whether the call itself asked for the dead-letter topic.
    """

    attempts: int
    cause: str
    error: Exception | None = None
    to_dead_letters: bool = False


@dataclass(frozen=True)
class Skipped:
    """There is nothing to do for the record."""


@dataclass(frozen=True)
class Returned:
    """The record was not called: one of the same key in front of it waits."""


Settled: TypeAlias = Done | Waits | Failed | Skipped | Returned
"""What becomes of a call."""


def failed_attempt(answer: Any) -> bool:
    """Return whether an answer says that the attempt failed."""
    return isinstance(answer, (Raised, TryAgain))


def settle(calls: Calls, call: Call, answer: Any, *, begun_ms: int, now_ms: int, seed: str) -> Settled:
    """Return what becomes of a call.

    Args:
        calls: The options of its operator.
        call: The call.
        answer: A result, one of the answers of ``millstream.core.model.answers``, or :class:`Raised`.
        begun_ms: When its first attempt began.
        now_ms: When the answer came, ms since the epoch.
        seed: Seed of the jitter.

    Returns:
        What becomes of it. That a record waits never means that it waits in vain: where the next attempt would come after the
        total timeout, it has failed already.
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
            f"the function gave ms.{answer.__name__} itself; call it: ms.{answer.__name__}(...)"
        )
        return Failed(call.attempt, in_words(wrong), wrong)
    return Done(answer)


def lacks_parentheses(answer: Any) -> bool:
    """Return whether an answer is a function that makes one, such as ``ms.skip`` for ``ms.skip()``."""
    return callable(answer) and any(answer is each for each in _NOT_CALLED)


def in_words(error: BaseException) -> str:
    """Return an error for people, also one that cannot be printed.

    Example:
        >>> in_words(ValueError("no such customer"))
        'ValueError: no such customer'
    """
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return f"{type(error).__name__} (its message cannot be printed)"


def past_deadline(calls: Calls, call: Call, now_ms: int) -> Failed | None:
    """Return what becomes of a call that would begin after its total timeout; None if it would not.

    Args:
        calls: The options of its operator.
        call: The call.
        now_ms: When it would begin, ms since the epoch.
    """
    if call.begun_ms is None or (deadline := last_ms(calls, call.begun_ms)) is None or now_ms < deadline:
        return None
    total_ms = deadline - call.begun_ms
    cause = f"total_timeout={total_ms} ms was over before attempt {call.attempt} could begin"
    return Failed(call.attempt - 1, cause, TimeoutError(cause))


def last_ms(calls: Calls, begun_ms: int) -> int | None:
    """Return when the total timeout of a record is over whose first attempt began at a time, ms since the epoch; None is never."""
    return None if calls.total_timeout is None else begun_ms + millis(calls.total_timeout)


def _failed(call: Call, answer: TryAgain | Raised) -> Failed:
    if isinstance(answer, TryAgain):
        return Failed(call.attempt, "the call asked for another attempt")
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
    """Return another attempt at a time, or the failure if there is none by then."""
    if not (calls.retry or Retry()).allows(failed.attempts, begun_ms, due_ms):
        return failed
    if (deadline := last_ms(calls, begun_ms)) is not None and due_ms >= deadline:
        return replace(failed, cause=f"{failed.cause} (and the total timeout leaves no time for another)")
    return Waits(due_ms, failed.attempts + 1, begun_ms, "retry", failed.cause)
