"""The task host: one streaming operator that runs every task of an application.

Spark loads the committed version of a task's state and discards what failed attempts wrote. A repeated micro-batch therefore begins
exactly like its first attempt, and the host needs no rollback.

The run of a task in a micro-batch:

1. It loads the manifest from Spark's state and brings the local copies up to it.
2. It feeds the chunk rows and the facts about its inputs to the task, and runs one step.
3. It writes the changes to Spark's state: one segment per store and key group, and the manifest.
4. It parks the same changes beside the local copies. The next micro-batch applies them, once they are known to be committed.
5. It sends the results of the task at least once, or leaves this to the sink.
"""

from __future__ import annotations

import gc
import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar
from uuid import uuid4

from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from millstream.core.engine.records.queue import MERGED
from millstream.core.engine.records.readiness import NEVER_WAIT, InputFacts
from millstream.core.engine.step_outcome import Outcome, Snapshot
from millstream.core.engine.task import Task
from millstream.core.model.errors import CopyMovedError, DamagedCopyError
from millstream.core.model.ids import TaskId, TopicPartition
from millstream.core.model.positions import Offsets, flat
from millstream.core.model.record import Records
from millstream.core.ports import ByteStores
from millstream.core.runtime.batch_plan import Initialization
from millstream.core.runtime.partition_times import decode_times, timed_topics
from millstream.core.runtime.remaining_inputs import TaskInput
from millstream.core.runtime.task_report import TaskReport
from millstream.core.state.segments.log import Manifest
from millstream.core.topology.plan import SubTopology
from millstream.drivers.spark import wire
from millstream.drivers.spark.crossing import crossing, paused_gc
from millstream.drivers.spark.executor.async_calls import TaskCalls
from millstream.drivers.spark.executor.changelogs import Changelogs
from millstream.drivers.spark.executor.committed_state import CommittedState
from millstream.drivers.spark.executor.copies import TaskCopies
from millstream.drivers.spark.executor.dead_letters import sending_dead_letters
from millstream.drivers.spark.executor.global_restore import GlobalRestoreCounts
from millstream.drivers.spark.executor.global_stores import GlobalStores, GlobalStoresSpec
from millstream.drivers.spark.executor.host_spec import HostSpec
from millstream.drivers.spark.executor.measures import StepFacts
from millstream.drivers.spark.executor.report_building import call_report, report_of
from millstream.drivers.spark.executor.restore import RestoreSettings
from millstream.drivers.spark.executor.restore_progress import Relay
from millstream.drivers.spark.executor.statelog import StateLog
from millstream.drivers.spark.executor.task_messages import decode_global_ends, decode_taps
from millstream.drivers.spark.executor_id import this_executor
from millstream.drivers.spark.logs import WorkerLogs, running_task

log = logging.getLogger("millstream.task")

M = TypeVar("M")

_HEAD = StructType([StructField("manifest", BinaryType(), nullable=False)])
_SEQUENCE = StructType([StructField("sequence", LongType(), nullable=False)])
_SEGMENT = StructType([StructField("segment", BinaryType(), nullable=False)])

_SPECS: dict[bytes, HostSpec] = {}


class TaskHost(StatefulProcessor):
    """Runs the tasks whose rows Spark passes to it. Spark creates one host per Spark task; caches are in the module."""

    def __init__(self, spec: HostSpec) -> None:
        self._pickled, self._logs = cloudpickle.dumps(spec), WorkerLogs.of_this_process()
        self._snapshots: list[tuple[str, Records]] = []

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state: the manifest, and the segments by number."""
        self._head = handle.getValueState("head", _HEAD)
        self._segments = handle.getMapState("log", _SEQUENCE, _SEGMENT)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        with crossing(), paused_gc():
            ordered = sorted(rows, key=lambda r: (r.kind, r.topic, r.partition, r.lane, r.start))
            for row in ordered:
                if row.kind in (wire.SEND, wire.REPORT):
                    yield Row(kind=row.kind, topic=row.topic, batch=row.batch, payload=bytes(row.payload))
            work = [row for row in ordered if row.kind not in (wire.SEND, wire.REPORT)]
            if work:
                yield from TaskRun(self._spec, work, self._head, self._segments, self._snapshots).run()

    @cached_property
    def _spec(self) -> HostSpec:
        # Once per Spark task, not once per call: the spec grows with the partitions, and Spark calls the host for each partition.
        self._logs.apply()
        return _spec(self._pickled)

    def close(self) -> None:
        """Wait for the acknowledgements of everything the tasks have sent. Spark commits their state afterwards.

        The snapshots for a rebuild are sent last: without the results and changes before them, a rebuilt task would take records for
        processed, or for late, that nobody has.
        """
        has_run = "_spec" in vars(self)
        if has_run and (sender := self._spec.topology.sender) is not None:
            with crossing():
                sender.flush()
                if self._snapshots:
                    for topic, records in self._snapshots:
                        sender.publish(topic, records)
                    sender.flush()


def _spec(pickled: bytes) -> HostSpec:
    identity = hashlib.sha256(pickled).digest()
    if identity not in _SPECS:
        _SPECS.clear()
        _SPECS[identity] = cloudpickle.loads(pickled)
    return _SPECS[identity]


class TaskRun:
    """Runs one task in one micro-batch.

    Args:
        snapshots: Receives the snapshots that the host sends once everything else is acknowledged, at least once.
    """

    def __init__(
        self, spec: HostSpec, rows: list[Row], head: Any, segments: Any, snapshots: list[tuple[str, Records]]
    ) -> None:
        self._spec = spec
        self._rows = rows
        self._snapshots = snapshots
        self._id = TaskId.parse(rows[0].task)
        running_task(str(self._id))
        self._batch: str = rows[0].batch
        self._now_ms: int = rows[0].now_ms
        self._ahead_ms: int = rows[0].ahead_ms
        self._initialization = self._message(wire.TICK, Initialization.decode)
        self._listener = Relay(spec.listener)
        restores = RestoreSettings(spec.copies.memory_per_engine, spec.copies.directory, self._listener)
        self._log = StateLog(segments, self._id, restores)
        self._committed = CommittedState(
            spec, self._id, self._log, head, self._initialization, self._listener
        )
        self._read: dict[str, tuple[int, int]] = {}
        self._global_counts = GlobalRestoreCounts()
        self._global_ends: Offsets = {}
        self._began = time.perf_counter()
        self._calls: TaskCalls | None = None

    def run(self) -> Iterator[Row]:
        plan = self._spec.topology.plan
        sub = plan.subtopologies[self._id.subtopology]
        if not sub.nodes or plan.runs_before_shuffle(sub):  # the part before the shuffle has already run
            yield from map(self._row, self._reports_without_nodes(sub))
            return
        changelogs = Changelogs(plan, sub, self._id)
        before = self._committed.load(sub, changelogs)
        copies = TaskCopies(self._spec.copies, str(self._id), sub.stores)
        restored, task, outcome = self._stepped_over(copies, before.manifest, sub, before.snapshot)
        content = self._committed.content(changelogs, before, copies, outcome.dropped_slices, self._now_ms)
        yield from self._sends(content)
        manifest = self._log.write(before.manifest, outcome.changes, copies, outcome.dropped_slices)
        memory = self._committed.memory(sub, changelogs, task, outcome)
        changed = self._committed.store(before, manifest, memory)
        yield from self._sends(outcome.sends)
        if changed or self._initialization:
            yield from self._sends(changelogs.publish(outcome.changes, memory, self._now_ms))
        facts = StepFacts(
            str(self._id), outcome, self._read, self._global_counts, before.removed, restored, manifest
        )
        yield self._report(replace(facts, stores=memory.store_memories()))

    def _reports_without_nodes(self, sub: SubTopology) -> Iterator[TaskReport]:
        """Return the reports of a task that runs no nodes here."""
        if not timed_topics(sub):
            return self._committed.forget()
        reached = [decode_times(bytes(row.payload)) for row in self._rows if row.kind == wire.TIMES]
        return self._committed.keep_times(sub, reached)

    def _message(self, kind: int, decode: Callable[[bytes], M]) -> M | None:
        """Return the last message of a kind among the rows, or None if there is none."""
        payloads = [bytes(row.payload) for row in self._rows if row.kind == kind and row.payload]
        return decode(payloads[-1]) if payloads else None

    def _report(self, step: StepFacts) -> Row:
        report = report_of(
            replace(step, seconds=time.perf_counter() - self._began),
            calls=call_report(step.outcome, self._calls, self._now_ms),
            undelivered=self._listener.undelivered,
            first_record_ms=self._now_ms if self._read else None,
            executor=this_executor(),
            global_offsets=flat(self._global_ends),
        )
        return self._row(report)

    def _row(self, report: TaskReport) -> Row:
        return Row(kind=wire.REPORT, topic="", batch=self._batch, payload=report.encode())

    def _stepped_over(
        self, copies: TaskCopies, manifest: Manifest, sub: SubTopology, snapshot: Snapshot | None
    ) -> tuple[int, Task, Outcome]:
        """Run one step over the local copies. Repeat it once if a copy is damaged or another attempt has written it."""
        try:
            return self._step_over_copies(copies, manifest, sub, snapshot)
        except (DamagedCopyError, CopyMovedError) as error:
            log.warning("restarting the micro-batch in task %s: %s", self._id, error)
        gc.collect()  # the traceback may hold files that can be open only once
        self._read = {}
        return self._step_over_copies(copies, manifest, sub, snapshot)

    def _step_over_copies(
        self, copies: TaskCopies, manifest: Manifest, sub: SubTopology, snapshot: Snapshot | None
    ) -> tuple[int, Task, Outcome]:
        """Run one step over the local copies, and return the number of restored changes, the task and the outcome.

        Raises:
            CopyMovedError: If another attempt has written a copy. The step does not count.
            DamagedCopyError: If a copy is damaged. The step does not count.
        """
        try:
            restored = copies.restore(self._log, manifest)
            return restored, *self._step(sub, copies.open_view(), snapshot)
        finally:
            copies.close_view()

    def _sends(self, sends: Iterable[tuple[str, Records]]) -> Iterator[Row]:
        sender = self._spec.topology.sender
        for topic, records in sends:
            if topic in self._spec.topology.plan.repartition_topics:
                records.writer = str(self._id)
            if sender is None:
                yield Row(kind=wire.SEND, topic=topic, batch=self._batch, payload=wire.encode(records))
            elif topic == self._spec.topology.plan.commits_topic:
                self._snapshots.append((topic, records))
            else:
                sender.publish(topic, records)

    def _step(self, sub: SubTopology, view: ByteStores, snapshot: Snapshot | None) -> tuple[Task, Outcome]:
        """Run one step, with the global stores as the micro-batch sees them."""
        if not sub.global_stores:
            return self._run_task(sub, view, snapshot)
        spec = self._spec
        assert spec.global_topics is not None
        known = GlobalStoresSpec(spec.topology, spec.copies, spec.global_topics, self._listener)
        planned = self._message(wire.GLOBAL, decode_global_ends)
        assert planned is not None
        self._global_ends = planned
        with GlobalStores(known, str(self._id), planned, self._now_ms) as global_stores:
            self._global_counts = global_stores.counts
            return self._run_task(sub, view, snapshot, global_stores)

    def _run_task(
        self,
        sub: SubTopology,
        view: ByteStores,
        snapshot: Snapshot | None,
        global_stores: ByteStores | None = None,
    ) -> tuple[Task, Outcome]:
        topology = self._spec.topology
        task = Task(
            sub,
            self._id,
            application_id=topology.plan.application_id,
            stores=view,
            global_stores=global_stores,
            policies=topology.policies,
            partitions_of=topology.partitions_of,
            most_bytes_of=topology.most_bytes_of,
            max_task_idle_ms=self._spec.max_task_idle_ms,
            cache_bytes=self._spec.topology.cache_bytes,
            app_config=topology.app_config,
            snapshot=snapshot,
            epoch=uuid4().hex[:12],
            repeats_sends=self._spec.repeats_sends,
            threads=topology.threads(self._id),
            taps=self._message(wire.TAPS, decode_taps) or (),
        )
        try:
            task.init(self._now_ms)
            self._inform(task)
            with sending_dead_letters(topology.dead_letters):
                self._feed(task)
                return task, self._with_calls(task) if task.calls else self._step_of(task)
        finally:
            task.close()

    def _with_calls(self, task: Task) -> Outcome:
        assert self._spec.async_workers is not None
        self._calls = calls = TaskCalls(
            task, wire.batch_of(self._batch), self._ahead_ms, self._spec.async_workers
        )
        calls.collect()
        outcome = self._step_of(task)
        calls.hand_over(outcome)
        return outcome

    def _step_of(self, task: Task) -> Outcome:
        """Run the step. Only in a micro-batch that starts all tasks may the task's sub-topology be paused."""
        begin = self._initialization
        return task.step(self._now_ms, rests=begin is not None and self._id.subtopology in begin.resting)

    def _inform(self, task: Task) -> None:
        inputs, message = self._spec.inputs.get(self._id), self._message(wire.INPUTS, TaskInput.decode)
        if inputs is None:
            return
        if message is not None:
            task.inform(message.facts(inputs))
        elif self._spec.max_task_idle_ms == NEVER_WAIT:
            task.inform(InputFacts(tuple(each.partition for each in inputs)))

    def _feed(self, task: Task) -> None:
        """Feed the task. Empty ranges are included, because they advance its position."""
        for row in self._rows:
            if row.kind == wire.RECORDS:
                records = wire.decode(row.payload) if row.payload else Records()
                if records and row.lane in ("", MERGED):
                    count, size = self._read.get(row.topic, (0, 0))
                    self._read[row.topic] = count + records.represented(), size + records.byte_count()
                task.feed(TopicPartition(row.topic, row.partition), records, row.end, lane=row.lane)
