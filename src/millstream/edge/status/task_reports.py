"""Sums up the reports of an application's tasks, for its status and its metrics."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from millstream.core.engine.records.readiness import Waiting
from millstream.core.engine.threaded_nodes import ThreadFigures, added
from millstream.core.fanout.reading import EpochRead
from millstream.core.metrics.metric import Numbers, kind_of, summed, total_of, without_labels
from millstream.core.model.ids import TaskId, TopicPartition
from millstream.core.model.positions import Offsets, flat
from millstream.core.runtime.messages import BufferedRecords
from millstream.core.runtime.origins import oldest_by_topic
from millstream.core.runtime.task_report import TaskReport, offsets_of
from millstream.core.topology.plan import Plan
from millstream.drivers.spark.executor import measures
from millstream.drivers.spark.executor.restore_progress import RestoreProgress
from millstream.edge.application.draining import Left
from millstream.edge.status.application_status import Status, thread_metrics, thread_status
from millstream.edge.status.async_status import (
    HotKeyStatuses,
    call_metrics,
    call_status,
    capacity_of,
    left_of,
)
from millstream.edge.status.key_range_status import Recent, TaskWork, range_status
from millstream.edge.status.split_partitions import by_stream, continuous, split_status
from millstream.edge.status.topic_ends import TopicEnds

_LOG_EVERY_S = 10.0


@dataclass
class TaskReports:
    """Sums up reports. Threads of the control server write it, any thread reads it, under its lock."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    plan: Plan | None = None
    batch: int = -1
    revision: int = 0
    ends: TopicEnds = field(default_factory=TopicEnds)
    positions: Offsets = field(default_factory=dict)
    commit_requested: bool = False
    """Whether a processor requested a commit in the last micro-batch."""
    totals: Counter[str] = field(default_factory=Counter)
    tasks: dict[str, TaskReport] = field(default_factory=dict)
    first_record_ms: int | None = None
    last_batch_ms: int | None = None
    restores: dict[tuple[str, str], RestoreProgress] = field(default_factory=dict)
    numbers: Numbers = field(default_factory=Numbers)
    """Counters and maxima since the start."""
    gauges: dict[str, Numbers] = field(default_factory=dict)
    """The gauges of each task's last report."""
    threads: dict[str, ThreadFigures] = field(default_factory=dict)
    hottest: dict[str, dict[str, HotKeyStatuses]] = field(default_factory=dict)
    finished: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    """Finished and read offsets of topics whose records are finished later, after Spark's shuffle."""
    times: Offsets = field(default_factory=dict)
    """Partition times from readers that extract timestamps, ms since the epoch."""
    epochs: tuple[EpochRead, ...] = ()
    """The epochs of split partitions that are being read."""
    _recent: Recent = field(default_factory=Recent)
    _work: TaskWork = field(default_factory=TaskWork)
    _recent_enforced: Recent = field(default_factory=Recent)
    _logged: dict[str, float] = field(default_factory=dict)
    _planned_at: float = field(default_factory=time.monotonic)
    _batch_s: float | None = None
    _executors: dict[str, str] = field(default_factory=dict)
    _asked_ms: int = 0
    """Time of the last request for due tasks, ms since the epoch by the application's clock."""
    _planned_for: Plan | None = None
    _complete_for: Plan | None = None
    """The plan whose tasks have all reported."""

    def planned(self, positions: Offsets, ends: Offsets | None, held_back_ms: int = 0) -> None:
        """Record the planner's view; ``ends`` is None if no broker answers."""
        with self.lock:
            self.revision += 1
            self._planned_at = time.monotonic()
            self._planned_for = self.plan
            self.totals["held_back_ms"] += held_back_ms
            self.ends.note(ends)
            for topic, partitions in positions.items():
                for partition, position in partitions.items():
                    known = self.positions.setdefault(topic, {})
                    known.setdefault(partition, position)

    def set_epochs(self, epochs: tuple[EpochRead, ...]) -> None:
        with self.lock:
            self.revision += 1
            self.epochs = epochs

    def replan(self, plan: Plan, tasks: Collection[TaskId]) -> None:
        """Set the plan of the next query, and forget tasks whose partitions no longer exist, or are divided into other key ranges.

        Tasks of sub-topologies that are gone stay: they still run once, and report that they are gone.
        """
        present = {sub.id: sub.ranges for sub in plan.subtopologies if sub.nodes}
        with self.lock:
            self.revision += 1
            before = {} if self.plan is None else {sub.id: sub.ranges for sub in self.plan.subtopologies}
            self.plan = plan
            for task in map(TaskId.parse, [*self.tasks]):
                ranges = present.get(task.subtopology)
                if ranges is not None and (task not in tasks or before.get(task.subtopology) != ranges):
                    self._forget(str(task))

    def _forget(self, task: str) -> None:
        for known in (self.tasks, self.gauges, self.threads, self.hottest, self._executors):
            known.pop(task, None)
        self._work.forget(task)

    def restoring(self, progress: RestoreProgress) -> None:
        with self.lock:
            self.restores.pop((progress.task, progress.store), None)
            if not progress.finished:
                self.restores[progress.task, progress.store] = progress

    def record_batch(self, batch: int, reports: Sequence[TaskReport]) -> dict[TopicPartition, int]:
        """Record the reports of a micro-batch; return the offsets to commit."""
        offsets = offsets_of(reports)
        with self.lock:
            self.revision += 1
            self.batch = batch
            self._batch_s = time.monotonic() - self._planned_at
            self.commit_requested = any(report.commit_requested for report in reports)
            self.restores.clear()  # a failed attempt never reports their end
            self.last_batch_ms = int(time.time() * 1000)  # noqa: TID251 - a metric
            for report in reports:
                self._add(report)
            if self._planned_for is self.plan:  # else Spark repeats the last micro-batch of the run before
                self._complete_for = self.plan
            if self.plan is not None and self.plan.is_divided:
                offsets = self._work.finished(offsets)
            for partition, offset in offsets.items():
                self.positions.setdefault(partition.topic, {})[partition.partition] = offset
            self._recent.add(sum(total_of(report.measured, measures.READ) for report in reports))
            self._recent_enforced.add(sum(total_of(report.measured, measures.ENFORCED) for report in reports))
        return offsets

    def oldest(self, behind: Mapping[str, Collection[str]]) -> dict[str, int]:
        """Return the oldest micro-batch that has an in-flight record, by topic before Spark's shuffle.

        Args:
            behind: The topics before each repartition (see ``millstream.core.runtime.origins``).
        """
        with self.lock:
            unfinished: dict[TopicPartition, int] = {}
            for report in self.tasks.values():
                for partition, low in report.shuffled.items():
                    unfinished[partition] = min(low, unfinished.get(partition, low))
            return oldest_by_topic(unfinished, behind)

    def finish(self, offsets: Offsets, read: Offsets) -> dict[TopicPartition, int]:
        """Record the finished offsets of topics before Spark's shuffle; return the changed ones, which must be committed.

        Offsets never decrease, because a finished record stays finished.
        """
        news: dict[TopicPartition, int] = {}
        with self.lock:
            for partition, offset in flat(offsets).items():
                until = read[partition.topic][partition.partition]
                before = self.finished.get(partition, (0, 0))
                again = before[0] > until  # the topic was recreated
                now = (offset if again else max(offset, before[0]), until)
                if now != before:
                    self.finished[partition] = now
                    news[partition] = self.positions.setdefault(partition.topic, {})[partition.partition] = (
                        now[0]
                    )
        return news

    def _measure(self, report: TaskReport) -> None:
        # rate() misses the first increment of a counter that does not exist before it.
        if report.task not in self.tasks:
            self.numbers.take((metric.name, (report.task,), 0) for metric in measures.OF_EACH_TASK)
        rows = by_stream(self.plan, report.measured)
        self.numbers.take(row for row in rows if kind_of(row[0]) != "gauge")
        self.gauges[report.task] = now = Numbers()
        now.take(row for row in rows if kind_of(row[0]) == "gauge")
        if report.gone:
            del self.gauges[report.task]

    def _add(self, report: TaskReport) -> None:
        self._measure(report)
        if report.gone:
            self.tasks.pop(report.task, None)
        else:
            self.tasks[report.task] = report
        self._work.note(report)
        for (topic, partition), ms in report.times.items():
            self.times.setdefault(topic, {})[partition] = ms
        self._note_executor(report)
        if (calls := report.calls) is not None:
            self.totals.update(settled=calls.settled, retries=calls.retries, ignored=calls.ignored)
            self.totals.update(call_dead_letters=calls.dead_letters, lost=calls.lost)
            for hottest in calls.hottest:
                self.hottest.setdefault(report.task, {}).setdefault(hottest.operator, HotKeyStatuses()).note(
                    hottest
                )
        if (threads := added([self.threads.get(report.task), report.threads])) is not None:
            self.threads[report.task] = threads
        if report.first_record_ms is not None:
            self.first_record_ms = min(report.first_record_ms, self.first_record_ms or report.first_record_ms)

    def _note_executor(self, report: TaskReport) -> None:
        before = self._executors.get(report.task, report.executor)
        if report.gone:
            self._executors.pop(report.task, None)
        elif report.executor:
            self.totals.update(task_runs=1, moved_tasks=int(before != report.executor))
            self._executors[report.task] = report.executor

    def bytes_per_record(self) -> float | None:
        """Return the average size of the records read so far, bytes; None before the first."""
        with self.lock:
            read = self.numbers.total(measures.READ)
            return self.numbers.total(measures.READ_BYTES) / read if read else None

    def due(self, now_ms: int, resting: Collection[int] = ()) -> list[str]:
        """Return the tasks to wake. Tasks of resting sub-topologies wake only for their in-flight records.

        If the clock goes back, all tasks that wait for a time wake, because the new clock may shorten their wait.
        """
        with self.lock:
            if now_ms < self._asked_ms:
                self.tasks = {task: report.waking_at(now_ms) for task, report in self.tasks.items()}
            self._asked_ms = now_ms
            return sorted(
                task
                for task, report in self.tasks.items()
                if (due_ms := report.wakes_at(rests=TaskId.parse(task).subtopology in resting)) is not None
                and due_ms <= now_ms
            )

    def knows(self, topic: str) -> bool:
        """Return whether a topic is read from the broker, and therefore has group offsets."""
        return topic in self.ends.known or topic in self.positions

    def buffered_inputs(self, in_front: Mapping[int, Collection[str]], now_ms: int) -> BufferedRecords:
        """Return the records that tasks have buffered, and the tasks' remaining capacity at a time of the application's clock.

        Args:
            in_front: Per sub-topology number, the topics that reach it through Spark's shuffle.
        """
        with self.lock:
            buffered: dict[TopicPartition, tuple[int, int, int]] = {}
            for report in self.tasks.values():
                for topic, partition, _, records, size, newest in report.buffered:
                    topic_partition = TopicPartition(topic, partition)
                    known = buffered.get(topic_partition, (0, 0, -1))
                    buffered[topic_partition] = (known[0] + records, known[1] + size, max(known[2], newest))
            waits = [r.idle_until_ms for r in self.tasks.values() if r.idle_until_ms is not None]
            given_up = {topic_partition for r in self.tasks.values() for topic_partition in r.given_up}
            return BufferedRecords(
                buffered,
                frozenset(given_up),
                min(waits, default=None),
                capacity_of(self.tasks, in_front, self.positions, now_ms),
            )

    def in_flight_left(self, until_ms: int) -> Left:
        """Return the number of in-flight records, and how many of them may finish by a time."""
        with self.lock:
            return left_of((r.calls for r in self.tasks.values() if r.calls is not None), until_ms)

    def _waiting_tasks(self) -> dict[str, Waiting]:
        return {task: report.waiting for task, report in self.tasks.items() if report.waiting is not None}

    def _buffered(self) -> Counter[str]:
        buffered: Counter[str] = Counter()
        for report in self.tasks.values():
            for topic, _, _, records, *_ in report.buffered:
                buffered[self._stream(topic)] += records
        return buffered

    def waiting_lines(self) -> list[str]:
        """Return log lines about waiting tasks, at most one per task every ten seconds."""
        with self.lock:
            waits = self._waiting_tasks()
            self._logged = {task: logged_at for task, logged_at in self._logged.items() if task in waits}
            now = time.monotonic()
            due = [task for task in waits if now - self._logged.setdefault(task, now) >= _LOG_EVERY_S]
            self._logged.update(dict.fromkeys(due, now))
            return [f"task {task} {_waits(waits[task])}" for task in sorted(due)]

    def status(self, state: str, error: str | None) -> Status:
        with self.lock:
            lines = [progress.line() for _, progress in sorted(self.restores.items())]
            shown, ends = partial(continuous, self.epochs, flat(self.positions)), self.ends.known
            return Status(
                state,
                self.batch,
                self.ends.lag(self.positions, self._stream),
                self._recent.per_second(),
                len(self.tasks),
                error,
                lines,
                {task: _waits(waiting) for task, waiting in sorted(self._waiting_tasks().items())},
                _counts(self.numbers.by(measures.ENFORCED, 0)),
                self._recent_enforced.per_second(),
                dict(sorted(self._buffered().items())),
                dropped=_counts(self.numbers.by(measures.DROPPED, 0)),
                calls={
                    task: call_status(r.calls, self.hottest.get(task, {}))
                    for task, r in sorted(self.tasks.items())
                    if r.calls is not None
                },
                threads={task: thread_status(r) for task, r in sorted(self.threads.items())},
                batch_s=self._batch_s,
                placed=dict(sorted(self._executors.items())),
                ranges=range_status(self.plan, self.tasks, self._work, ends, shown) if self.plan else {},
                splits=split_status(self.plan, self.epochs, ends, self.positions) if self.plan else {},
            )

    def committed_of(
        self, subtopology: int, topics: Collection[str]
    ) -> tuple[int, Mapping[TaskId, TaskReport], Offsets, int]:
        """Return what the tasks of a sub-topology have committed.

        Returns:
            The micro-batch, the last reports, and the committable offsets and the lag of these topics.
        """
        with self.lock:
            reports = {TaskId.parse(task): report for task, report in self.tasks.items()}
            own = {
                task: report for task, report in sorted(reports.items()) if task.subtopology == subtopology
            }
            offsets = {topic: dict(self.positions[topic]) for topic in topics if topic in self.positions}
            lag = self.ends.lag(self.positions, self._stream)
            return self.batch, own, offsets, sum(lag[topic] for topic in lag.keys() & topics)

    def lag_unknown_s(self) -> float:
        """Return for how many seconds the lag has not been known because no broker answers; 0 while one does."""
        with self.lock:
            return self.ends.unknown_s()

    def are_complete(self, plan: Plan) -> bool:
        """Return whether all tasks of a plan have reported.

        The first micro-batch that a run plans starts all tasks. Before it, Spark may repeat a micro-batch of the run before, which starts
        only tasks that have records. Reports of an edited plan are used until the first micro-batch of the new plan, but only if both
        plans keep the same stores in the same tasks.
        """
        with self.lock:
            known = self._complete_for
        return known is plan or (known is not None and _stores_and_ranges(known) == _stores_and_ranges(plan))

    def of_tasks(self) -> Mapping[str, TaskReport]:
        with self.lock:
            return dict(self.tasks)

    def _stream(self, topic: str) -> str:
        return topic if self.plan is None else self.plan.stream_of(topic)

    def metrics(self) -> dict[str, int]:
        with self.lock:
            return {
                **without_labels(measures.TASK_METRICS, summed([self.numbers, *self.gauges.values()])),
                "task_runs": self.totals["task_runs"],
                "moved_tasks": self.totals["moved_tasks"],
                "throttled_ms": self.totals["held_back_ms"],
                "batches": self.batch + 1,
                **call_metrics(
                    [r.calls for r in self.tasks.values() if r.calls is not None],
                    self.totals,
                    [keys for of_task in self.hottest.values() for keys in of_task.values()],
                ),
                **thread_metrics(self.threads.values()),
                **({"first_record_ms": self.first_record_ms} if self.first_record_ms is not None else {}),
                **({"last_batch_ms": self.last_batch_ms} if self.last_batch_ms is not None else {}),
            }

    def measured(self) -> Numbers:
        with self.lock:
            found = summed([self.numbers, *self.gauges.values()])
            restores = self.restores.items()
            found.take((measures.RESTORING.name, of, max(now.total - now.done, 0)) for of, now in restores)
            return found


def _stores_and_ranges(plan: Plan) -> tuple[Mapping[str, str], tuple[int, ...]]:
    """Return which stores the tasks of a plan keep, and into how many tasks a partition is divided."""
    return plan.store_fingerprints(), tuple(sub.ranges for sub in plan.subtopologies if sub.stores)


def _counts(numbers: Mapping[str, float]) -> dict[str, int]:
    return {name: round(count) for name, count in numbers.items() if count}


def _waits(waiting: Waiting) -> str:
    seconds = max(time.time() - waiting.since_ms / 1000, 0.0)  # noqa: TID251 - shown to people
    return f"has waited for {seconds:.1f} s: it {waiting.line()}"
