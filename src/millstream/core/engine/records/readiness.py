"""Readiness: decides whether a task may process records or must wait for an empty input.

A task with several *inputs* takes the record with the smallest timestamp (``millstream.core.engine.records.queue``). This choice is
correct only if no input can still deliver a smaller timestamp. The task therefore checks all inputs at the beginning of a step, and again
whenever a queue becomes empty:

* An input with a buffered record is ready.
* An empty input that *lags*, with records on the broker beyond this micro-batch, is waited for without limit, as is an empty input whose
  lag is unknown.
* An empty input that lags but has no records before a known time has a *virtual head* at that time. Records before the virtual head may be
  processed.
* An empty input that has *ended*, because a run to a fixed end has read it up to that end, is not waited for. This is not a guess.
* An empty input that is *closed*, because it is a log of a split partition from which nothing more is read in the current epoch
  (``millstream.core.fanout.reading``), is not waited for while other logs of the partition are not closed or have buffered records. When
  all records of the epoch have been processed, it is waited for like an input that lags: the next epoch follows.
* An empty input without lag is waited for until its *deadline*, ``max_task_idle_ms`` after it was first found empty, by the clock of the
  micro-batches. A deadline that has passed remains passed until the input has records or lag again, so the task idles only once.

A record that is taken while an input is empty and has no virtual head is an *enforced* choice. If the input then delivers a smaller
timestamp, that record is out of order. Enforced processing is counted, because results do not show that they depend on a guess.

All lanes of a partition that is read through Spark's shuffle are one input. While the partition's upstream lags, another lane may deliver
smaller timestamps. The virtual head of such an input therefore applies even while the input has records.

Source: KIP-353, KIP-695; Kafka Streams ``PartitionGroup.readyToProcess``. There are two differences. The check does not end at the first
input that is not ready, so the idle time of each input begins when the input is first found empty. And enforced processing is counted per
record, even if the task does not wait (see docs/decisions/0021-waiting-for-empty-inputs.md).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from millstream.core.engine.records.queue import PartitionGroup, QueueId, RecordQueue
from millstream.core.fanout.epochs import primary_of
from millstream.core.model.ids import TopicPartition

NEVER_WAIT: Final = -1
"""``max_task_idle_ms`` of a task that does not wait for inputs."""
FOREVER: Final = (1 << 63) - 1
"""``max_task_idle_ms`` of a task that never guesses; also a deadline that never passes."""
_LAST_LANE: Final = "\U0010ffff"

Reason = Literal["lag", "unknown lag", "behind", "idle"]


@dataclass(frozen=True)
class InputFacts:
    """Facts about the inputs of a task in a micro-batch.

    Attributes:
        inputs: All partitions of the task's group.
        lag: Number of records left on the broker after this micro-batch, for inputs that have any.
        until: For lagging inputs, the virtual head: no record before this time can arrive, ms since the epoch. Missing if unknown.
        unknown: True if no broker could report the lag.
        paused: Paused topics. The task does not wait for them.
        shuffled: Topics that are read through Spark's shuffle.
        ended: Inputs that a run to a fixed end has read up to that end.
        closed: Logs of split partitions from which nothing more is read in the epoch that is being read.
    """

    inputs: tuple[TopicPartition, ...]
    lag: Mapping[TopicPartition, int] = field(default_factory=dict)
    until: Mapping[TopicPartition, int] = field(default_factory=dict)
    unknown: bool = False
    paused: frozenset[str] = frozenset()
    shuffled: frozenset[str] = frozenset()
    ended: frozenset[TopicPartition] = frozenset()
    closed: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True)
class Waiting:
    """Why a task with buffered records does not process them.

    Attributes:
        reason: ``lag`` (the input is empty, and the broker has more records), ``unknown lag`` (the input is empty, and no broker answers),
            ``behind`` (the input has not been read up to the time of the buffered records), ``idle`` (the input is empty, and may still
            receive records).
        since_ms: When the wait began, by the clock of the micro-batches, ms since the epoch.
    """

    partition: TopicPartition
    reason: Reason
    since_ms: int

    def line(self) -> str:
        """Return the reason as text for the log."""
        return f"waits for {self.partition}, which {_MEANING[self.reason]}"


_MEANING: Mapping[Reason, str] = {
    "lag": "is empty here and has more records on the broker",
    "unknown lag": "is empty here, and it is not known whether the broker has more records",
    "behind": "has not been read up to the time of the buffered records",
    "idle": "is empty (setting max_task_idle_ms)",
}
_LASTING: Mapping[Reason, int] = {"unknown lag": 0, "lag": 1, "idle": 2, "behind": 3}


class Readiness:
    """Decides whether a task may take its next run of records. Owned by a task.

    Args:
        idle_ms: How long the task waits for an empty input without lag; -1 to wait for no input, :data:`FOREVER` to wait without limit.
        deadlines: Deadlines of empty inputs from the last snapshot, ms since the epoch.
        waiting: Why the task waited at the last snapshot; None if it did not wait.
    """

    def __init__(
        self, idle_ms: int, deadlines: Mapping[TopicPartition, int], waiting: Waiting | None = None
    ) -> None:
        self.deadlines = dict(deadlines)
        self.waiting = waiting
        self.enforced = False
        """True if the last choice was enforced: an empty input might still deliver an earlier record."""
        self._idle_ms = idle_ms
        self._facts: InputFacts | None = None
        self._now_ms = 0
        self._is_checked = False
        self._bounds: list[tuple[int, QueueId]] = []
        self._blocked: list[tuple[TopicPartition, Reason]] = []

    @property
    def active(self) -> bool:
        """True if input facts are known. If not, all records are processed at once."""
        return self._facts is not None

    @property
    def quiet(self) -> bool:
        """True if no input lags, may lag or is paused after this micro-batch, as far as the facts show; True without facts."""
        facts = self._facts
        if facts is None:
            return True
        return not (
            facts.unknown
            or any(facts.lag.values())
            or any(partition.topic in facts.paused for partition in facts.inputs)
        )

    def inform(self, facts: InputFacts) -> None:
        self._facts = facts

    def begin(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._is_checked = False

    def choose(self, group: PartitionGroup) -> tuple[RecordQueue, int] | None:
        """Choose the queue to take from and the end of the run; None if the task must wait or has no records."""
        if not self._is_checked:
            self._check(group)
        return None if self._blocked else group.choose(self._bounds)

    def update_after_take(self, queue: RecordQueue) -> None:
        """Update the state after records were taken. If the queue is now empty, all inputs are checked again."""
        self.waiting = None
        if not queue.chunks:
            self._is_checked = False

    def finish(self, group: PartitionGroup) -> None:
        """End a step: determine the input that the remaining records wait for."""
        if not self._is_checked:
            self._check(group)
        heads = any(queue.chunks for queue in group.queues.values())
        if not heads:
            self.waiting = None
            return
        blocking = self._longest() if self._blocked else self._first_bound(group)
        if blocking is None:
            self.waiting = None
            return
        since = self._now_ms if self.waiting is None else self.waiting.since_ms
        self.waiting = Waiting(*blocking, since)

    def wake_at_ms(self) -> int | None:
        """Return the first deadline that the task waits for, ms since the epoch; None if it waits for none."""
        if self.waiting is None:
            return None
        coming = (due_ms for due_ms in self.deadlines.values() if self._now_ms < due_ms < FOREVER)
        return min(coming, default=None)

    def given_up(self) -> tuple[TopicPartition, ...]:
        """Return the empty inputs whose deadline has passed."""
        return tuple(sorted(p for p, due_ms in self.deadlines.items() if due_ms <= self._now_ms))

    def _check(self, group: PartitionGroup) -> None:
        assert self._facts is not None
        self._is_checked = True
        self.enforced = False
        self._bounds, self._blocked = [], []
        filled = {queue.partition for queue in group.queues.values() if queue.chunks}
        for partition in self._facts.inputs:
            if partition in filled:
                self.deadlines.pop(partition, None)
                if partition.topic in self._facts.shuffled and partition in self._facts.until:
                    self._bound(partition)
            elif (
                partition.topic in self._facts.paused
                or partition in self._facts.ended
                or (
                    partition in self._facts.closed
                    and not _is_epoch_processed(partition, self._facts, filled)
                )
            ):
                self.deadlines.pop(partition, None)
            else:
                self._check_empty(partition, self._facts)

    def _check_empty(self, partition: TopicPartition, facts: InputFacts) -> None:
        if self._idle_ms == NEVER_WAIT:
            self.enforced = True
        elif facts.unknown:
            self.deadlines.pop(partition, None)
            self._blocked.append((partition, "unknown lag"))
        elif facts.lag.get(partition) or partition in facts.closed:
            self.deadlines.pop(partition, None)
            if partition in facts.until:
                self._bound(partition)
            else:
                self._blocked.append((partition, "lag"))
        elif self._now_ms < self._deadline(partition):
            self._blocked.append((partition, "idle"))
        else:
            self.enforced = True

    def _deadline(self, partition: TopicPartition) -> int:
        """Return the deadline of an empty input. A shorter setting takes effect at once."""
        latest = min(self._now_ms + self._idle_ms, FOREVER)
        self.deadlines[partition] = min(self.deadlines.get(partition, latest), latest)
        return self.deadlines[partition]

    def _bound(self, partition: TopicPartition) -> None:
        assert self._facts is not None
        self._bounds.append((self._facts.until[partition], QueueId(partition, _LAST_LANE)))

    def _longest(self) -> tuple[TopicPartition, Reason]:
        return min(
            self._blocked,
            key=lambda blocked: (_LASTING[blocked[1]], -self.deadlines.get(blocked[0], 0), blocked[0]),
        )

    def _first_bound(self, group: PartitionGroup) -> tuple[TopicPartition, Reason] | None:
        """Return the input whose virtual head is before all buffered records; None if a record can be taken."""
        if group.choose(self._bounds) is not None:
            return None
        return min(self._bounds)[1].partition, "behind"


def _is_epoch_processed(log: TopicPartition, facts: InputFacts, filled: Collection[TopicPartition]) -> bool:
    """Return whether all records of the epoch that is being read of a log's partition have been processed, and another epoch follows."""
    primary = _primary(log)
    return all(p in facts.closed and p not in filled for p in facts.inputs if _primary(p) == primary)


def _primary(log: TopicPartition) -> TopicPartition:
    return primary_of(log.topic) or log
