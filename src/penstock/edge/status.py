"""Status and metrics of a running application, from the reports of its tasks."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.core.model.ids import TaskId, TopicPartition
from penstock.core.ports import Offsets
from penstock.drivers.spark.worker.progress import RestoreProgress
from penstock.drivers.spark.worker.report import Report, offsets_of

_RATE_WINDOW_S = 10.0


@dataclass(frozen=True)
class Status:
    """What an application is doing.

    Attributes:
        state: ``starting``, ``running``, ``waiting`` (for the broker), ``stopping``, ``stopped`` or ``failed``.
        batch: Number of the last committed micro-batch, -1 before the first.
        lag: Records that are in the topics and have not been processed, per topic.
        records_per_s: Records read per second, over the last ten seconds.
        tasks: Tasks that have reported so far.
        error: Why the application failed.
        restoring: One line for each store of a task that is being restored.
        paused: Topics that are paused.
        throttled: Most records per second, per topic that has such a limit.
    """

    state: str
    batch: int
    lag: Mapping[str, int]
    records_per_s: float
    tasks: int
    error: str | None = None
    restoring: Sequence[str] = ()
    paused: Sequence[str] = ()
    throttled: Mapping[str, int] = field(default_factory=dict)


@dataclass
class Book:
    """Adds up reports. Written by the control threads, read by anyone; guarded by its lock."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    batch: int = -1
    ends: Offsets = field(default_factory=dict)
    positions: Offsets = field(default_factory=dict)
    waiting: bool = False
    totals: Counter[str] = field(default_factory=Counter)
    tasks: dict[str, Report] = field(default_factory=dict)
    first_record_ms: int | None = None
    last_batch_ms: int | None = None
    restores: dict[tuple[str, str], RestoreProgress] = field(default_factory=dict)
    _recent: deque[tuple[float, int]] = field(default_factory=deque)

    def planned(self, positions: Offsets, ends: Offsets | None, held_back_ms: int = 0) -> None:
        """Note what the planner sees; no ends means that no broker answers."""
        with self.lock:
            self.totals["held_back_ms"] += held_back_ms
            self.waiting = ends is None
            if ends is not None:
                self.ends = ends
            for topic, partitions in positions.items():
                for partition, at in partitions.items():
                    known = self.positions.setdefault(topic, {})
                    known.setdefault(partition, at)

    def restoring(self, progress: RestoreProgress) -> None:
        """Note how far the restore of a store is."""
        with self.lock:
            self.restores.pop((progress.task, progress.store), None)
            if not progress.finished:
                self.restores[progress.task, progress.store] = progress

    def committed(self, batch: int, reports: Sequence[Report]) -> dict[TopicPartition, int]:
        """Note a batch; give the offsets to commit."""
        offsets = offsets_of(reports)
        with self.lock:
            self.batch = batch
            self.restores.clear()  # those of an attempt that failed never end
            self.last_batch_ms = int(time.time() * 1000)  # noqa: TID251 - a metric
            for report in reports:
                self._add(report)
            for at, offset in offsets.items():
                self.positions.setdefault(at.topic, {})[at.partition] = offset
            self._recent.append((time.monotonic(), sum(report.read for report in reports)))
        return offsets

    def _add(self, report: Report) -> None:
        self.tasks[report.task] = report
        self.totals.update(read=report.read, read_bytes=report.read_bytes)
        self.totals.update(processed=report.processed, sent=report.sent, punctuated=report.punctuated)
        self.totals.update({f"dropped: {reason}": count for reason, count in report.dropped.items()})
        self.totals.update(dropped=sum(report.dropped.values()), restored=report.restored)
        self.totals.update(global_records=report.global_records)
        if report.first_record_ms is not None:
            self.first_record_ms = min(report.first_record_ms, self.first_record_ms or report.first_record_ms)

    def bytes_per_record(self) -> float | None:
        """Give the average size of the records read so far, None before the first."""
        with self.lock:
            return self.totals["read_bytes"] / self.totals["read"] if self.totals["read"] else None

    def due(self, now_ms: int, resting: Collection[int] = ()) -> list[str]:
        """Give the tasks that want to be woken by now, without those of sub-topologies that rest."""
        with self.lock:
            return sorted(
                task
                for task, report in self.tasks.items()
                if report.wake_at_ms is not None
                and report.wake_at_ms <= now_ms
                and TaskId.parse(task).subtopology not in resting
            )

    def status(self, state: str, error: str | None) -> Status:
        """Give the status."""
        with self.lock:
            lag = {
                topic: sum(
                    max(end - self.positions.get(topic, {}).get(p, 0), 0) for p, end in partitions.items()
                )
                for topic, partitions in self.ends.items()
            }
            shown = "waiting" if state == "running" and self.waiting else state
            lines = [progress.line() for _, progress in sorted(self.restores.items())]
            return Status(shown, self.batch, lag, self._rate(), len(self.tasks), error, lines)

    def metrics(self) -> dict[str, int]:
        """Give the totals since the start."""
        with self.lock:
            state = sum(report.state_bytes for report in self.tasks.values())
            return {
                "read_records": self.totals["read"],
                "read_bytes": self.totals["read_bytes"],
                "processed_records": self.totals["processed"],
                "sent_records": self.totals["sent"],
                "dropped_records": self.totals["dropped"],
                **{
                    name.replace(": ", "_records: "): n
                    for name, n in self.totals.items()
                    if name.startswith("dropped: ")
                },
                "punctuations": self.totals["punctuated"],
                "restored_changes": self.totals["restored"],
                "global_records": self.totals["global_records"],
                "throttled_ms": self.totals["held_back_ms"],
                "state_bytes": state,
                "batches": self.batch + 1,
                **({"first_record_ms": self.first_record_ms} if self.first_record_ms is not None else {}),
                **({"last_batch_ms": self.last_batch_ms} if self.last_batch_ms is not None else {}),
            }

    def _rate(self) -> float:
        now = time.monotonic()
        while self._recent and self._recent[0][0] < now - _RATE_WINDOW_S:
            self._recent.popleft()
        if not self._recent:
            return 0.0
        return sum(count for _, count in self._recent) / max(now - self._recent[0][0], 1.0)
