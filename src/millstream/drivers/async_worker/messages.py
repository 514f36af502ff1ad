"""Messages between a worker and its async worker, and how they travel: pickled, behind their length.

Functions are sent once and then go by their digest: an async worker unpickles each one once and keeps it while it is used, so what
a function keeps (a session of an HTTP client, say) lives as long.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, TypeAlias

from pyspark import cloudpickle

from millstream.core.asynchronous.async_worker import Answered
from millstream.core.asynchronous.call import Done, Failed, InFlightTickets, Settled, Ticket, in_words
from millstream.core.model.errors import ProcessingError

LENGTH_BYTES: Final = 8


class Order(NamedTuple):
    """A call as it travels: like ``Call``, with the digest of its function in place of the function.

    Attributes:
        number: The ``number`` of its ticket.
        turn: The ``turn`` of its ticket.
        epoch: The ``epoch`` of its ticket.
        function: Digest of what to call.
        args: With what.
        queue_key: Calls with one queue key wait for each other.
        attempt: From 1.
        begun_ms: When the first attempt began, None if this is it.
        endpoint: Whose circuit breaker it is about.
        due_ms: When it may begin, ms since the epoch.
    """

    number: int
    turn: int
    epoch: str
    function: bytes
    args: tuple[Any, ...]
    queue_key: Any
    attempt: int
    begun_ms: int | None
    endpoint: str
    due_ms: int


Orders: TypeAlias = tuple[Sequence[Any], ...]
"""Calls to make, as the columns of :class:`Order`: a list of strings is pickled in a fraction of the time of a list of tuples."""


def columns(orders: Iterable[tuple[Any, ...]]) -> Orders:
    """Turn rows into columns."""
    return tuple(zip(*orders))


@dataclass(frozen=True)
class Question:
    """A question of a task to its async worker.

    Attributes:
        task: The task.
        batch: Number of the micro-batch: a question of an earlier one than the async worker has seen is refused.
        now_ms: The application's wall clock, ms since the epoch.
        in_flight: The in-flight tickets of the task, by operator; None if it has reported them in this micro-batch.
        orders: Calls to make, by operator.
        options: Digest of the options of each operator that calls.
        pickles: Functions and options by digest, as far as the async worker may not know them.
        apart: Whether each result is to be pickled by itself: asked again when not all of them could be unpickled.
    """

    task: str
    batch: int
    now_ms: int
    in_flight: Mapping[str, InFlightTickets] | None = None
    orders: Mapping[str, Orders] = field(default_factory=dict)
    options: Mapping[str, bytes] = field(default_factory=dict)
    pickles: Mapping[bytes, bytes] = field(default_factory=dict)
    apart: bool = False

    def needed(self) -> set[bytes]:
        """Return the digests that the async worker must know the pickles of."""
        functions = Order._fields.index("function")
        return set(self.options.values()).union(*(orders[functions] for orders in self.orders.values()))


@dataclass(frozen=True)
class Answer:
    """The answer of the async worker.

    Attributes:
        answered: The answer without what has been settled, None if nothing was done.
        settled: Operator, number, turn, epoch and whether it is a result as columns; and the results, others as what has been
            settled.
        apart: In place of ``settled``: each ticket with what has been settled, pickled by itself.
        unknown: Digests it has no pickle of; the task asks again with them.
        refused: Why nothing was done.
    """

    answered: Answered | None = None
    settled: tuple[Sequence[Any], ...] = ()
    apart: tuple[tuple[Ticket, bytes], ...] = ()
    unknown: frozenset[bytes] = frozenset()
    refused: str = ""


def framed(message: bytes) -> bytes:
    """Put the length in front of a message."""
    return len(message).to_bytes(LENGTH_BYTES, "big") + message


def pickled(value: Any) -> bytes:
    """Pickle a function, or options, also those that are defined in a program or a notebook."""
    return cloudpickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)  # type: ignore[no-any-return]


def dumped(value: Any) -> bytes:
    """Pickle a message or a part of one; what holds objects of classes that are defined in a program takes a little longer."""
    try:
        return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception:
        return pickled(value)


def answer_bytes(answered: Answered, apart: bool = False) -> bytes:
    """Pickle an answer; a result that cannot be pickled becomes a failure that says so.

    Args:
        answered: The answer.
        apart: Whether each result is pickled by itself, so that one that cannot be unpickled does not take the others with it.
    """
    packed = _apart if apart else _packed
    try:
        return dumped(packed(answered))
    except Exception:
        settled = tuple((ticket, _can_travel(settled_call)) for ticket, settled_call in answered.settled)
        return dumped(packed(replace(answered, settled=settled)))


def unpacked(answer: Answer) -> Answered | None:
    """Return the results; a result that cannot be unpickled here becomes a failure that says so."""
    answered = answer.answered
    if answered is None:
        return None
    if answer.apart:
        return replace(
            answered, settled=tuple((ticket, _loaded(ticket, data)) for ticket, data in answer.apart)
        )
    if not answer.settled:
        return answered
    settled = tuple(
        (Ticket(*ticket), Done(settled_call) if is_result else settled_call)
        for *ticket, is_result, settled_call in zip(*answer.settled)
    )
    return replace(answered, settled=settled)


def _packed(answered: Answered) -> Answer:
    rows = (
        (*ticket, True, settled_call.value)
        if isinstance(settled_call, Done)
        else (*ticket, False, _can_be_raised(settled_call))
        for ticket, settled_call in answered.settled
    )
    return Answer(replace(answered, settled=()), columns(rows))


def _apart(answered: Answered) -> Answer:
    apart = tuple((ticket, dumped(_can_be_raised(settled_call))) for ticket, settled_call in answered.settled)
    return Answer(replace(answered, settled=()), apart=apart)


def _loaded(ticket: Ticket, data: bytes) -> Settled:
    try:
        settled: Settled = pickle.loads(data)
    except Exception as error:
        return Failed(
            1,
            f"what the call of operator {ticket.operator!r} gave came to the task as a pickle that cannot be unpickled: "
            f"{in_words(error)}. Let the function return plain values, or objects of a class that every worker can import and "
            "unpickle",
        )
    return settled


def _can_be_raised(settled: Settled) -> Settled:
    """Return a failure with an error that the task can unpickle: many classes of exceptions can be pickled, and no more."""
    if not isinstance(settled, Failed) or settled.error is None:
        return settled
    try:
        pickle.loads(dumped(settled.error))
    except Exception:
        return replace(settled, error=ProcessingError(in_words(settled.error)))
    return settled


def _can_travel(settled: Settled) -> Settled:
    try:
        pickled(_can_be_raised(settled))
    except Exception as error:
        return Failed(
            1, f"the result of the call cannot be pickled to bring it to the task: {in_words(error)}"
        )
    return settled
