"""Messages between a task and its station, and how they travel: pickled, behind their length.

A task asks twice in a micro-batch: first what has been settled of the calls it holds tickets of, then to make new calls. Both
are the same question. It names *every* ticket that the task holds, so whatever the two sides believe of each other is
made right each time, whichever of them has been started anew in between:

* a ticket that the task holds and the station does not know is *lost*: the task hands the record over again;
* what the station has and the task does not hold (it has been applied, or it comes from an attempt at a micro-batch that failed) is
  forgotten. Until then it is kept, so a micro-batch that is run again hears the same once more.

Functions are sent once and then go by their digest: a station unpickles each one once, so what a function keeps (a session of
an HTTP client, say) lives as long as the station.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from pyspark import cloudpickle

from penstock.core.asynchronous.call import Failed, Settled, Ticket

LENGTH_BYTES: Final = 8


class Order(NamedTuple):
    """A call as it travels: like ``Call``, with the digest of its function in place of the function.

    Attributes:
        ticket: Its name.
        function: Digest of what to call.
        args: With what.
        line: What it is in line with.
        attempt: From 1.
        begun_ms: When the first attempt began, None if this is it.
        endpoint: Whose circuit breaker it is about.
    """

    ticket: Ticket
    function: bytes
    args: tuple[Any, ...]
    line: Any
    attempt: int
    begun_ms: int | None
    endpoint: str


@dataclass(frozen=True)
class Question:
    """What a task tells the station, and asks.

    Attributes:
        task: The task.
        batch: Number of the micro-batch: a question of an earlier one than the station has seen is refused.
        held: The tickets that the task holds, those of ``orders`` among them.
        orders: Calls to make.
        options: Digest of the options of each operator that calls.
        pickles: Functions and options by digest, as far as the station may not know them.
    """

    task: str
    batch: int
    held: frozenset[Ticket] = frozenset()
    orders: tuple[Order, ...] = ()
    options: Mapping[str, bytes] = field(default_factory=dict)
    pickles: Mapping[bytes, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Operator:
    """What there is to see of an operator of a task in its station.

    Attributes:
        running: Calls that run.
        waiting: Calls that will.
        longest_ms: For how long the oldest of those that run has been running.
    """

    running: int
    waiting: int
    longest_ms: int


@dataclass(frozen=True)
class Answer:
    """What the station answers.

    Attributes:
        settled: Of the tickets held, those whose calls have come to something, in the order in which they did.
        lost: Those it does not know.
        unknown: Digests it has no pickle of; nothing was done, the task asks again with them.
        refused: Why nothing was done, None if it was.
        operators: What there is to see, by operator.
        loop_lag_ms: By how much the event loop was late lately: a function that blocks it holds all others up.
    """

    settled: tuple[tuple[Ticket, Settled], ...] = ()
    lost: tuple[Ticket, ...] = ()
    unknown: frozenset[bytes] = frozenset()
    refused: str | None = None
    operators: Mapping[str, Operator] = field(default_factory=dict)
    loop_lag_ms: int = 0


def framed(message: bytes) -> bytes:
    """Put the length in front of a message."""
    return len(message).to_bytes(LENGTH_BYTES, "big") + message


def pickled(value: Any) -> bytes:
    """Pickle a function, or options, also those that are defined in a program or a notebook."""
    return cloudpickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)  # type: ignore[no-any-return]


def dumped(message: Question | Answer) -> bytes:
    """Pickle a message; what holds objects of classes that are defined in a program takes a little longer."""
    try:
        return pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception:
        return pickled(message)


def told(answer: Answer) -> bytes:
    """Pickle an answer; a result that cannot be pickled becomes a failure that says so."""
    try:
        return dumped(answer)
    except Exception:
        settled = tuple((ticket, _can_travel(one)) for ticket, one in answer.settled)
        return dumped(replace(answer, settled=settled))


def _can_travel(settled: Settled) -> Settled:
    try:
        pickled(settled)
    except Exception as error:
        if isinstance(settled, Failed):
            return replace(settled, error=None)
        return Failed(1, f"the result of the call cannot be pickled to bring it to the task: {error}")
    return settled
