"""The state of a task as Spark has committed it: loaded before the task runs in a micro-batch, and replaced after it.

A micro-batch that starts all tasks also adapts the state to the topology, divides it, or rebuilds it from changelog topics.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from millstream.core.engine.records.queue import QueueId
from millstream.core.engine.step_outcome import Outcome, Snapshot
from millstream.core.engine.task import Task
from millstream.core.model.ids import TaskId, TopicPartition
from millstream.core.model.record import Records
from millstream.core.runtime.batch_plan import Initialization
from millstream.core.runtime.partition_times import latest, timed_topics
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
from millstream.drivers.spark.executor.changelogs import Changelogs
from millstream.drivers.spark.executor.copies import TaskCopies
from millstream.drivers.spark.executor.host_spec import HostSpec
from millstream.drivers.spark.executor.report_building import report_of_gone
from millstream.drivers.spark.executor.restore_progress import RestoreListener
from millstream.drivers.spark.executor.snapshots import (
    TaskMemory,
    snapshot_to_json,
    unfinished_by_store,
)
from millstream.drivers.spark.executor.statelog import StateLog
from millstream.drivers.spark.share_files import read_share


class StoresBefore(NamedTuple):
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

    @property
    def snapshot(self) -> Snapshot | None:
        """The snapshot of the task. A rebuilt task reads its buffered records from the broker again."""
        snapshot = self.memory.snapshot
        return snapshot if snapshot is None or self.encoded is not None else snapshot.without_committed()


@dataclass(frozen=True)
class CommittedState:
    """The committed state of one task. Owned by the run of the task.

    Attributes:
        head: Spark's state with the manifest.
        initialization: What the task does first; None unless the micro-batch starts all tasks.
    """

    spec: HostSpec
    task: TaskId
    log: StateLog
    head: Any
    initialization: Initialization | None
    listener: RestoreListener

    def load(self, sub: SubTopology, changelogs: Changelogs) -> StoresBefore:
        lineage, fingerprints = self.spec.topology.lineage, self.spec.topology.plan.store_fingerprints()
        renamed = lineage.renamed_stores
        self._take_share()
        encoded = self._stored()
        manifest, stored = decode_manifest(encoded)
        memory = TaskMemory.from_json(stored, renamed)
        manifest = with_renamed_stores(manifest, renamed)
        check_stores(memory.stores, fingerprints)
        removed = memory.without_operator(sub.stores)
        manifest = self.log.forget_stores(manifest, sub.stores)
        manifest = rehomed(manifest, memory.engines, self._engines(sub))
        rebuilds = self.initialization is not None and self.initialization.rebuild
        snapshots = self.spec.snapshots
        if encoded is None and rebuilds and changelogs.stores:
            assert self.spec.changelogs is not None
            assert snapshots is not None
            memory = changelogs.memory(snapshots, renamed)
            check_stores(memory.stores, fingerprints)
            manifest = self.log.load(changelogs.content(self.spec.changelogs, memory, self.listener))
        elif snapshots is not None and not rebuilds:
            snapshots.forget()
        return StoresBefore(encoded, manifest, memory, removed)

    def memory(self, sub: SubTopology, changelogs: Changelogs, task: Task, outcome: Outcome) -> TaskMemory:
        """Return what the task must remember besides the entries of its stores."""
        fingerprints = self.spec.topology.plan.store_fingerprints()
        routing = self.spec.topology.lineage.routing
        return TaskMemory(
            task.snapshot(),
            {store: fingerprints[store] for store in sub.stores},
            self._engines(sub),
            changelogs.stores,
            unfinished_by_store(sub, outcome),
            routing.only(sub.stores) if changelogs.stores else None,
        )

    def store(self, before: StoresBefore, manifest: Manifest, memory: TaskMemory) -> bool:
        """Replace the manifest. Return False if nothing has changed."""
        encoded = encode_manifest(manifest, memory.to_json())
        if encoded == before.encoded:
            return False
        self.head.update((encoded,))
        return True

    def content(
        self,
        changelogs: Changelogs,
        before: StoresBefore,
        copies: TaskCopies,
        dropped: Iterable[str],
        now_ms: int,
    ) -> Iterator[tuple[str, Records]]:
        """Return the content before this micro-batch that changelog topics lack, or keep although it has expired."""
        new_topics = () if self.initialization is None else self.initialization.new_topics
        published = set(before.memory.published).difference(new_topics)
        new = [store for store in changelogs.stores if store not in published]
        begins = self.initialization is not None and before.encoded is not None
        known = [store for store in changelogs.unfinished if begins and store in published]
        expired = changelogs.kept_by_broker(dropped)
        if not (new or known or expired):
            return
        try:
            copies.open_view()
            yield from changelogs.publish_content(new, copies.names(), copies, now_ms)
            yield from changelogs.publish_deletion(expired, copies, now_ms)
            if known:
                assert self.spec.changelogs is not None
                yield from changelogs.corrections(self.spec.changelogs, known, copies, now_ms)
        finally:
            copies.close_view()

    def forget(self) -> Iterator[TaskReport]:
        """Delete the state of a task that the topology no longer has, and report its in-flight records."""
        stored = self._stored()
        if stored is None:
            return
        manifest, data = decode_manifest(stored)
        memory = TaskMemory.from_json(data)
        self.log.forget_stores(manifest, ())
        self.head.clear()
        TaskCopies(self.spec.copies, str(self.task), ()).remove_unused()
        removed = memory.without_operator(())
        if removed:
            progress = {} if memory.snapshot is None else memory.snapshot.progress
            yield report_of_gone(self.task, removed, progress)

    def keep_times(
        self, sub: SubTopology, reached: list[Mapping[TopicPartition, int]]
    ) -> Iterator[TaskReport]:
        """Store the partition times of readers, and report them in the first micro-batch of a run."""
        manifest, data = decode_manifest(self._stored())
        memory = TaskMemory.from_json(data)
        snapshot = memory.snapshot or Snapshot()
        if memory.stores:  # the state is that of another topology
            yield from self.forget()
            manifest, _ = decode_manifest(None)
        before = {queue.partition: ms for queue, ms in snapshot.partition_times.items() if not queue.lane}
        topics = timed_topics(sub)
        times = {
            partition: ms for partition, ms in latest(before, *reached).items() if partition.topic in topics
        }
        kept = Snapshot(partition_times={QueueId(partition, ""): ms for partition, ms in times.items()})
        self.head.update((encode_manifest(manifest, {"task": snapshot_to_json(kept)}),))
        if not reached:
            yield TaskReport(str(self.task), times=times)

    def _take_share(self) -> None:
        """Replace the state with the task's share of divided state, if the micro-batch begins with a division.

        The replaced state belongs to an undivided task with the same number.
        """
        divided = None if self.initialization is None else self.initialization.divided
        if divided is None or self.task.subtopology not in divided.subtopologies:
            return
        assert self.spec.shares is not None
        share = read_share(self.spec.shares / divided.name, self.task)
        manifest, _ = decode_manifest(self._stored())
        encoded = self.log.take_share(manifest, share)
        if encoded is None:
            self.head.clear()
        else:
            self.head.update((encoded,))

    def _engines(self, sub: SubTopology) -> dict[str, str]:
        return {store: self.spec.copies.engines[store] for store in sub.stores}

    def _stored(self) -> bytes | None:
        stored = self.head.get()
        return None if stored is None else bytes(stored[0])
