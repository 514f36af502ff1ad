"""Punctuation: functions that are called when stream time or wall-clock time advances.

Due times are on a grid. It begins at 0 in stream time, so the first record causes the first call, and at the time of scheduling in
wall-clock time, or at ``start_time``. If several grid points have passed, the function is called once, with the current time. The next due
time is the first grid point after the current time (Kafka Streams: ``PunctuationQueue``, ``PunctuationSchedule``).

Due times are kept in the state. If the wall clock moves back, they return to the first grid point after it. Otherwise, no function would be
called until the clock has caught up, over restarts as well. A small move is ignored, so that no function is called twice, and a
``start_time`` stays.

A schedule outlives the micro-batch that created it. A schedule from ``init`` is identified by its node and its number in ``init``. A
schedule from ``process`` or a punctuator must call a method of its processor, and is identified by the name of the method.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from millstream.core.topology.processor import PunctuationType, Punctuator

NEVER: Final = (1 << 63) - 1
"""A due time that never comes."""
_STEP_MS: Final = 1_000
"""A clock that moves back by less is ignored, because successive planners may run on hosts with different clocks."""


@dataclass(slots=True)
class Schedule:
    """A schedule of a node. ``ProcessorContext.schedule`` returns it as ``Cancellable``.

    Attributes:
        ordinal: Its number among the schedules from the processor's ``init``; None for later schedules.
        method: Name of the processor's method; None for schedules from ``init``.
        due_ms: The next grid point, ms since the epoch.
        callback: Called with the current time, ms since the epoch.
        chosen: Whether the due time is a ``start_time``: the function has not been called yet.
    """

    node: str
    ordinal: int | None
    method: str | None
    kind: PunctuationType
    interval_ms: int
    due_ms: int
    callback: Punctuator
    cancelled: bool = False
    chosen: bool = False

    def cancel(self) -> None:
        self.cancelled = True

    def advance(self, now_ms: int) -> None:
        missed = max(now_ms - self.due_ms, 0) // self.interval_ms
        self.due_ms += (missed + 1) * self.interval_ms
        self.chosen = False

    def follow_clock(self, now_ms: int) -> None:
        """If the wall clock has moved back, set the due time to the first grid point after now."""
        ahead_ms = self.due_ms - now_ms
        if ahead_ms > self.interval_ms + max(self.interval_ms, _STEP_MS) and not self.chosen:
            self.due_ms -= (ahead_ms - 1) // self.interval_ms * self.interval_ms

    def to_data(self) -> Mapping[str, Any]:
        return {
            "node": self.node,
            "ordinal": self.ordinal,
            "method": self.method,
            "kind": self.kind.value,
            "interval_ms": self.interval_ms,
            "due_ms": self.due_ms,
            "cancelled": self.cancelled,
            "chosen": self.chosen,
        }


class Punctuations:
    """The schedules of a task. Owned by the task."""

    def __init__(self) -> None:
        self.schedules: list[Schedule] = []

    def follow_clock(self, now_ms: int) -> None:
        for schedule in self.schedules:
            if schedule.kind is PunctuationType.WALL_CLOCK_TIME:
                schedule.follow_clock(now_ms)

    def next_due(self, kind: PunctuationType) -> int | None:
        """Return the earliest due time of a kind, ms since the epoch; None without a schedule."""
        return min((s.due_ms for s in self.schedules if s.kind is kind and not s.cancelled), default=None)

    def first_due(self, kind: PunctuationType, now_ms: int) -> Schedule | None:
        due = (s for s in self.schedules if s.kind is kind and not s.cancelled and s.due_ms <= now_ms)
        return min(due, key=lambda schedule: schedule.due_ms, default=None)

    def add(self, schedule: Schedule) -> None:
        """Add a schedule, and remove cancelled schedules that were not created in ``init``."""
        self.schedules = [s for s in self.schedules if not s.cancelled or s.ordinal is not None]
        self.schedules.append(schedule)

    def restore(self, schedules: Iterable[Mapping[str, Any]], processors: Mapping[str, Any]) -> None:
        """Restore the due times of schedules from ``init``, and recreate later schedules.

        Args:
            schedules: The last return value of :meth:`to_data`.
        """
        made = {(schedule.node, schedule.ordinal): schedule for schedule in self.schedules}
        for data in schedules:
            node, ordinal, method, interval_ms = (
                data[k] for k in ("node", "ordinal", "method", "interval_ms")
            )
            kind, due_ms = PunctuationType(data["kind"]), data["due_ms"]
            schedule = made.get((node, ordinal))
            if schedule is not None and (schedule.kind, schedule.interval_ms) == (kind, interval_ms):
                schedule.due_ms = due_ms
                schedule.cancelled |= data["cancelled"]  # init may have cancelled it
                schedule.chosen = data.get("chosen", schedule.chosen)
            elif ordinal is None and hasattr(processors.get(node), method):
                callback = getattr(processors[node], method)
                chosen = data.get("chosen", True)  # unknown in older snapshots
                self.add(Schedule(node, None, method, kind, interval_ms, due_ms, callback, chosen=chosen))

    def to_data(self) -> tuple[Mapping[str, Any], ...]:
        """Return the state of all schedules for the snapshot, as JSON values."""
        return tuple(s.to_data() for s in self.schedules if not s.cancelled or s.ordinal is not None)
