"""Key ranges of a running application: their status."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping

from millstream.core.metrics.metric import total_of
from millstream.core.model.ids import TaskId, TopicPartition
from millstream.core.model.partitioning import KeyRange
from millstream.core.model.positions import Offsets, flat
from millstream.core.runtime.task_report import TaskReport
from millstream.core.topology.plan import Plan
from millstream.drivers.spark.executor import measures
from millstream.edge.status.application_status import RangeStatus

_RATE_WINDOW_S = 10.0


class Recent:
    """Sums counts over the last ten seconds."""

    def __init__(self) -> None:
        self._counts: deque[tuple[float, float]] = deque()

    def add(self, count: float) -> None:
        now = time.monotonic()
        self._counts.append((now, count))
        self._forget(now)  # nobody calls per_second for tasks without key ranges

    def per_second(self) -> float:
        now = time.monotonic()
        self._forget(now)
        if not self._counts:
            return 0.0
        return sum(count for _, count in self._counts) / max(now - self._counts[0][0], 1.0)

    def _forget(self, now: float) -> None:
        while self._counts and self._counts[0][0] < now - _RATE_WINDOW_S:
            self._counts.popleft()


class TaskWork:
    """The recent work and the progress of tasks. Guarded by the lock of its owner."""

    def __init__(self) -> None:
        self.positions: dict[str, dict[TopicPartition, int]] = {}
        self._records: dict[str, Recent] = {}
        self._seconds: dict[str, Recent] = {}

    def note(self, report: TaskReport) -> None:
        task = report.task
        if report.gone:
            self.forget(task)
            return
        self.positions.setdefault(task, {}).update(report.offsets)
        self._records.setdefault(task, Recent()).add(total_of(report.measured, measures.PROCESSED))
        self._seconds.setdefault(task, Recent()).add(total_of(report.measured, measures.SECONDS))

    def forget(self, task: str) -> None:
        for known in (self.positions, self._records, self._seconds):
            known.pop(task, None)

    def finished(self, reported: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return, for each reported partition, the offset before which all of its key ranges have finished."""
        found = dict(reported)
        for positions in self.positions.values():
            for partition in positions.keys() & found.keys():
                found[partition] = min(found[partition], positions[partition])
        return found

    def rates(self, task: str) -> tuple[float, float]:
        """Return a task's records per second, and the share of time during which it worked."""
        return self._records[task].per_second(), self._seconds[task].per_second()


def range_status(
    plan: Plan,
    reports: Mapping[str, TaskReport],
    work: TaskWork,
    ends: Offsets,
    shown: Callable[[KeyRange, Mapping[TopicPartition, int]], Mapping[TopicPartition, int]],
) -> dict[str, RangeStatus]:
    """Return the status of each key range.

    Args:
        shown: Returns the positions to show, from the offsets of a range.
    """
    found: dict[str, RangeStatus] = {}
    last = flat(ends)
    for task, report in sorted(reports.items(), key=lambda item: TaskId.parse(item[0])):
        task_id = TaskId.parse(task)
        subs = plan.subtopologies
        key_range = subs[task_id.subtopology].key_range(task_id) if task_id.subtopology < len(subs) else None
        if key_range is None:
            continue
        own = work.positions[task]
        found[task] = RangeStatus(
            *key_range,
            *key_range.bounds,
            {str(partition): position for partition, position in sorted(shown(key_range, own).items())},
            sum(max(last.get(partition, offset) - offset, 0) for partition, offset in own.items()),
            *work.rates(task),
            round(total_of(report.measured, measures.STORE_BYTES)),
            report.executor,
        )
    return found
