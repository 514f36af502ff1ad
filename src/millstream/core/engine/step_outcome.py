"""The outcome of a step, and the snapshot from which a task continues: plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from millstream.core.asynchronous.call import Call
from millstream.core.asynchronous.committable_offset import Progress
from millstream.core.asynchronous.operator_state import CallFigures
from millstream.core.engine.records.queue import MERGED, Buffered, QueueId
from millstream.core.engine.records.readiness import Waiting
from millstream.core.engine.threaded_nodes import ThreadFigures
from millstream.core.model.ids import TopicPartition
from millstream.core.model.record import Records
from millstream.core.ports import StoreChange
from millstream.core.taps.samples import TapReport


@dataclass(frozen=True)
class TaskMetrics:
    """Metrics of a task in one step (names follow Kafka Streams' metrics; see docs/reference/metrics.md).

    Attributes:
        processed: Records taken from the queues.
        dropped: Records dropped on purpose (null keys, bad records under the policy "skip"), by reason.
        enforced: Records taken while an empty input might still have delivered an earlier one.
        merged: Updates of tables that were not forwarded, because a reader or a cache merged them with a later update of the row.
        cache_bytes: Approximate peak size of the caches, bytes.
        counted: Counts of ``ProcessorContext.count``, by name.
        failed: Records that failed and were skipped or sent to a dead-letter topic, by operator.
        combined: Processed records that a reader combined with a later record of the same key.
    """

    processed: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    punctuated: int = 0
    enforced: int = 0
    merged: int = 0
    cache_bytes: int = 0
    counted: Mapping[str, int] = field(default_factory=dict)
    failed: Mapping[str, int] = field(default_factory=dict)
    combined: int = 0


def take_counts(counts: Counter[str]) -> dict[str, int]:
    copied = dict(counts)
    counts.clear()
    return copied


@dataclass(frozen=True)
class Outcome:
    """The outcome of a step, which the driver carries out.

    Attributes:
        sends: Topics with the records to send, in the order in which they were forwarded.
        changes: Changes of each byte store, each key at most once.
        dropped_slices: Slices that have expired. They have no changes.
        waiting: Why buffered records are not processed; None if the task does not wait.
        buffered: Size of the unprocessed records, per queue that has any.
        given_up: Empty inputs that the task no longer waits for.
        committable: The committable offset of each partition: no record before it is buffered or unfinished.
        shuffled: Per partition that is read through lanes, the lowest offset of a buffered or unfinished record; empty for tasks without
            asynchronous operators.
        wake_at_ms: When the next step is due if no records arrive, for wall-clock punctuation, the end of a wait for an empty input, idle
            closing, or the next attempt of a call (ms since the epoch); None if never.
        commit_requested: True if a processor called ``ProcessorContext.commit``.
        idle_until_ms: When the wait for an empty input ends while records are buffered, ms since the epoch; None without a wait.
        issue: Calls to send to the async worker. Their results are passed to ``Task.done``.
        attempts_due_ms: When the next attempt of a waiting record is due, or unacknowledged records need a step, ms since the epoch; None
            if never.
        calls: The metrics of each asynchronous operator.
        threads: The metrics of the threads; None if the task uses one thread.
        notices: Lines for the log; at most a few per step.
    """

    sends: tuple[tuple[str, Records], ...]
    changes: Mapping[str, list[StoreChange]]
    committable: Mapping[TopicPartition, int]
    wake_at_ms: int | None
    stream_time_ms: int
    commit_requested: bool
    metrics: TaskMetrics
    notices: tuple[str, ...] = ()
    dropped_slices: tuple[str, ...] = ()
    waiting: Waiting | None = None
    buffered: Mapping[QueueId, Buffered] = field(default_factory=dict)
    given_up: tuple[TopicPartition, ...] = ()
    idle_until_ms: int | None = None
    issue: tuple[Call, ...] = ()
    attempts_due_ms: int | None = None
    calls: Mapping[str, CallFigures] = field(default_factory=dict)
    threads: ThreadFigures | None = None
    shuffled: Mapping[TopicPartition, int] = field(default_factory=dict)
    taps: tuple[TapReport, ...] = ()


@dataclass(frozen=True)
class Snapshot:
    """The state of a task besides its stores, from which it continues after a restart.

    Attributes:
        positions: For queues with buffered records, the offset after the last record that was fed.
        stores: The memories of the stores, as JSON values.
        operators: The memories of the nodes, such as their stream time, by ``remembered_as``; as JSON values.
        deadlines: The deadlines of empty inputs, ms since the epoch.
        progress: The progress of each partition, if the task has asynchronous operators, or is a key range with changelog topics.
        taken: For queues that are read again from the committable offsets because the task was rebuilt without its checkpoint, the offset
            before which the task already knows all records.
    """

    stream_time_ms: int = -1
    partition_times: Mapping[QueueId, int] = field(default_factory=dict)
    schedules: tuple[Mapping[str, Any], ...] = ()
    buffered: Mapping[QueueId, Records] = field(default_factory=dict)
    positions: Mapping[QueueId, int] = field(default_factory=dict)
    stores: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    operators: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    deadlines: Mapping[TopicPartition, int] = field(default_factory=dict)
    waiting: Waiting | None = None
    progress: Mapping[TopicPartition, Progress] = field(default_factory=dict)
    taken: Mapping[QueueId, int] = field(default_factory=dict)

    def without_read_again(self) -> Snapshot:
        """Return the snapshot without the buffered records that a rebuilt task reads again from the committed offsets.

        Records from Spark's shuffle are kept, because their offsets were committed when they were shuffled. So are those of merged lanes,
        whose offsets are not in order.
        """
        return replace(
            self,
            buffered={queue: records for queue, records in self.buffered.items() if queue.lane},
            positions={queue: position for queue, position in self.positions.items() if queue.lane},
        )

    def without_committed(self) -> Snapshot:
        """Return the snapshot from which a rebuilt task continues: it reads again from the committed offsets, and skips what it knows."""
        return replace(self.without_read_again(), taken={**self.taken, **self._taken_offsets()})

    def _taken_offsets(self) -> dict[QueueId, int]:
        """Return, per queue, the offset before which the task has taken all records; a merged lane includes its buffered records."""
        finished = {
            queue: self.progress[queue.partition].position
            for queue in self.partition_times
            if queue.is_read_from_broker and queue.partition in self.progress
        }
        held = {queue: position for queue, position in self.positions.items() if queue.lane == MERGED}
        return {**finished, **held}
