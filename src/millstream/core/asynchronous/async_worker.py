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
        key: Earlier calls of their key.
        limit: The end of other calls: as many are running as ``max_in_flight`` allows.
        rate: The rate limit.
        breaker: An open circuit breaker.
        time: Their due time, which is near.
    """

    key: int = 0
    limit: int = 0
    rate: int = 0
    breaker: int = 0
    time: int = 0


@dataclass(frozen=True)
class Work:
    """The state of an operator of a task in its async worker.

    Attributes:
        longest_ms: How long the oldest running call has been running.
        shortest_ms: The same of the newest one.
        call_ms: Recent average duration of a call; 0 before the first has ended.
        early_ms: In how many ms the first delayed call is due; None if there are none.
        next_ms: In how many ms a call may begin or time out, 0 if there are results to fetch; None if only results are awaited.
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
    """The answer of an async worker.

    Attributes:
        settled: The in-flight tickets whose calls have ended, in that order, with their results.
        lost: The in-flight tickets that it does not know.
        work: The state of each operator.
        loop_lag_ms: How late the event loop was lately; a function that blocks it delays all others.
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
        """Report the in-flight tickets of a task, send calls, and return the results.

        Args:
            batch: Number of the micro-batch; questions of earlier micro-batches than the last are refused.
            now_ms: The application's wall clock, ms since the epoch.
            in_flight: All in-flight tickets of the task, including those of ``calls``; None if the task has reported them in
                this micro-batch, and then no results are returned.

        Raises:
            AsyncWorkerError: If no async worker can be reached or started, a function cannot be pickled, or the question is too
                late.
        """
