"""Messages between a Python worker and its async worker. They are sent pickled, prefixed with their length."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from millstream.core.asynchronous.async_worker import Answered
from millstream.core.asynchronous.call import (
    Done,
    Failed,
    InFlightTickets,
    Settled,
    Ticket,
    in_words,
    traceback_of,
)
from millstream.core.model.errors import ProcessingError

LENGTH_BYTES: Final = 8


Orders: TypeAlias = tuple[Sequence[Any], ...]
"""Calls as columns, because pickling lists of strings is much faster than pickling a list of tuples.

A call is sent as: number, turn, epoch, digest of its function, arguments, queue key, attempt, begun_ms, endpoint, due_ms. These are the
fields of ``Ticket`` and ``Call``.
"""
_FUNCTION: Final = 3
"""The column with the digests of the functions."""


def columns(orders: Iterable[tuple[Any, ...]]) -> Orders:
    return tuple(zip(*orders))


@dataclass(frozen=True)
class WorkerQuestion:
    """A task's question to its async worker.

    Attributes:
        batch: Number of the micro-batch. Questions of earlier micro-batches are rejected.
        now_ms: The application's wall clock, in ms since the epoch.
        in_flight: In-flight tickets by operator. None if the task has already reported them in this micro-batch.
        options: Digest of the options of each operator that calls.
        pickles: Functions and options by digest, unless the async worker has them.
        apart: Whether to pickle each result separately, because not all could be unpickled together.
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
        return set(self.options.values()).union(*(orders[_FUNCTION] for orders in self.orders.values()))


@dataclass(frozen=True)
class WorkerAnswer:
    """The async worker's answer.

    Attributes:
        answered: The answer without results. None if nothing was done.
        settled: Results as columns: operator, number, turn, epoch, whether it is a result, and the result or other outcome.
        apart: Replaces ``settled``: each ticket with its separately pickled outcome.
        unknown: Digests without a pickle. The task asks again and sends the pickles.
        refused: Why nothing was done. Empty if the question was accepted.
    """

    answered: Answered | None = None
    settled: tuple[Sequence[Any], ...] = ()
    apart: tuple[tuple[Ticket, bytes], ...] = ()
    unknown: frozenset[bytes] = frozenset()
    refused: str = ""


def framed(message: bytes) -> bytes:
    return len(message).to_bytes(LENGTH_BYTES, "big") + message


def pickled(value: Any) -> bytes:
    """Pickle a function or options by value, including those defined in a program or notebook."""
    from pyspark import cloudpickle  # the test driver uses this module, but does not need pyspark

    return cloudpickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)  # type: ignore[no-any-return]


def dumped(value: Any) -> bytes:
    """Pickle a message or a part of one. Faster unless it contains objects of classes from the user's program."""
    try:
        return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception:
        return pickled(value)


def answer_bytes(answered: Answered, apart: bool = False) -> bytes:
    """Pickle an answer. A result that cannot be pickled becomes a failure."""
    packed = _apart if apart else _packed
    try:
        return dumped(packed(answered))
    except Exception:
        settled = tuple((ticket, _can_travel(settled_call)) for ticket, settled_call in answered.settled)
        return dumped(packed(replace(answered, settled=settled)))


def unpacked(answer: WorkerAnswer) -> Answered | None:
    """Return the results, or None if nothing was done. A result that cannot be unpickled becomes a failure."""
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


def received(ticket: Ticket, settled: Settled) -> Settled:
    """Return a result as the task receives it: as a copy, or as a failure if it cannot be pickled or unpickled."""
    try:
        data = dumped(settled)
    except Exception as error:
        return _unpicklable(error)
    return _loaded(ticket, data)


def _packed(answered: Answered) -> WorkerAnswer:
    rows = (
        (*ticket, True, settled_call.value)
        if isinstance(settled_call, Done)
        else (*ticket, False, _can_be_raised(settled_call))
        for ticket, settled_call in answered.settled
    )
    return WorkerAnswer(replace(answered, settled=()), columns(rows))


def _apart(answered: Answered) -> WorkerAnswer:
    apart = tuple((ticket, dumped(_can_be_raised(settled_call))) for ticket, settled_call in answered.settled)
    return WorkerAnswer(replace(answered, settled=()), apart=apart)


def _loaded(ticket: Ticket, data: bytes) -> Settled:
    try:
        settled: Settled = pickle.loads(data)
    except Exception as error:
        return Failed(
            1,
            f"the task cannot unpickle the result of the call of operator {ticket.operator!r}: {in_words(error)}. Return "
            "plain values, or objects of a class that every worker can import and unpickle",
        )
    return settled


def _can_be_raised(settled: Settled) -> Settled:
    """Return a failure whose error can be unpickled, because many exception classes can only be pickled. Its traceback is a note."""
    if not isinstance(settled, Failed) or settled.error is None:
        return settled
    error = settled.error
    if error.__traceback__ is not None:  # pickling drops it
        error.add_note(traceback_of(error))
        error.__traceback__ = None
    try:
        pickle.loads(dumped(error))
    except Exception:
        readable = ProcessingError(in_words(error))
        readable.add_note("\n".join(getattr(error, "__notes__", ())))
        return replace(settled, error=readable)
    return settled


def _can_travel(settled: Settled) -> Settled:
    try:
        pickled(_can_be_raised(settled))
    except Exception as error:
        return _unpicklable(error)
    return settled


def _unpicklable(error: Exception) -> Failed:
    return Failed(1, f"the result of the call cannot be pickled to send it to the task: {in_words(error)}")
