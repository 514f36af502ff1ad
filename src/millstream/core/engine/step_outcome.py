"""What a step gives back, and what a task needs to go on later: plain data."""

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
    """What a task counted in one step (names follow Kafka Streams' metrics; see docs/reference/metrics.md).

    Attributes:
        processed: Records taken from the queues.
        dropped: Records left out on purpose (null keys, bad records under the policy "skip"), with the reason.
        punctuated: Calls of punctuators.
        enforced: Records taken while an input was empty that might still have brought an earlier one.
        merged: Updates of tables that were not forwarded, because a later one of the same row was.
        cache_bytes: The most bytes that caches held, about.
        failed: Records that failed and were left out or sent to a dead-letter topic, by operator.
    """

    processed: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    punctuated: int = 0
    enforced: int = 0
    merged: int = 0
    cache_bytes: int = 0
    counted: Mapping[str, int] = field(default_factory=dict)
    failed: Mapping[str, int] = field(default_factory=dict)


def taken(counts: Counter[str]) -> dict[str, int]:
    copied = dict(counts)
    counts.clear()
    return copied


@dataclass(frozen=True)
class Outcome:
    """What a driver has to do after a step.

    Attributes:
        sends: Topics with the records to send, in the order in which they were forwarded.
        changes: Changes of each byte store, each key at most once.
        dropped_slices: Byte stores that have expired as a whole; none of them has changes.
        waiting: Why records that are at hand are not processed, None if there are none.
        buffered: How much has been fed and not processed, per queue that holds anything.
        given_up: Empty inputs that are no longer waited for.
        committable: Per partition, the offset before which everything has been processed: never past a record that is
            unfinished.
        taps: Samples of the records that reached tapped nodes.
        shuffled: Per partition that is read through lanes, the lowest offset of a record that is buffered or unfinished; only of tasks
            that finish records later.
        wake_at_ms: When wall-clock punctuation is due next, the wait for an empty input ends, an idle operator closes
            something, or the next attempt of a call is due (ms since the epoch); None if never.
        idle_until_ms: When the wait for an empty input ends that records are held for; None if there is none.
        issue: Calls to send to the async worker; their results come back with ``Task.done``.
        attempts_due_ms: When the next attempt of a record that waits is due, or a processor that acknowledges looks again; None if never.
        calls: The metrics of each asynchronous operator.
        threads: The metrics of the threads; None if the task uses one thread.
        stream_time_ms: Stream time of the task, -1 if no record has been seen.
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
    """What must survive of a task besides its stores.

    Attributes:
        schedules: Due times of the schedules (``Punctuations.to_data``).
        positions: The offset after the last record that was fed, for the queues with buffered records.
        stores: What stores remember besides their content, as JSON values.
        operators: What nodes remember, such as their stream time, by ``remembered_as``; as JSON values.
        deadlines: When the wait for an empty input ends, ms since the epoch.
        progress: How far each partition is finished, if records finish in another order than they arrived.
        taken: For queues that are read again from the committable offsets, the offset before which all records are known already: the
            task was rebuilt without its checkpoint.
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

    def without_committed(self) -> Snapshot:
        """Return the snapshot without the records that are read again from the committed offsets.

        Those that came through Spark's shuffle are not: their offsets were committed when they went into it.
        """
        return replace(
            self,
            buffered={queue: records for queue, records in self.buffered.items() if queue.lane},
            positions={queue: position for queue, position in self.positions.items() if queue.lane},
            taken={**self.taken, **self._known()},
        )

    def _known(self) -> dict[QueueId, int]:
        """Return the offset before which all records were taken; of a merged lane, those that the task holds as well."""
        finished = {
            queue: self.progress[queue.partition].position
            for queue in self.partition_times
            if queue.is_read_from_broker and queue.partition in self.progress
        }
        held = {queue: position for queue, position in self.positions.items() if queue.lane == MERGED}
        return {**finished, **held}
