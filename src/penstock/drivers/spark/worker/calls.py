"""Calls: what a task asks of the station beside its executor in a micro-batch.

Before its step it hears what has come of its calls, if there are any; behind it, it hands over the new ones. So a station is only
started for a task that has something to call. It never waits for a call. While calls
are under way, the task asks to be woken, soon if they are young, later if they have been running for long: nobody
can tell when they end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from penstock.core.asynchronous.call import Call
from penstock.core.asynchronous.station import Answered, Station
from penstock.core.engine.outcome import Outcome
from penstock.core.engine.task import Task
from penstock.core.ports import BatchId

Stations: TypeAlias = Callable[[str], Station]
"""Gives the station beside this executor, of the calls that belong to a checkpoint."""

_LATEST_MS = 1_000


class TaskCalls:
    """The calls of one task in one micro-batch.

    Args:
        task: The task, before its step.
        batch: The micro-batch.
        stations: Gives the station.
    """

    def __init__(self, task: Task, batch: BatchId, stations: Stations) -> None:
        self._task = task
        self._batch = batch.number
        self._station = stations(batch.checkpoint)
        self._held = frozenset(task.under_way())
        self._answered = self._ask() if self._held else Answered()
        self.lost = len(self._answered.lost)
        """How many calls the station did not have any more."""

    def collect(self) -> None:
        """Give the task what has come of its calls."""
        for ticket, settled in self._answered.settled:
            self._task.done(ticket, settled)
        self._task.lost(self._answered.lost)

    def hand_over(self, outcome: Outcome) -> None:
        """Hand over what the step has issued. What was answered is held until the next micro-batch: this one may fail."""
        if outcome.issue:
            self._held |= {call.ticket for call in outcome.issue}
            self._answered = self._ask(outcome.issue)

    def wake_at_ms(self, now_ms: int) -> int | None:
        """Give when to look for what has come of the calls that are under way; None if there are none."""
        if not self._task.under_way():
            return None
        ages = [work.shortest_ms for work in self._answered.work.values() if work.running]
        return now_ms + min(min(ages, default=0) // 10, _LATEST_MS)

    @property
    def running(self) -> int:
        """How many calls run."""
        return sum(work.running for work in self._answered.work.values())

    @property
    def longest_ms(self) -> int:
        """For how long the oldest of them has been running."""
        return max((work.longest_ms for work in self._answered.work.values()), default=0)

    @property
    def loop_lag_ms(self) -> int:
        """By how much the event loop of the station was late lately."""
        return self._answered.loop_lag_ms

    def _ask(self, issue: Iterable[Call] = ()) -> Answered:
        return self._station.ask(str(self._task.id), self._batch, self._held, issue, self._task.calls)
