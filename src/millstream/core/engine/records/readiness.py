"""Readiness: whether a task may process now, or has to wait for an input that is empty.

A task with several *inputs* takes the record with the smallest timestamp (``millstream.core.engine.records.queue``). That choice is
right only if no input can still bring a smaller one. So before each run of records every input is looked at:

* one with a buffered record is ready;
* an empty one that *lags*, which has records on the broker beyond this micro-batch, is waited for without limit, because
  they are sure to come; if its lag is unknown, it is waited for too;
* an empty one that lags but is known to have nothing before a time has a *virtual head* of that time: what is before it
  may be processed, what is not waits;
* an empty one that has *ended*, because a run to a fixed end has read it to there, is not waited for, and no guess is made;
* an empty one without lag is waited for ``max_task_idle_ms`` after it was first seen so, by the clock of the micro-batches.
  Then its *deadline* has passed, and stays passed until it has records or lag again: idling is paid once per dry spell.

A record taken while an input is empty without a virtual head is an *enforced* choice: if that input still gets a smaller
timestamp, it comes out of order. They are counted, since nothing else tells that a result was a guess.

All lanes of a partition that came through Spark's shuffle are one input. It may bring smaller timestamps in another lane
as long as what feeds it lags, so that its virtual head bounds it also while it holds records.

Source: KIP-353, KIP-695; Kafka Streams ``PartitionGroup.readyToProcess``. Unlike there, the look does not end at the first
input that is not ready, so that every idle time begins when its input is first seen empty; and choices are counted per
record, also when nothing is waited for (see docs/decisions/0021-waiting-for-empty-inputs.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from millstream.core.engine.records.queue import PartitionGroup, QueueId, RecordQueue
from millstream.core.model.ids import TopicPartition

NEVER_WAIT: Final = -1
"""``max_task_idle_ms`` of a task that takes what there is."""
FOREVER: Final = (1 << 63) - 1
"""``max_task_idle_ms`` of a task that never guesses; a deadline that does not come."""
_LAST_LANE: Final = "\U0010ffff"

Reason = Literal["lag", "unknown lag", "behind", "idle"]


@dataclass(frozen=True)
class InputFacts:
    """What a micro-batch knows of the inputs of a task.

    Attributes:
        inputs: All partitions of the task's group.
        lag: Records left on the broker after this micro-batch, for the inputs that have any.
        until: For lagging inputs, a time before which no more records come, ms since the epoch; missing if unknown.
        unknown: Whether no broker could report the lag.
        paused: Paused topics; nobody waits for them.
        shuffled: Topics of the inputs that come through Spark's shuffle.
        ended: Inputs that a run to a fixed end has read to that end.
    """

    inputs: tuple[TopicPartition, ...]
    lag: Mapping[TopicPartition, int] = field(default_factory=dict)
    until: Mapping[TopicPartition, int] = field(default_factory=dict)
    unknown: bool = False
    paused: frozenset[str] = frozenset()
    shuffled: frozenset[str] = frozenset()
    ended: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True)
class Waiting:
    """Why a task that has records does not process them.

    Attributes:
        reason: ``lag`` (it is empty, and there is more on the broker), ``unknown lag`` (it is empty, and no broker answers),
            ``behind`` (it has not been read as far as the records at hand), ``idle`` (it is empty, and may get records).
        since_ms: When it last processed a record, by the clock of the micro-batches, ms since the epoch.
    """

    partition: TopicPartition
    reason: Reason
    since_ms: int

    def line(self) -> str:
        """Return the reason as a line for the log.

        Example:
            >>> Waiting(TopicPartition("rates", 3), "lag", 0).line()
            'waits for rates-3, which is empty here and has more records on the broker'
        """
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
        idle_ms: How long an empty input without lag is waited for; -1 waits for nothing, :data:`FOREVER` without end.
        deadlines: When the wait for each empty input ends, from before a restart, ms since the epoch.
        waiting: Why the task waited, from before a restart; None if it did not.
    """

    def __init__(
        self, idle_ms: int, deadlines: Mapping[TopicPartition, int], waiting: Waiting | None = None
    ) -> None:
        self.deadlines = dict(deadlines)
        self.waiting = waiting
        self.enforced = False
        """Whether the last choice was a guess: an input was empty that might still bring an earlier record."""
        self._idle_ms = idle_ms
        self._facts: InputFacts | None = None
        self._now_ms = 0
        self._looked = False
        self._bounds: list[tuple[int, QueueId]] = []
        self._blocked: list[tuple[TopicPartition, Reason]] = []

    @property
    def active(self) -> bool:
        """Whether input facts are known; if not, everything is processed at once."""
        return self._facts is not None

    @property
    def quiet(self) -> bool:
        """Whether no input is known to have, or to hold back, records after this micro-batch."""
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
        self._looked = False

    def choose(self, group: PartitionGroup) -> tuple[RecordQueue, int] | None:
        """Choose the queue to take from and the end of the run; None if the task has to wait, or has nothing."""
        if not self._looked:
            self._check(group)
        return None if self._blocked else group.choose(self._bounds)

    def taken(self, queue: RecordQueue) -> None:
        """Note that records were taken; if the queue is empty now, all inputs are checked again."""
        self.waiting = None
        if not queue.chunks:
            self._looked = False

    def finish(self, group: PartitionGroup) -> None:
        """End a step: find out what the remaining records wait for."""
        if not self._looked:
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
        """Return when the first wait for an idle input ends, ms since the epoch; None if none is waited for."""
        if self.waiting is None:
            return None
        coming = (due_ms for due_ms in self.deadlines.values() if self._now_ms < due_ms < FOREVER)
        return min(coming, default=None)

    def given_up(self) -> tuple[TopicPartition, ...]:
        """Return the empty inputs that are no longer waited for."""
        return tuple(sorted(p for p, due_ms in self.deadlines.items() if due_ms <= self._now_ms))

    def _check(self, group: PartitionGroup) -> None:
        assert self._facts is not None
        self._looked = True
        self.enforced = False
        self._bounds, self._blocked = [], []
        filled = {queue.partition for queue in group.queues.values() if queue.chunks}
        for partition in self._facts.inputs:
            if partition in filled:
                self.deadlines.pop(partition, None)
                if partition.topic in self._facts.shuffled and partition in self._facts.until:
                    self._bound(partition)
            elif partition.topic in self._facts.paused or partition in self._facts.ended:
                self.deadlines.pop(partition, None)
            else:
                self._check_empty(partition, self._facts)

    def _check_empty(self, partition: TopicPartition, facts: InputFacts) -> None:
        if self._idle_ms == NEVER_WAIT:
            self.enforced = True
        elif facts.unknown:
            self.deadlines.pop(partition, None)
            self._blocked.append((partition, "unknown lag"))
        elif facts.lag.get(partition):
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
        """Return when the wait for an empty input ends; a shorter setting counts at once."""
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
        """Return the input whose virtual head is before all records; None if a record can be taken."""
        if group.choose(self._bounds) is not None:
            return None
        return min(self._bounds)[1].partition, "behind"
