"""The changelog topics of a task: publishing to them, and rebuilding a task that has no other state.

A task publishes to its changelogs together with its other results. Under exactly-once delivery, a changelog therefore contains exactly the
committed changes. A micro-batch with changes also publishes the task's *snapshot* (stream time, schedules, memory of its stores) to the
internal topic ``<application>-commits``. Without the snapshot, a rebuilt store would not know its time.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from millstream.core.model.ids import TaskId
from millstream.core.model.record import Records
from millstream.core.ports import ByteStores, ChangelogReader, OffsetRange, StoreChange, store_of
from millstream.core.state.changelog_records import from_records, is_live, to_records
from millstream.core.topology.async_nodes import all_unfinished_stores
from millstream.core.topology.internal import changelog_config
from millstream.core.topology.plan import Plan, SubTopology
from millstream.drivers.spark.executor.restore_progress import RestoreListener, RestoreProgress, StoreProgress
from millstream.drivers.spark.executor.snapshots import TaskMemory

SNAPSHOT: Final = b"task "
"""Key prefix of snapshots. Their topic also contains the marks of delivered batches."""
_PUBLISHED_AT_ONCE = 20_000
_PUBLISHED_BYTES = 4 << 20
_WHY = "the checkpoint and the local copy are missing; the changelog topic is read instead"


def published(reader: ChangelogReader, plan: Plan, tasks: Iterable[TaskId]) -> list[bytes]:
    """Return the last published memory of each task that has ever published, as JSON."""
    keys = [Changelogs(plan, plan.subtopologies[task.subtopology], task)._key for task in tasks]
    newest = PublishedSnapshots(reader, plan.commits_topic).newest()
    return [newest[key] for key in keys if key in newest]


class PublishedSnapshots:
    """The newest snapshot of each task, for a rebuild. Owned by one thread.

    All tasks publish to one partition. A process that rebuilds many tasks reads it once, and for each further task only what was added: a
    repeated attempt must see the snapshot of the attempt before it, whose changes are in the changelogs. Snapshots that the Spark driver reads
    and passes on would be too old for that.
    """

    def __init__(self, reader: ChangelogReader, topic: str) -> None:
        self._reader = reader
        self._topic = topic
        self._read = OffsetRange(topic, 0, -1, -1)
        self._newest: dict[bytes, bytes] = {}

    def newest(self) -> Mapping[bytes, bytes]:
        """Return the newest snapshot of each task as JSON, by the key of its record."""
        extent = self._reader.extent(self._topic, 0)
        if extent.start != self._read.start or extent.end < self._read.end:
            self.forget()
        added = extent._replace(start=max(extent.start, self._read.end))
        for records in self._reader.read(added):
            self._newest |= {
                bytes(key): bytes(value)
                for key, value in zip(records.keys, records.values)
                if key is not None and value is not None and key.startswith(SNAPSHOT)
            }
        self._read = extent
        return self._newest

    def forget(self) -> None:
        """Free the memory. The next call reads everything."""
        self._read = OffsetRange(self._topic, 0, -1, -1)
        self._newest = {}


@dataclass(frozen=True)
class Changelogs:
    plan: Plan
    sub: SubTopology
    task: TaskId

    @property
    def stores(self) -> tuple[str, ...]:
        return self.sub.changelogs

    @property
    def unfinished(self) -> list[str]:
        """The stores with changelogs that contain in-flight records of operators."""
        keeping = all_unfinished_stores(self.sub.nodes.values())
        return [name for name in self.stores if name in keeping]

    def publish(
        self, changes: Mapping[str, list[StoreChange]], memory: TaskMemory, now_ms: int
    ) -> Iterator[tuple[str, Records]]:
        """Return the changes of a micro-batch, and the task's memory, as records by topic.

        The memory is one record, so it must not grow with the records that wait for another input.
        """
        if not self.stores:
            return
        for byte_store, items in changes.items():
            if store_of(byte_store) in self.plan.changelogs:
                yield self._records(byte_store, items, now_ms)
        assert memory.snapshot is not None
        needed = replace(memory, snapshot=memory.snapshot.without_read_again())
        value = json.dumps(needed.to_json(), separators=(",", ":")).encode()
        yield self.plan.commits_topic, Records([self._key], [value], [now_ms], partitions=[0])

    def publish_content(
        self, stores: Collection[str], names: Iterable[str], view: ByteStores, now_ms: int
    ) -> Iterator[tuple[str, Records]]:
        """Return the whole content of the stores whose changelog topic is new, as records."""
        for byte_store in names:
            if store_of(byte_store) in stores:
                for entries in _entry_chunks(view, byte_store):
                    yield self._records(byte_store, [*entries], now_ms)

    def kept_by_broker(self, dropped: Iterable[str]) -> list[str]:
        """Return the expired slices that the broker does not delete from their changelog topics, because not all of the store expires."""
        return [
            name
            for name in dropped
            if (store := store_of(name)) in self.plan.changelogs
            and "delete" not in changelog_config(self.sub.stores[store])["cleanup.policy"]
        ]

    def publish_deletion(
        self, byte_stores: Iterable[str], view: ByteStores, now_ms: int
    ) -> Iterator[tuple[str, Records]]:
        """Return records that delete the whole content of byte stores."""
        for byte_store in byte_stores:
            for entries in _entry_chunks(view, byte_store):
                yield self._records(byte_store, [(key, None) for key, _ in entries], now_ms)

    def corrections(
        self, reader: ChangelogReader, stores: Collection[str], view: ByteStores, now_ms: int
    ) -> Iterator[tuple[str, Records]]:
        """Return the records that make changelog topics agree with their stores.

        They disagree if one attempt of a micro-batch was delivered but the state of another attempt was committed. Attempts differ in the
        results of calls that arrive, and therefore in the position of in-flight records.

        Args:
            stores: Stores of in-flight records. Each store is read as a whole.
        """
        for store in stores:
            published: dict[bytes, bytes | None] = {}
            for records in reader.read(reader.extent(self.plan.changelogs[store], self.task.partition)):
                published.update(from_records(self.sub.stores[store], records).get(store, ()))
            content = dict(view.open(store).scan(None, None))
            keys = content.keys() | published.keys()
            wrong = [(key, content.get(key)) for key in keys if content.get(key) != published.get(key)]
            if wrong:
                yield self._records(store, wrong, now_ms)

    def memory(self, snapshots: PublishedSnapshots, renamed_stores: Mapping[str, str]) -> TaskMemory:
        """Return the last published memory of the task, or an empty one if the task has never published."""
        newest = snapshots.newest().get(self._key)
        return TaskMemory.from_json({} if newest is None else json.loads(newest), renamed_stores)

    def content(
        self, reader: ChangelogReader, remembered: TaskMemory, listener: RestoreListener
    ) -> Iterator[dict[str, list[StoreChange]]]:
        """Read the content of all stores, a few thousand changes at a time."""
        memories = remembered.store_memories()
        for store in self.stores:
            spec, memory = self.sub.stores[store], memories.get(store, {})
            extent = reader.extent(self.plan.changelogs[store], self.task.partition)
            total = extent.end - extent.start
            progress = StoreProgress(
                RestoreProgress(str(self.task), store, _WHY, None, 1, 0, total), listener
            )
            count = 0
            for records in reader.read(extent):
                count += len(records)
                changes = from_records(spec, records)
                yield {name: items for name, items in changes.items() if is_live(spec, name, memory)}
                progress.advance(len(records))
            progress.finish(count)

    @property
    def _key(self) -> bytes:
        """Key of the snapshot. It excludes the sub-topology, whose number may change without a checkpoint."""
        return SNAPSHOT + f"{','.join(sorted(self.stores))} {self.task.partition}".encode()

    def _records(self, byte_store: str, items: list[StoreChange], now_ms: int) -> tuple[str, Records]:
        store = store_of(byte_store)
        spec, partition = self.sub.stores[store], self.task.partition
        return self.plan.changelogs[store], to_records(spec, byte_store, items, partition, now_ms)


def _entry_chunks(view: ByteStores, byte_store: str) -> Iterator[list[tuple[bytes, bytes]]]:
    """Return the content of a byte store, a few thousand entries or a few large ones at a time."""
    part: list[tuple[bytes, bytes]] = []
    size = 0
    for key, value in view.open(byte_store).scan(None, None):
        part.append((key, value))
        size += len(key) + len(value)
        if len(part) == _PUBLISHED_AT_ONCE or size >= _PUBLISHED_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part
