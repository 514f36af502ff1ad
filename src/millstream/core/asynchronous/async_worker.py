"""Async worker: runs calls between micro-batches. This module defines the interface that a task uses.

A task sends two requests per micro-batch. The first fetches the results of its in-flight calls; the second sends new calls. The first
request lists *every* in-flight ticket of the task. This keeps both sides consistent after either of them restarts:

* A ticket that the async worker does not know is *lost*: the task issues the call again.
* The async worker forgets a call whose ticket is not in flight: its effects have been applied, or a failed attempt at a micro-batch
  issued it. Until then, it keeps the result, so that a repeated micro-batch receives the same results.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from millstream.core.asynchronous.call import Call, Settled, Ticket
from millstream.core.model.calls import Calls


class Queued(NamedTuple):
    """Numbers of calls that have not begun, by the reason for the wait.

    Attributes:
        key: Earlier calls of the same key.
        limit: ``max_in_flight`` calls are running.
        rate: The rate limit.
        breaker: An open circuit breaker.
        time: A due time in the near future.
    """

    key: int = 0
    limit: int = 0
    rate: int = 0
    breaker: int = 0
    time: int = 0


@dataclass(frozen=True)
class Work:
    """The state of one operator of a task in the async worker.

    Attributes:
        longest_ms: Age of the oldest running call.
        shortest_ms: Age of the newest running call.
        call_ms: Recent average duration of a call; 0 before the first call has ended.
        early_ms: Time until the first delayed call is due; None if no call is delayed.
        next_ms: Time until a call may begin or time out; 0 if there are results to fetch; None if only an answer can change the state.
        lasts_ms: For how long the calls that wait for the limit of running calls keep the operator busy, by ``call_ms``.
    """

    running: int
    queued: Queued
    longest_ms: int
    shortest_ms: int
    call_ms: float
    early_ms: int | None = None
    next_ms: int | None = None
    lasts_ms: int = 0


@dataclass(frozen=True)
class Answered:
    """The answer of an async worker.

    Attributes:
        settled: In-flight tickets whose calls have ended, with their results, in the order in which the calls ended.
        lost: In-flight tickets that the async worker does not know.
        loop_lag_ms: Recent lag of the event loop. A function that blocks the loop delays all other calls.
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
        """Report the in-flight tickets of a task, send calls, and return results.

        Args:
            batch: Number of the micro-batch. Requests of a micro-batch before the latest one are refused.
            now_ms: The application's wall clock, ms since the epoch.
            in_flight: All in-flight tickets of the task, including those of ``calls``. None if the task has already reported them in
                this micro-batch; then no results are returned.

        Raises:
            AsyncWorkerError: If no async worker can be reached or started, a function cannot be pickled, or the request belongs to an
                earlier micro-batch.
        """
