"""The run of one task in one micro-batch.

1. It loads the manifest from Spark's state and brings the local copies up to it.
2. It feeds the chunk rows and the facts about its inputs to the task, and runs one step.
3. It writes the changes to Spark's state: one segment per store and key group, and the manifest.
4. It parks the same changes beside the local copies. The next micro-batch applies them, once they are known to be committed.
5. It sends the results of the task at least once, or leaves this to the sink.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4

from pyspark.sql import Row

from millstream.core.engine.records.queue import MERGED, QueueId
from millstream.core.engine.records.readiness import NEVER_WAIT, InputFacts
from millstream.core.engine.step_outcome import Outcome, Snapshot
from millstream.core.engine.task import Task
from millstream.core.model.errors import CopyMovedError, DamagedCopyError
from millstream.core.model.ids import TaskId, TopicPartition
from millstream.core.model.positions import Offsets, flat
from millstream.core.model.record import Records
from millstream.core.ports import ByteStores
from millstream.core.runtime.batch_plan import Initialization
from millstream.core.runtime.partition_times import decode_times, latest, timed_topics
from millstream.core.runtime.remaining_inputs import TaskInput
from millstream.core.runtime.task_report import TaskReport
from millstream.core.state.segments.log import (
    Manifest,
    decode_manifest,
    encode_manifest,
    rehomed,
    with_renamed_stores,
)
from millstream.core.topology.evolution import check_stores
from millstream.core.topology.plan import SubTopology
from millstream.drivers.spark import wire
from millstream.drivers.spark.executor.async_calls import TaskCalls
from millstream.drivers.spark.executor.changelogs import Changelogs
from millstream.drivers.spark.executor.copies import TaskCopies
from millstream.drivers.spark.executor.dead_letters import sending_dead_letters
from millstream.drivers.spark.executor.global_restore import GlobalRestoreCounts
from millstream.drivers.spark.executor.global_stores import GlobalStores, GlobalStoresSpec
from millstream.drivers.spark.executor.host_spec import HostSpec
from millstream.drivers.spark.executor.measures import StepFacts
from millstream.drivers.spark.executor.report_building import call_report, report_of, report_of_gone
from millstream.drivers.spark.executor.restore import RestoreSettings
from millstream.drivers.spark.executor.restore_progress import Relay
from millstream.drivers.spark.executor.snapshots import (
    TaskMemory,
    snapshot_to_json,
    unfinished_by_store,
)
from millstream.drivers.spark.executor.statelog import StateLog
from millstream.drivers.spark.executor.task_messages import decode_global_ends, decode_taps
from millstream.drivers.spark.executor_id import this_executor
from millstream.drivers.spark.logs import running_task
from millstream.drivers.spark.share_files import read_share

log = logging.getLogger("millstream.task")

M = TypeVar("M")


class _CommittedStores(NamedTuple):
    """The state of a task before the micro-batch.

    Attributes:
        encoded: The stored manifest. None before the first micro-batch of the task.
        manifest: The log of the stores, with new names and without removed stores.
        removed: In-flight records of removed operators, by store.
    """

    encoded: bytes | None
    manifest: Manifest
    memory: TaskMemory
    removed: Mapping[str, int]


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
        self._head = head
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
        self._read: dict[str, tuple[int, int]] = {}
        self._global_counts = GlobalRestoreCounts()
        self._global_ends: Offsets = {}
        self._began = time.perf_counter()
        self._calls: TaskCalls | None = None

    def run(self) -> Iterator[Row]:
        plan = self._spec.topology.plan
        sub = plan.subtopologies[self._id.subtopology]
        if not sub.nodes or plan.runs_before_shuffle(sub):  # the part before the shuffle has already run
            yield from self._keep_times(sub) if timed_topics(sub) else self._forget()
            return
        changelogs = Changelogs(plan, sub, self._id)
        before = self._load_committed(sub, changelogs)
        copies = TaskCopies(self._spec.copies, str(self._id), sub.stores)
        restored, task, outcome = self._stepped_over(copies, before.manifest, sub, self._snapshot(before))
        yield from self._sends(self._content(changelogs, before, copies, outcome.dropped_slices))
        manifest = self._log.write(before.manifest, outcome.changes, copies, outcome.dropped_slices)
        memory = self._memory(sub, changelogs, task, outcome)
        encoded = encode_manifest(manifest, memory.to_json())
        changed = encoded != before.encoded
        if changed:
            self._head.update((encoded,))
        yield from self._sends(outcome.sends)
        if changed or self._initialization:
            yield from self._sends(changelogs.publish(outcome.changes, memory, self._now_ms))
        facts = StepFacts(
            str(self._id), outcome, self._read, self._global_counts, before.removed, restored, manifest
        )
        yield self._report(replace(facts, stores=memory.store_memories()))

    def _load_committed(self, sub: SubTopology, changelogs: Changelogs) -> _CommittedStores:
        """Load the state of the task for the stores of the topology."""
        lineage, fingerprints = self._spec.topology.lineage, self._spec.topology.plan.store_fingerprints()
        renamed = lineage.renamed_stores
        self._take_share()
        encoded = self._stored()
        manifest, stored = decode_manifest(encoded)
        memory = TaskMemory.from_json(stored, renamed)
        manifest = with_renamed_stores(manifest, renamed)
        check_stores(memory.stores, fingerprints)
        removed = memory.without_operator(sub.stores)
        manifest = self._log.forget_stores(manifest, sub.stores)
        manifest = rehomed(manifest, memory.engines, self._engines(sub))
        rebuilds = self._initialization is not None and self._initialization.rebuild
        if encoded is None and rebuilds and changelogs.stores:
            assert self._spec.changelogs is not None
            memory = changelogs.memory(self._spec.changelogs, renamed)
            check_stores(memory.stores, fingerprints)
            manifest = self._log.load(changelogs.content(self._spec.changelogs, memory, self._listener))
        return _CommittedStores(encoded, manifest, memory, removed)

    def _take_share(self) -> None:
        """Replace the state with the task's share of divided state, if the micro-batch begins with a division.

        The replaced state belongs to an undivided task with the same number.
        """
        divided = None if self._initialization is None else self._initialization.divided
        if divided is None or self._id.subtopology not in divided.subtopologies:
            return
        assert self._spec.shares is not None
        share = read_share(self._spec.shares / divided.name, self._id)
        manifest, _ = decode_manifest(self._stored())
        encoded = self._log.take_share(manifest, share)
        if encoded is None:
            self._head.clear()
        else:
            self._head.update((encoded,))

    def _memory(self, sub: SubTopology, changelogs: Changelogs, task: Task, outcome: Outcome) -> TaskMemory:
        fingerprints = self._spec.topology.plan.store_fingerprints()
        routing = self._spec.topology.lineage.routing
        return TaskMemory(
            task.snapshot(),
            {store: fingerprints[store] for store in sub.stores},
            self._engines(sub),
            changelogs.stores,
            unfinished_by_store(sub, outcome),
            routing.only(sub.stores) if changelogs.stores else None,
        )

    def _engines(self, sub: SubTopology) -> dict[str, str]:
        return {store: self._spec.copies.engines[store] for store in sub.stores}

    def _stored(self) -> bytes | None:
        stored = self._head.get()
        return None if stored is None else bytes(stored[0])

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

    def _content(
        self, changelogs: Changelogs, before: _CommittedStores, copies: TaskCopies, dropped: Iterable[str]
    ) -> Iterator[tuple[str, Records]]:
        """Return the content before this micro-batch that changelog topics lack, or keep although it has expired."""
        new_topics = () if self._initialization is None else self._initialization.new_topics
        published = set(before.memory.published).difference(new_topics)
        new = [store for store in changelogs.stores if store not in published]
        begins = self._initialization is not None and before.encoded is not None
        known = [store for store in changelogs.unfinished if begins and store in published]
        expired = changelogs.kept_by_broker(dropped)
        if not (new or known or expired):
            return
        try:
            copies.open_view()
            yield from changelogs.publish_content(new, copies.names(), copies, self._now_ms)
            yield from changelogs.publish_deletion(expired, copies, self._now_ms)
            if known:
                assert self._spec.changelogs is not None
                yield from changelogs.corrections(self._spec.changelogs, known, copies, self._now_ms)
        finally:
            copies.close_view()

    def _forget(self) -> Iterator[Row]:
        """Delete the state of a task that the topology no longer has, and report its in-flight records."""
        stored = self._stored()
        if stored is None:
            return
        manifest, data = decode_manifest(stored)
        memory = TaskMemory.from_json(data)
        self._log.forget_stores(manifest, ())
        self._head.clear()
        TaskCopies(self._spec.copies, str(self._id), ()).remove_unused()
        removed = memory.without_operator(())
        if removed:
            progress = {} if memory.snapshot is None else memory.snapshot.progress
            report = report_of_gone(self._id, removed, progress)
            yield Row(kind=wire.REPORT, topic="", batch=self._batch, payload=report.encode())

    def _keep_times(self, sub: SubTopology) -> Iterator[Row]:
        """Store the partition times of readers, and report them in the first micro-batch of a run."""
        manifest, data = decode_manifest(self._stored())
        memory = TaskMemory.from_json(data)
        snapshot = memory.snapshot or Snapshot()
        if memory.stores:  # the state is that of another topology
            yield from self._forget()
            manifest, _ = decode_manifest(None)
        before = {queue.partition: ms for queue, ms in snapshot.partition_times.items() if not queue.lane}
        reported = [decode_times(bytes(row.payload)) for row in self._rows if row.kind == wire.TIMES]
        topics = timed_topics(sub)
        times = {
            partition: ms for partition, ms in latest(before, *reported).items() if partition.topic in topics
        }
        kept = Snapshot(partition_times={QueueId(partition, ""): ms for partition, ms in times.items()})
        self._head.update((encode_manifest(manifest, {"task": snapshot_to_json(kept)}),))
        if not reported:
            report = TaskReport(str(self._id), times=times)
            yield Row(kind=wire.REPORT, topic="", batch=self._batch, payload=report.encode())

    def _snapshot(self, before: _CommittedStores) -> Snapshot | None:
        """Return the snapshot. A rebuilt task reads its buffered records from the broker again."""
        snapshot = before.memory.snapshot
        return snapshot if snapshot is None or before.encoded is not None else snapshot.without_committed()

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
            cache_bytes=self._spec.cache_bytes,
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
                    self._read[row.topic] = count + len(records), size + records.byte_count()
                task.feed(TopicPartition(row.topic, row.partition), records, row.end, lane=row.lane)
