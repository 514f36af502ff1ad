"""Ledger: the control topic of a topic with fan-out, the meaning of its records, and the consequences for producers and changes.

The control topic has one partition, whose records are applied in order, so all readers agree at an equal offset. Kinds of records:

* ``partition/<number>``: the epochs of a partition, and its pending change. Written only in transactions of the *coordinator*, the process
  that last acquired the coordinator's transactional id. The broker rejects transactions of all earlier coordinators.
* ``member/<session>``: a session of a producer, and the phases that it has acknowledged. A session counts from this record on. The
  producer writes the record; the producer deletes it, or the coordinator that has fenced the producer.
* ``barrier``: no content. A reader that reads the barrier it has written has read everything before it.

A change has two phases. *Announced*: each session acknowledges the change; sessions that do not are fenced, and no session is restricted.
*Holding*: each session commits what it has sent to the partition, holds further records back, and acknowledges. When every session has
acknowledged or is fenced, no record of the old epoch can be committed any more, so the log ends are the fence, and the coordinator writes
the new epoch.

A session whose first record follows the record of a phase has read the phase before it sends anything, because it reads its own record
first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from millstream.core.fanout.epochs import History
from millstream.core.model.ids import TopicPartition

ANNOUNCED: Final = "announced"
HOLDING: Final = "holding"
BARRIER: Final = "barrier"
_PARTITION: Final = "partition/"
_MEMBER: Final = "member/"


class Phase(NamedTuple):
    """A phase of a change.

    Attributes:
        change: The number of the change, which increases with every attempt.
        name: ``announced`` or ``holding``.
    """

    change: int
    name: str


@dataclass(frozen=True, slots=True)
class PartitionState:
    """The state of a partition in the control topic.

    Attributes:
        change: The number of the latest change, finished or not; 0 without one.
        pending: The phase of the pending change; None if there is none.
        ranges: The number of ranges after the pending change.
    """

    history: History
    change: int = 0
    pending: str | None = None
    ranges: int = 1

    @property
    def phase(self) -> Phase | None:
        return None if self.pending is None else Phase(self.change, self.pending)

    def announced(self, ranges: int) -> PartitionState:
        """Return the state with a newly announced change, which replaces an unfinished one."""
        return PartitionState(self.history, self.change + 1, ANNOUNCED, ranges)

    def holding(self) -> PartitionState:
        """Return the state in which producers hold back records of the partition."""
        return PartitionState(self.history, self.change, HOLDING, self.ranges)

    def finished(self, ends: Mapping[TopicPartition, int]) -> PartitionState:
        return PartitionState(self.history.changed(self.ranges, ends), self.change, None, self.ranges)

    def cancelled(self) -> PartitionState:
        """Return the state after the change was cancelled; the old epoch continues."""
        return PartitionState(self.history, self.change, None, self.history.current.ranges)

    def entry(self) -> tuple[str, dict[str, object]]:
        """Return key and value of the control record."""
        value = {"epochs": self.history.to_json(), "change": self.change, "pending": self.pending}
        return f"{_PARTITION}{self.history.primary.partition}", {**value, "ranges": self.ranges}


def member_entry(session: str, answers: Mapping[int, Phase]) -> tuple[str, dict[str, object]]:
    """Return key and value of the control record of a producer's session.

    Args:
        session: The session's transactional id.
        answers: The phase that it has acknowledged, by partition.
    """
    return member_key(session), {"answers": {str(number): list(phase) for number, phase in answers.items()}}


def member_key(session: str) -> str:
    return _MEMBER + session


@dataclass
class Ledger:
    """The state of the control topic as a reader has read it.

    Attributes:
        members: The sessions of producers, with the phase that each has acknowledged, by partition.

    Example:
        >>> ledger = Ledger("orders")
        >>> ledger.apply(*member_entry("p-1", {}))
        >>> ledger.apply(*ledger.state(0).announced(4).entry())
        >>> sorted(ledger.missing(0)), dict(ledger.owed("p-1"))
        (['p-1'], {0: Phase(change=1, name='announced')})
        >>> ledger.apply(*member_entry("p-1", dict(ledger.owed("p-1"))))
        >>> sorted(ledger.missing(0))
        []
    """

    topic: str
    members: dict[str, dict[int, Phase]] = field(default_factory=dict)
    barrier: str = ""
    _states: dict[int, PartitionState] = field(default_factory=dict)

    def apply(self, key: str, value: Mapping[str, Any] | None) -> None:
        """Apply a control record. Unknown kinds are ignored."""
        if key == BARRIER and value is not None:
            self.barrier = value["token"]
        elif key.startswith(_PARTITION) and value is not None:
            number = int(key.removeprefix(_PARTITION))
            history = History.from_json(TopicPartition(self.topic, number), value["epochs"])
            self._states[number] = PartitionState(history, value["change"], value["pending"], value["ranges"])
        elif key.startswith(_MEMBER):
            session = key.removeprefix(_MEMBER)
            if value is None:
                self.members.pop(session, None)
            else:
                answers = {int(number): Phase(*phase) for number, phase in value["answers"].items()}
                self.members[session] = answers

    def state(self, partition: int) -> PartitionState:
        known = self._states.get(partition)
        return known or PartitionState(History.new(TopicPartition(self.topic, partition)))

    def states(self) -> dict[int, PartitionState]:
        return dict(sorted(self._states.items()))

    def held_partitions(self) -> set[int]:
        """Return the partitions whose records producers hold back."""
        return {number for number, state in self._states.items() if state.pending == HOLDING}

    def owed(self, session: str) -> Iterator[tuple[int, Phase]]:
        """Yield the partitions with a phase that a session has not acknowledged."""
        answers = self.members.get(session, {})
        for number, state in self._states.items():
            if state.phase is not None and answers.get(number) != state.phase:
                yield number, state.phase

    def missing(self, partition: int) -> set[str]:
        """Return the sessions that have not acknowledged the phase of a partition's change."""
        phase = self.state(partition).phase
        return {session for session, answers in self.members.items() if answers.get(partition) != phase}
