"""Automatic workers: measures the load of a running application and adjusts the number of workers to it.

``millstream.core.runtime.auto_parallelism`` decides. A measurement of load takes at least a second, with the pauses between micro-batches,
and ends when the planner asks for the next micro-batch: no micro-batch runs then, and the reports of the last one and the end offsets of
the topics are known.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from py4j.protocol import Py4JError

from millstream.core.metrics.metric import total_of
from millstream.core.runtime.auto_parallelism import (
    AutoParallelism,
    Load,
    WorkersChange,
    allowed_worker_counts,
    decided,
    most_workers,
    with_cost,
)
from millstream.core.runtime.task_report import TaskReport
from millstream.drivers.spark.executor import measures
from millstream.edge.application.periodic_task import PeriodicTask
from millstream.edge.planning.worker_counts import busiest

_LOAD_S: Final = 1.0
"""Minimum duration of a measurement: alone, even a short micro-batch keeps its workers busy."""


class AutoWorkers:
    """The automatic number of workers. Used by threads of the control server and by its own thread, which applies the changes.

    Args:
        cores: Returns how many Spark tasks can run at the same time.
        apply: Changes the number of workers; returns after the query has restarted.
    """

    def __init__(
        self,
        workers: int,
        cores: Callable[[], int],
        tasks: Callable[[], int],
        apply: Callable[[WorkersChange], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state = AutoParallelism.of(workers)
        self._cores, self._tasks, self._apply, self._clock = cores, tasks, apply, clock
        self._most = most_workers(tasks(), cores())
        self._lock = threading.Lock()
        self._began = clock()
        self._seconds: dict[str, float] = defaultdict(float)
        self._change: WorkersChange | None = None
        self._changing_since: float | None = None
        self._changes = PeriodicTask(self._apply_decided_change, _LOAD_S)

    def close(self) -> None:
        self._changes.close()

    def record_batch(self, reports: Sequence[TaskReport]) -> None:
        """Record the reports of a micro-batch; the first micro-batch after a change completes the change."""
        now = self._clock()
        with self._lock:
            if self._changing_since is not None:
                self._state = with_cost(self._state, now - self._changing_since)
                self._changing_since, self._began = None, now
                return
            for report in reports:
                self._seconds[report.task] += total_of(report.measured, measures.SECONDS)

    def planned(self, waiting: int) -> bool:
        """End the measurement, as no micro-batch is running; return whether the next one must wait for a change."""
        now = self._clock()
        with self._lock:
            seconds = now - self._began
            if self._changing_since is not None or seconds < _LOAD_S:
                return False
            numbers = {*allowed_worker_counts(self._most), self._state.workers}
            load = Load(seconds, busiest(self._seconds, numbers), waiting)
            self._began = now
            self._seconds.clear()
            self._state, self._change = decided(self._state, load, self._most)
            if self._change is None:
                return False
            self._changing_since = now
        self._changes.wake()
        return True

    def _apply_decided_change(self) -> None:
        """Apply a decided change, and update the maximum from the number of cores."""
        with self._lock:
            change, self._change = self._change, None
        if change is not None:
            self._apply(change)
        with suppress(OSError, Py4JError):  # Spark has ended, so the application ends, too
            self._most = most_workers(self._tasks(), self._cores())
