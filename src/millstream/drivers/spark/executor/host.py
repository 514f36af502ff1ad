"""The task host: one streaming operator that runs every task of an application.

Per task and micro-batch ``handleInputRows`` is called once. It

1. loads the manifest from Spark's state and brings the local copies up to it,
2. orders the chunk rows, feeds them to the task, tells it what is known of its inputs, and runs one step,
3. writes what has changed to Spark's state: one segment per store and key group, and the manifest,
4. parks the same changes beside the local copies, which apply them in the next batch, when they are known to be committed,
5. sends what the task has put out, at least once, or leaves it to the sink.

Spark loads the state at the version it has committed and drops what a failed attempt wrote, so a batch that is run again
begins exactly where the first attempt did. Nothing here has to be rolled back.
"""

from __future__ import annotations

import gc
import hashlib
import json
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from uuid import uuid4

from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from millstream.core.engine.outcome import Outcome, Snapshot
from millstream.core.engine.records.queue import MERGED, QueueId
from millstream.core.engine.records.readiness import NEVER_WAIT
from millstream.core.engine.task import Task
from millstream.core.model.errors import CopyMovedError, DamagedCopyError
from millstream.core.model.ids import TaskId, TopicPartition
from millstream.core.model.positions import nested, positions_to_json
from millstream.core.model.record import Records
from millstream.core.ports import ByteStores, ChangelogReader
from millstream.core.state.segments.log import (
    Manifest,
    decode_manifest,
    encode_manifest,
    rehomed,
    with_renamed_stores,
)
from millstream.core.topology.evolution import check_stores, with_new_names
from millstream.core.topology.plan import SubTopology
from millstream.drivers.spark import wire
from millstream.drivers.spark.executor.calls import Stations, TaskCalls
from millstream.drivers.spark.executor.changelogs import Changelogs
from millstream.drivers.spark.executor.copies import CopiesSpec, TaskCopies
from millstream.drivers.spark.executor.dead_letters import sending_letters
from millstream.drivers.spark.executor.filling import Filled, GlobalTopics
from millstream.drivers.spark.executor.global_stores import GlobalStores, GlobalStoresSpec
from millstream.drivers.spark.executor.measures import StepFacts
from millstream.drivers.spark.executor.progress import Relay, Tell, log_progress
from millstream.drivers.spark.executor.report import Report, call_report, report_of, report_of_gone
from millstream.drivers.spark.executor.restore import RestoreSettings
from millstream.drivers.spark.executor.snapshots import (
    snapshot_from_json,
    snapshot_to_json,
    unfinished_by_store,
    without_operator,
)
from millstream.drivers.spark.executor.statelog import StateLog
from millstream.drivers.spark.executor_id import this_executor
from millstream.drivers.spark.globals import positions_from
from millstream.drivers.spark.inputs import TaskInputs
from millstream.drivers.spark.logs import WorkerLogs, running_task
from millstream.drivers.spark.spec import TopologySpec
from millstream.drivers.spark.times import decode_times, latest, timed_topics

log = logging.getLogger("millstream.task")

_HEAD = StructType([StructField("manifest", BinaryType(), nullable=False)])
_SEQUENCE = StructType([StructField("sequence", LongType(), nullable=False)])
_SEGMENT = StructType([StructField("segment", BinaryType(), nullable=False)])

_SPECS: dict[bytes, HostSpec] = {}


@dataclass(frozen=True)
class HostSpec:
    """What the task host needs to know. Crosses as cloudpickle.

    Attributes:
        topology: The application.
        copies: Where and how local copies are kept.
        tell: Who hears of the progress of restores.
        changelogs: Reads changelog topics, None if there are none.
        global_topics: Reads the topics of global stores, None if there are none.
        max_task_idle_ms: How long a task waits for an empty input; -1 waits for nothing.
        cache_bytes: What the caches of a task may hold; with 0 every update of a table is forwarded.
        stations: Gives the station that makes the calls of asynchronous operators, None if there are no such operators.
        repeats_sends: Whether a micro-batch that is run again sends again what it sent; else it sends nothing.
    """

    topology: TopologySpec
    copies: CopiesSpec
    tell: Tell = log_progress
    changelogs: ChangelogReader | None = None
    global_topics: GlobalTopics | None = None
    max_task_idle_ms: int = NEVER_WAIT
    cache_bytes: int = 0
    stations: Stations | None = None
    repeats_sends: bool = True

    @cached_property
    def inputs(self) -> TaskInputs:
        """The inputs of tasks that have several."""
        return TaskInputs(self.topology.plan, self.topology.layout)


class TaskHost(StatefulProcessor):
    """Runs the tasks whose rows Spark hands over. Made anew by Spark for each of its tasks; what is kept is in the module."""

    def __init__(self, spec: HostSpec) -> None:
        self._pickled, self._logs = cloudpickle.dumps(spec), WorkerLogs.here()

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state: the manifest, and the segments by number."""
        self._head = handle.getValueState("head", _HEAD)
        self._segments = handle.getMapState("log", _SEQUENCE, _SEGMENT)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        """Run one task on the rows of one micro-batch."""
        with wire.crossing(), wire.paused_gc():
            ordered = sorted(rows, key=lambda r: (r.kind, r.topic, r.partition, r.lane, r.start))
            for row in ordered:
                if row.kind in (wire.SEND, wire.REPORT):
                    yield Row(kind=row.kind, topic=row.topic, batch=row.batch, payload=bytes(row.payload))
            work = [row for row in ordered if row.kind not in (wire.SEND, wire.REPORT)]
            if work:
                yield from _TaskBatch(self._spec, work, self._head, self._segments).run()

    @cached_property
    def _spec(self) -> HostSpec:
        # Once per Spark task: it grows with the partitions, and there is a call for each of them.
        self._logs.apply()
        return _spec(self._pickled)

    def close(self) -> None:
        """Wait until what the tasks have sent is acknowledged; Spark commits their state after that."""
        has_run = "_spec" in vars(self)
        if has_run and (sender := self._spec.topology.sender) is not None:
            with wire.crossing():
                sender.flush()


def _spec(pickled: bytes) -> HostSpec:
    identity = hashlib.sha256(pickled).digest()
    if identity not in _SPECS:
        _SPECS.clear()
        _SPECS[identity] = cloudpickle.loads(pickled)
    return _SPECS[identity]


class _TaskBatch:
    """One task in one micro-batch."""

    def __init__(self, spec: HostSpec, rows: list[Row], head: Any, segments: Any) -> None:
        self._spec = spec
        self._rows = rows
        self._head = head
        self._id = TaskId.parse(rows[0].task)
        running_task(str(self._id))
        self._batch: str = rows[0].batch
        self._now_ms: int = rows[0].now_ms
        self._ahead_ms: int = rows[0].ahead_ms
        ticks = [bytes(row.payload) for row in rows if row.kind == wire.TICK and row.payload]
        self._begin: dict[str, Any] = json.loads(ticks[0]) if ticks else {}
        """What the first batch of a run is told; see ``millstream.drivers.spark.spec.SourceSpec``."""
        self._tell = Relay(spec.tell)
        restores = RestoreSettings(spec.copies.memory_per_engine, spec.copies.directory, self._tell)
        self._log = StateLog(segments, self._id, restores)
        self._read: dict[str, tuple[int, int]] = {}
        self._filled = Filled()
        self._began = time.perf_counter()
        self._calls: TaskCalls | None = None

    def run(self) -> Iterator[Row]:
        """Run the task; give its output rows."""
        topology, plan = self._spec.topology, self._spec.topology.plan
        sub = plan.subtopologies[self._id.subtopology]
        if not sub.nodes or plan.runs_before_shuffle(sub):  # what is in front of the shuffle has run already
            yield from self._remember_times(sub) if timed_topics(sub) else self._forget()
            return
        stored = self._head.get()
        manifest, remembered = decode_manifest(None if stored is None else bytes(stored[0]))
        fingerprints = plan.store_fingerprints()
        renamed = topology.lineage.renamed_stores
        manifest = with_renamed_stores(manifest, renamed)
        check_stores(with_new_names(remembered.get("stores", {}), renamed), fingerprints)
        removed = without_operator(with_new_names(remembered.get("unfinished", {}), renamed), sub.stores)
        manifest = self._log.forget_stores(manifest, sub.stores)
        engines = {store: self._spec.copies.engines[store] for store in sub.stores}
        manifest = rehomed(manifest, with_new_names(remembered.get("engines", {}), renamed), engines)
        changelogs = Changelogs(plan, sub, self._id)
        if stored is None and self._begin.get("rebuild") and changelogs.stores:
            assert self._spec.changelogs is not None
            remembered = changelogs.snapshot(self._spec.changelogs)
            check_stores(remembered.get("stores", {}), fingerprints)
            manifest = self._log.load(changelogs.content(self._spec.changelogs, remembered, self._tell))
        copies = TaskCopies(self._spec.copies, str(self._id), sub.stores)
        snapshot = self._snapshot(remembered, rebuilt=stored is None)
        restored, task, outcome = self._stepped_over(copies, manifest, sub, snapshot)
        yield from self._sends(self._new_content(changelogs, remembered, copies))
        manifest = self._log.write(manifest, outcome.changes, copies, outcome.dropped_slices)
        kept = {
            "task": snapshot_to_json(task.snapshot()),
            "stores": {s: fingerprints[s] for s in sub.stores},
            "engines": engines,
            "published": changelogs.stores,
            **unfinished_by_store(sub, outcome),
        }
        if changelogs.stores:  # who has lost the checkpoint finds it there
            kept["routing"] = topology.lineage.routing.only(sub.stores).to_json()
        encoded = encode_manifest(manifest, kept)
        changed = stored is None or encoded != bytes(stored[0])
        if changed:
            self._head.update((encoded,))
        yield from self._sends(outcome.sends)
        if changed or self._begin:
            yield from self._sends(changelogs.publish(outcome.changes, kept, self._now_ms))
        facts = StepFacts(str(self._id), outcome, self._read, self._filled, removed, restored, manifest)
        yield self._report(replace(facts, stores=kept["task"]["stores"]))

    def _report(self, step: StepFacts) -> Row:
        """Return the report of a step as a row."""
        report = report_of(
            replace(step, seconds=time.perf_counter() - self._began),
            calls=call_report(step.outcome, self._calls, self._now_ms),
            unheard=self._tell.unheard,
            first_record_ms=self._now_ms if self._read else None,
            executor=this_executor(),
        )
        return Row(kind=wire.REPORT, topic="", batch=self._batch, payload=report.encode())

    def _stepped_over(
        self, copies: TaskCopies, manifest: Manifest, sub: SubTopology, snapshot: Snapshot | None
    ) -> tuple[int, Task, Outcome]:
        """Run one step over the local copies; once more if one is damaged, or was written by another attempt."""
        try:
            return self._over(copies, manifest, sub, snapshot)
        except (DamagedCopyError, CopyMovedError) as error:
            log.warning("task %s begins the micro-batch anew: %s", self._id, error)
        gc.collect()  # the traceback may hold files that only one at a time may have open
        self._read = {}
        return self._over(copies, manifest, sub, snapshot)

    def _over(
        self, copies: TaskCopies, manifest: Manifest, sub: SubTopology, snapshot: Snapshot | None
    ) -> tuple[int, Task, Outcome]:
        """Run one step over the local copies; give what was restored, and what the step gave.

        Raises:
            CopyMovedError: If another attempt has written a copy, and nothing of the step counts.
            DamagedCopyError: If a copy turned out to be damaged, and nothing of the step counts.
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
            if sender is not None:
                sender.publish(topic, records)
            else:
                yield Row(kind=wire.SEND, topic=topic, batch=self._batch, payload=wire.encode(records))

    def _new_content(
        self, changelogs: Changelogs, remembered: Mapping[str, Any], copies: TaskCopies
    ) -> Iterator[tuple[str, Records]]:
        """Return what stores held before this batch, if they publish to a topic that does not have it yet."""
        published = set(remembered.get("published", ())) - set(self._begin.get("new_topics", ()))
        new = [store for store in changelogs.stores if store not in published]
        if new:
            try:
                copies.open_view()
                yield from changelogs.publish_content(new, copies.names(), copies, self._now_ms)
            finally:
                copies.close_view()

    def _forget(self) -> Iterator[Row]:
        """Delete the state of a task whose part the topology no longer has, or keeps nothing; tell what was unfinished."""
        stored = self._head.get()
        if stored is None:
            return
        manifest, remembered = decode_manifest(bytes(stored[0]))
        self._log.forget_stores(manifest, ())
        self._head.clear()
        TaskCopies(self._spec.copies, str(self._id), ()).remove_unused()
        removed = without_operator(remembered.get("unfinished", {}), ())
        if removed:
            snapshot = snapshot_from_json(remembered.get("task"), {})
            report = report_of_gone(self._id, removed, {} if snapshot is None else snapshot.progress)
            yield Row(kind=wire.REPORT, topic="", batch=self._batch, payload=report.encode())

    def _remember_times(self, sub: SubTopology) -> Iterator[Row]:
        """Keep the partition times that readers came to; report them in the first micro-batch of a run."""
        stored = self._head.get()
        manifest, remembered = decode_manifest(None if stored is None else bytes(stored[0]))
        snapshot = snapshot_from_json(remembered.get("task"), {}) or Snapshot()
        if remembered.get("stores"):  # another topology had state here
            yield from self._forget()
            manifest, _ = decode_manifest(None)
        before = {queue.partition: ms for queue, ms in snapshot.partition_times.items() if not queue.lane}
        news = [decode_times(bytes(row.payload)) for row in self._rows if row.kind == wire.TIMES]
        topics = timed_topics(sub)
        times = {at: ms for at, ms in latest(before, *news).items() if at.topic in topics}
        kept = Snapshot(partition_times={QueueId(at, ""): ms for at, ms in times.items()})
        self._head.update((encode_manifest(manifest, {"task": snapshot_to_json(kept)}),))
        if not news:
            report = Report(str(self._id), times=positions_to_json(nested(times)))
            yield Row(kind=wire.REPORT, topic="", batch=self._batch, payload=report.encode())

    def _snapshot(self, remembered: Mapping[str, Any], *, rebuilt: bool) -> Snapshot | None:
        """Return what the task remembers; one that is rebuilt reads again from the broker what it held of it."""
        snapshot = snapshot_from_json(remembered.get("task"), self._spec.topology.lineage.renamed_stores)
        return snapshot if snapshot is None or not rebuilt else snapshot.without_committed()

    def _step(self, sub: SubTopology, view: ByteStores, snapshot: Snapshot | None) -> tuple[Task, Outcome]:
        """Run one step, over the global stores as the micro-batch sees them if the task may read any."""
        if not sub.global_stores:
            return self._stepped(sub, view, snapshot)
        spec = self._spec
        assert spec.global_topics is not None
        known = GlobalStoresSpec(spec.topology, spec.copies, spec.global_topics, self._tell)
        planned = next(positions_from(bytes(row.payload)) for row in self._rows if row.kind == wire.GLOBAL)
        with GlobalStores(known, str(self._id), planned, self._now_ms) as global_stores:
            self._filled = global_stores.filled
            return self._stepped(sub, view, snapshot, global_stores)

    def _stepped(
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
        )
        try:
            task.init(self._now_ms)
            self._inform(task)
            with sending_letters(topology.letters):
                self._feed(task)
                return task, self._with_calls(task) if task.calls else task.step(self._now_ms)
        finally:
            task.close()

    def _with_calls(self, task: Task) -> Outcome:
        assert self._spec.stations is not None
        self._calls = calls = TaskCalls(task, wire.batch_of(self._batch), self._ahead_ms, self._spec.stations)
        calls.collect()
        outcome = task.step(self._now_ms)
        calls.hand_over(outcome)
        return outcome

    def _inform(self, task: Task) -> None:
        """Pass the task what is known of its inputs, if it has several that were planned together."""
        told = [bytes(row.payload) for row in self._rows if row.kind == wire.INPUTS]
        if told or self._spec.max_task_idle_ms == NEVER_WAIT:
            facts = self._spec.inputs.facts(self._id, told[-1] if told else None)
            if facts is not None:
                task.inform(facts)

    def _feed(self, task: Task) -> None:
        """Feed the task, also with ranges that hold no record: they move its position."""
        for row in self._rows:
            if row.kind == wire.RECORDS:
                records = wire.decode(row.payload) if row.payload else Records()
                if records and row.lane in ("", MERGED):
                    count, size = self._read.get(row.topic, (0, 0))
                    self._read[row.topic] = count + len(records), size + records.byte_count()
                task.feed(TopicPartition(row.topic, row.partition), records, row.end, lane=row.lane)
