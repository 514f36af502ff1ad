"""Restores of global stores: bring a host's copy of a global store to exactly the offsets that a micro-batch sees.

A restore passes the records of the topic through a global task (see ``millstream.core.engine.global_task``), a few thousand at a time. It
writes the changes and the progress to the copy in one transaction, so that an interrupted restore can continue. Records that are
read together are processed in timestamp order, all others partition by partition. The content of a store is therefore deterministic
only if all records of a key are in one partition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from millstream.core.engine.global_task import global_task
from millstream.core.engine.policy import ErrorPolicies
from millstream.core.engine.step_outcome import Outcome
from millstream.core.model.errors import OffsetsLostError
from millstream.core.model.ids import TaskId, TopicPartition
from millstream.core.model.record import Records
from millstream.core.ports import ByteStores, Fetcher, LocalCopy, OffsetRange, TopicReader
from millstream.core.state.global_copy import (
    BEHIND,
    CUT_OFF,
    DELETED,
    CopyProgress,
    progress_of,
    why_begun_anew,
    with_progress,
)
from millstream.core.topology.plan import SubTopology
from millstream.drivers.spark.executor.restore_progress import RestoreListener, RestoreProgress, StoreProgress
from millstream.drivers.spark.executor.snapshots import snapshot_from_json, snapshot_to_json

_RECORDS_AT_ONCE = 20_000
_BYTES_AT_ONCE = 8 << 20
_MAX_NOTICES = 5


@dataclass(frozen=True)
class GlobalTopics:
    """Access to the topics of global stores. Picklable."""

    broker: TopicReader
    fetcher: Fetcher


@dataclass
class GlobalRestoreCounts:
    """Counts of the records read from global topics.

    Attributes:
        dropped: Dropped records, by id of the global task and reason.
    """

    records: int = 0
    dropped: Counter[tuple[str, str]] = field(default_factory=Counter)
    notices: list[str] = field(default_factory=list)

    def add(self, task: TaskId, outcome: Outcome) -> None:
        for reason, count in outcome.metrics.dropped.items():
            self.dropped[str(task), reason] += count
        self.notices = [*self.notices, *outcome.notices][:_MAX_NOTICES]


@dataclass(frozen=True)
class _Chunk:
    """Records of one partition, and the next offset. Records are None at the end of a range."""

    partition: int
    records: Records | None
    position: int


@dataclass(frozen=True)
class GlobalPart:
    """A global part, with everything a host needs to run it.

    Attributes:
        topic_id: The broker's id of the topic, or empty if unknown.
    """

    part: SubTopology
    application_id: str
    topic_id: str
    policies: ErrorPolicies
    app_config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def topic(self) -> str:
        return self.part.source_topics[0]

    @property
    def store(self) -> str:
        return next(iter(self.part.stores))

    @property
    def identity(self) -> str:
        """Identifies the copied content. A copy with a different identity is filled from the beginning."""
        return f"{self.topic} {self.topic_id} {self.part.stores[self.store].fingerprint}"


class GlobalRestore:
    """Brings one copy up to the planned offsets. Belongs to the owner of the copy.

    Args:
        task: The task that needs the store. Restores are reported for this task.
    """

    def __init__(
        self,
        part: GlobalPart,
        copy: LocalCopy,
        topics: GlobalTopics,
        *,
        task: str,
        listener: RestoreListener,
        now_ms: int,
    ) -> None:
        self._part = part
        self._copy = copy
        self._topics = topics
        self._task = task
        self._listener = listener
        self._now_ms = now_ms

    def view_at(self, planned: Mapping[int, int], counts: GlobalRestoreCounts) -> ByteStores:
        """Bring the copy up to the planned offsets and open a view of it. The owner of the copy closes the view.

        Args:
            planned: For each partition, the first offset that the store must not contain.

        Raises:
            OffsetsLostError: If the broker deletes records of an empty copy before they are read, or the topic has become shorter.
            MillstreamError: If a record fails under the policy "fail".
        """
        copy, part = self._copy, self._part
        view = copy.open_view()
        reached = progress_of(part.store, copy.version(), view)
        if reached is not None and (reached.identity, reached.positions) == (part.identity, planned):
            return view
        copy.close_view()
        try:
            self._bring_up(*self._start(reached, planned), planned, counts)
        except OffsetsLostError:
            if reached is None or not self._is_behind_beginning(reached, planned):
                raise
            self._bring_up(self._begun_anew(planned), DELETED, planned, counts)
        return copy.open_view()

    def _bring_up(
        self,
        reached: CopyProgress,
        why: str | None,
        planned: Mapping[int, int],
        counts: GlobalRestoreCounts,
    ) -> None:
        """Read the topic from the progress of the copy to the planned offsets."""
        old = None if why else reached.version.number
        to_read = [
            OffsetRange(self._part.topic, partition, reached.positions[partition], end)
            for partition, end in sorted(planned.items())
            if reached.positions[partition] < end
        ]
        total = sum(planned.end - planned.start for planned in to_read)
        version = sum(planned.values())
        begin = RestoreProgress(self._task, self._part.store, why or BEHIND, old, version, total=total)
        progress = StoreProgress(begin, self._listener)
        count = 0
        for chunks in self._chunks(to_read):
            reached = self._apply_chunks(reached, chunks, counts)
            read = sum(len(chunk.records) for chunk in chunks if chunk.records is not None)
            count += read
            progress.advance(read)
        progress.finish(count)
        counts.records += count

    def _start(
        self, previous: CopyProgress | None, planned: Mapping[int, int]
    ) -> tuple[CopyProgress, str | None]:
        """Return where to continue, and the reason for a restart from an empty copy, if any."""
        copy = self._copy
        empty = copy.why_empty() if copy.version() is None else CUT_OFF
        why = empty if previous is None else why_begun_anew(previous, self._part.identity, planned)
        if why or previous is None:
            return self._begun_anew(planned), why
        known = {
            partition: position for partition, position in previous.positions.items() if partition in planned
        }
        return replace(previous, positions={**self._first_offsets(planned, known), **known}), None

    def _begun_anew(self, planned: Mapping[int, int]) -> CopyProgress:
        """Empty the copy, and return the progress with which it begins."""
        if self._copy.version() is not None:
            self._copy.wipe()
        return CopyProgress(self._part.identity, self._first_offsets(planned, ()))

    def _is_behind_beginning(self, reached: CopyProgress, planned: Mapping[int, int]) -> bool:
        first = self._first_offsets(planned, ())
        return any(position < first.get(partition, 0) for partition, position in reached.positions.items())

    def _first_offsets(self, planned: Mapping[int, int], known: Collection[int]) -> dict[int, int]:
        """Return the first offsets of partitions that are new to the copy, limited to the planned offsets."""
        topic = self._part.topic
        if all(partition in known for partition in planned):
            return {}
        first = self._topics.broker.begin_offsets({topic: max(planned) + 1})[topic]
        return {partition: min(first[partition], end) for partition, end in planned.items()}

    def _chunks(self, to_read: list[OffsetRange]) -> Iterator[list[_Chunk]]:
        """Read the ranges in lists of limited size. Yield at least one list, because the last list completes the copy."""
        chunks: list[_Chunk] = []
        count = size = 0
        for planned, fetched in self._topics.fetcher.fetch_all(to_read):
            for records in fetched:
                chunks.append(_Chunk(planned.partition, records, records.offsets[-1] + 1))
                count, size = count + len(records), size + records.byte_count()
                if count >= _RECORDS_AT_ONCE or size >= _BYTES_AT_ONCE:
                    yield chunks
                    chunks, count, size = [], 0, 0
            chunks.append(_Chunk(planned.partition, None, planned.end))
        yield chunks

    def _apply_chunks(
        self, reached: CopyProgress, chunks: list[_Chunk], counts: GlobalRestoreCounts
    ) -> CopyProgress:
        try:
            task = global_task(
                self._part.part,
                application_id=self._part.application_id,
                stores=self._copy.open_view(),
                policies=self._part.policies,
                app_config=self._part.app_config,
                snapshot=snapshot_from_json(reached.remembered or None),
            )
            try:
                task.init(self._now_ms)
                for chunk in chunks:
                    if chunk.records is not None:
                        partition = TopicPartition(self._part.topic, chunk.partition)
                        task.feed(partition, chunk.records, chunk.position)
                outcome = task.step(self._now_ms)
            finally:
                task.close()
        finally:
            self._copy.close_view()
        counts.add(task.id, outcome)
        positions = {**reached.positions, **{chunk.partition: chunk.position for chunk in chunks}}
        after = CopyProgress(reached.identity, positions, snapshot_to_json(task.snapshot()))
        changes = {**outcome.changes, **with_progress(self._part.store, after)}
        self._copy.apply(changes, after.version, outcome.dropped_slices)
        return after
