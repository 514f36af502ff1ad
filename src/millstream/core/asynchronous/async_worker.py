"""Async worker: where calls run between two micro-batches, as a task sees it.

A task asks twice in a micro-batch: first for the results of its in-flight calls, then to make new calls. The first question names
*every* in-flight ticket of the task, so the two agree each time, whichever of them has been restarted in between:

* an in-flight ticket that the async worker does not know is *lost*: the task issues the call again;
* a call that the async worker has and that is not in flight (it has been applied, or comes from a failed attempt at a micro-batch) is
  forgotten. Until then it is kept, so that a micro-batch that is run again gets the same results.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from millstream.core.asynchronous.call import Call, Settled, Ticket
from millstream.core.model.calls import Calls


class Queued(NamedTuple):
    """Calls that have not begun, by what they wait for.

    Attributes:
        line: Others of their line in front of them.
        place: Others, because as many run as may.
        rate: The rate limit.
        breaker: An endpoint that is left alone.
        time: Their own time, which is near.
    """

    line: int = 0
    place: int = 0
    rate: int = 0
    breaker: int = 0
    time: int = 0


@dataclass(frozen=True)
class Work:
    """What there is to see of an operator of a task in its async worker.

    Attributes:
        running: Calls that run.
        queued: Calls that will.
        longest_ms: For how long the oldest of those that run has been running.
        shortest_ms: The same of the newest.
        call_ms: How long a call took lately, on average; 0 before the first has ended.
        early_ms: In how many milliseconds the first of those is due that are to begin at a time; None if there are none.
        next_ms: In how many milliseconds the async worker next looks whether a call begins or is given up, 0 if there are answers that
            nobody has fetched; None if it waits for nothing but answers.
    """

    running: int
    queued: Queued
    longest_ms: int
    shortest_ms: int
    call_ms: float
    early_ms: int | None = None
    next_ms: int | None = None


@dataclass(frozen=True)
class Answered:
    """What an async worker answers.

    Attributes:
        settled: The in-flight tickets whose calls have ended, in that order, and what has become of them.
        lost: The in-flight tickets that it does not know.
        work: What there is to see, by operator.
        loop_lag_ms: By how much the event loop was late lately: a function that blocks it holds all others up.
    """

    settled: tuple[tuple[Ticket, Settled], ...] = ()
    lost: tuple[Ticket, ...] = ()
    work: Mapping[str, Work] = field(default_factory=dict)
    loop_lag_ms: int = 0


class AsyncWorker(Protocol):
    """Makes the calls of tasks."""

    def ask(
        self,
        task: str,
        batch: int,
        now_ms: int,
        in_flight: Collection[Ticket] | None,
        calls: Iterable[Call] = (),
        *,
        options: Mapping[str, Calls] | None = None,
    ) -> Answered:
        """Report the in-flight tickets of a task, have calls made, and return the results of the others.

        Args:
            task: The task.
            batch: Number of the micro-batch; a question of an earlier one than the last is refused.
            now_ms: The application's wall clock, ms since the epoch.
            in_flight: All in-flight tickets of the task, with those of ``calls``; None if it has reported them in this micro-batch:
                then no results are returned.
            calls: The calls to make.
            options: The options of each operator that calls.

        Raises:
            AsyncWorkerError: If no async worker can be reached or started, a function cannot be pickled, or the question is too late.
        """
