"""Messages between a worker and its station, and how they travel: pickled, behind their length.

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
from penstock.core.asynchronous.station import Answered

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
class Answer:
    """What the station answers.

    Attributes:
        answered: The answer, None if nothing was done.
        unknown: Digests it has no pickle of; the task asks again with them.
        refused: Why nothing was done.
    """

    answered: Answered | None = None
    unknown: frozenset[bytes] = frozenset()
    refused: str = ""


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
        assert answer.answered is not None
        settled = tuple((ticket, _can_travel(one)) for ticket, one in answer.answered.settled)
        return dumped(Answer(replace(answer.answered, settled=settled)))


def _can_travel(settled: Settled) -> Settled:
    try:
        pickled(settled)
    except Exception as error:
        if isinstance(settled, Failed):
            return replace(settled, error=None)
        return Failed(1, f"the result of the call cannot be pickled to bring it to the task: {error}")
    return settled
