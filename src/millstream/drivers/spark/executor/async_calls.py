"""Calls: how a task uses the async worker beside its executor in a micro-batch.

Before its step, a task with in-flight calls collects their results. After the step, it sends the new calls. An async worker starts only
when a task has something to call. The task never waits for a call. While calls are running, the task asks for a wake-up: soon if the
calls are young, later if they have run for long, because their end is unknown. While no call is running (an endpoint is backing off, a
rate is limited, or a batch is filling), the task wakes up when the next call begins. While the calls that wait for the limit of running
calls will last for longer than a micro-batch, the task pauses instead: results are fetched and records are read up to half a second later.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final, TypeAlias

from millstream.core.asynchronous.async_worker import Answered, AsyncWorker, Work
from millstream.core.asynchronous.call import Call, Ticket
from millstream.core.engine.step_outcome import Outcome
from millstream.core.engine.task import Task
from millstream.core.ports import BatchId
from millstream.drivers.spark.clock import host_clock

AsyncWorkerOf: TypeAlias = Callable[[str], AsyncWorker]
"""Returns the async worker beside this executor for the calls of a checkpoint."""

_LATEST_MS = 1_000
_MOST_PACE_MS: Final = 500
_MARGIN_MS: Final = 500
"""For how long queued calls must last beyond a pause, at least: until the next micro-batch has sent new ones."""


class TaskCalls:
    """Collects the results of a task's calls before its step and sends new calls after it, in one micro-batch.

    Args:
        ahead_ms: How far the application's clock is ahead of this host's, in ms.
    """

    def __init__(self, task: Task, batch: BatchId, ahead_ms: int, async_workers: AsyncWorkerOf) -> None:
        self._task = task
        self._batch = batch.number
        self._ahead_ms = ahead_ms
        self._async_worker = async_workers(batch.checkpoint)
        in_flight = task.under_way()
        self._reported = bool(in_flight)
        self._answered = self._ask(in_flight) if in_flight else Answered()
        self.lost = len(self._answered.lost)
        """The number of calls that the async worker has lost."""

    def collect(self) -> None:
        for ticket, settled in self._answered.settled:
            self._task.done(ticket, settled)
        self._task.lost(self._answered.lost)

    def hand_over(self, outcome: Outcome) -> None:
        """Send the calls of the step. The async worker keeps their results until the next micro-batch, because this one may fail."""
        if outcome.issue:
            in_flight = None if self._reported else self._task.under_way()
            self._answered = self._ask(in_flight, outcome.issue)

    def paced_until_ms(self, now_ms: int) -> int | None:
        """Return until when the queued calls of each busy operator suffice, in ms since the epoch; None if they do not suffice.

        Until then, records are not read, because their calls could not begin earlier: micro-batches without a pause would only cost
        processor time.
        """
        pace_ms = min((_pace_ms(work) for work in self._answered.work.values() if work.running), default=0)
        return now_ms + pace_ms if pace_ms else None

    def wake_at_ms(self, now_ms: int) -> int | None:
        """Return when to look for results of in-flight calls, in ms since the epoch, or None if there are none."""
        if not self._task.under_way():
            return None
        times = [time for work in self._answered.work.values() for time in _times(work)]
        return now_ms + min(min(times, default=0), _LATEST_MS)

    @property
    def work(self) -> Mapping[str, Work]:
        return self._answered.work

    def per_call(self, operator: str) -> int:
        return self._task.calls[operator].batch_records

    @property
    def loop_lag_ms(self) -> int:
        """The recent delay of the async worker's event loop, in ms."""
        return self._answered.loop_lag_ms

    def _ask(self, in_flight: Collection[Ticket] | None, issue: Iterable[Call] = ()) -> Answered:
        now_ms = host_clock() + self._ahead_ms
        return self._async_worker.ask(
            str(self._task.id), self._batch, now_ms, in_flight, issue, options=self._task.calls
        )


def _times(work: Work) -> Iterator[int]:
    """Return when an operator may have results that are to be fetched, in ms from now."""
    if pace_ms := _pace_ms(work):
        yield pace_ms
        return
    if work.running:
        yield work.shortest_ms // 10
    elif work.next_ms is not None:
        yield work.next_ms
    if work.early_ms is not None:
        yield work.early_ms


def _pace_ms(work: Work) -> int:
    return max(min(work.lasts_ms - _MARGIN_MS, _MOST_PACE_MS), 0)
