"""A model of Kafka: topics, groups, and transactions with their coordinator.

It has the parts of transactions that matter for delivery (KIP-98, KIP-360, KIP-447): epochs, with which a producer takes an id over;
a decision that takes effect at once, with markers that are written to the partitions later, one by one and in any order; open
transactions that hold back the last stable offset; offsets of groups that are unknown while their transaction is undecided; and
transactions that time out.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from millstream.core.model.ids import TopicPartition
from simulation.scheduler import Process, Scheduler

Headers = tuple[tuple[str, bytes | None], ...]
State = Literal["plain", "open", "committed", "aborted", "marker"]
MarkerTarget = TopicPartition | str
"""The target of a marker: a partition or a group."""


class FencedError(Exception):
    """Another producer has taken the transactional id over."""


@dataclass
class Entry:
    """A record, or the marker that ends a transaction."""

    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Headers = ()
    state: State = "plain"


@dataclass
class Transactional:
    """The state of a transactional id in the coordinator.

    Attributes:
        epoch: The epoch of the producer that took it over last.
        outcome: Whether it is to be committed; None while nothing is decided.
        marker_targets: The partitions and groups that still need its marker.
        entries: Its records.
        offsets: Its offsets, by group.
    """

    epoch: int = -1
    outcome: bool | None = None
    open: bool = False
    marker_targets: list[MarkerTarget] = field(default_factory=list)
    entries: list[tuple[TopicPartition, Entry]] = field(default_factory=list)
    offsets: dict[str, dict[TopicPartition, tuple[int, str]]] = field(default_factory=dict)
    last: tuple[int, bool] = (-1, False)
    """Epoch and outcome of the transaction that was decided last."""

    @property
    def deciding(self) -> bool:
        """Whether it is decided and not yet complete."""
        return self.outcome is not None


class Broker:
    """The cluster. Every method is one request, and takes effect at once."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.topics: dict[str, list[list[Entry]]] = {}
        self.groups: dict[str, dict[TopicPartition, tuple[int, str]]] = {}
        self.ids: dict[str, Transactional] = {}
        self.down_until_ms = 0
        self.on_offsets: Callable[[str, Mapping[TopicPartition, tuple[int, str]]], None] = lambda *_: None
        """Called when offsets of a group are committed."""
        self.on_records: Callable[[TopicPartition, Entry], None] = lambda *_: None
        """Called when a record is committed."""
        self.closing = False
        scheduler.spawn("coordinator", Process("broker"), self._complete_transactions)

    @property
    def available(self) -> bool:
        """Whether the broker answers requests."""
        return self.scheduler.now_ms >= self.down_until_ms

    def create(self, topic: str, partitions: int) -> None:
        """Create a topic, unless it exists."""
        self.topics.setdefault(topic, [[] for _ in range(partitions)])

    def partition_of(self, topic: str, key: bytes | None) -> int:
        """Choose the partition of a key."""
        return zlib.crc32(key or b"") % len(self.topics[topic])

    def end(self, partition: TopicPartition, *, stable: bool) -> int:
        """Return the offset up to which a partition can be read."""
        entries = self.topics[partition.topic][partition.partition]
        if stable:
            return next((n for n, entry in enumerate(entries) if entry.state == "open"), len(entries))
        return len(entries)

    def read(self, partition: TopicPartition, *, committed: bool) -> list[tuple[int, Entry]]:
        """Return the records of a partition with their offsets."""
        hidden = {"marker", "aborted", "open"} if committed else {"marker"}
        entries = self.topics[partition.topic][partition.partition]
        return [(n, entry) for n, entry in enumerate(entries) if entry.state not in hidden]

    def append(self, partition: TopicPartition, entry: Entry) -> None:
        """Append a record that belongs to no transaction."""
        self.topics[partition.topic][partition.partition].append(entry)
        self.on_records(partition, entry)

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        """Commit offsets of a group outside of transactions."""
        self.on_offsets(group, offsets)
        self._set_offsets(group, offsets)

    def undecided(self, group: str, partitions: Iterable[TopicPartition]) -> bool:
        """Return whether a transaction could still change offsets of a group."""
        requested = set(partitions)
        return any(requested & transaction.offsets.get(group, {}).keys() for transaction in self.ids.values())

    # Transactions.

    def take_over(self, name: str) -> int | None:
        """Take a transactional id over; None while its last transaction is not complete (CONCURRENT_TRANSACTIONS)."""
        transaction = self.ids.setdefault(name, Transactional())
        if transaction.open:
            transaction.epoch += 1
            self._decide(transaction, commit=False)
        if transaction.deciding:
            return None
        transaction.epoch += 1
        return transaction.epoch

    def begin(self, name: str, epoch: int) -> bool:
        """Return whether a transaction can begin, because the last one is complete."""
        return not self._current(name, epoch).deciding

    def add(self, name: str, epoch: int, partition: TopicPartition, entry: Entry) -> None:
        """Append a record of a transaction."""
        transaction = self._current(name, epoch)
        assert not transaction.deciding
        self._join(transaction, partition)
        entry.state = "open"
        transaction.entries.append((partition, entry))
        self.topics[partition.topic][partition.partition].append(entry)

    def add_offsets(
        self, name: str, epoch: int, group: str, offsets: Mapping[TopicPartition, tuple[int, str]]
    ) -> None:
        """Add offsets of a group to a transaction."""
        transaction = self._current(name, epoch)
        assert not transaction.deciding
        self._join(transaction, group)
        transaction.offsets.setdefault(group, {}).update(offsets)

    def decide(self, name: str, epoch: int, *, commit: bool) -> None:
        """End a transaction; a repeated request changes nothing."""
        transaction = self._current(name, epoch)
        if transaction.open:
            self._decide(transaction, commit=commit)
        elif transaction.last != (epoch, commit):
            assert not commit or transaction.last[0] != epoch, "committed what was aborted"

    def time_out(self, name: str) -> None:
        """Abort a transaction that has been open for too long; its producer is fenced."""
        transaction = self.ids[name]
        if transaction.open:
            transaction.epoch += 1
            self._decide(transaction, commit=False)

    def _current(self, name: str, epoch: int) -> Transactional:
        transaction = self.ids[name]
        if transaction.epoch != epoch:
            raise FencedError(name)
        return transaction

    def _join(self, transaction: Transactional, target: MarkerTarget) -> None:
        transaction.open = True
        if target not in transaction.marker_targets:
            transaction.marker_targets.append(target)

    def _decide(self, transaction: Transactional, *, commit: bool) -> None:
        transaction.open, transaction.outcome, transaction.last = False, commit, (transaction.epoch, commit)
        if commit:
            for partition, entry in transaction.entries:
                self.on_records(partition, entry)
            for group, offsets in transaction.offsets.items():
                self.on_offsets(group, offsets)

    def _set_offsets(self, group: str, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        self.groups.setdefault(group, {}).update(offsets)

    def _complete_transactions(self) -> None:
        while True:
            self.scheduler.step("writes markers", lambda: self.closing or bool(self._deciding()))
            if not (names := self._deciding()):
                return
            transaction = self.ids[self.scheduler.random.choice(names)]
            if transaction.marker_targets:
                self._mark(
                    transaction,
                    transaction.marker_targets.pop(
                        self.scheduler.random.randrange(len(transaction.marker_targets))
                    ),
                )
            if not transaction.marker_targets:
                transaction.outcome, transaction.entries, transaction.offsets = None, [], {}

    def _deciding(self) -> list[str]:
        return [name for name, transaction in self.ids.items() if transaction.deciding]

    def _mark(self, transaction: Transactional, target: MarkerTarget) -> None:
        if isinstance(target, str):
            offsets = transaction.offsets.pop(target)
            if transaction.outcome:
                self._set_offsets(target, offsets)
            return
        for partition, entry in transaction.entries:
            if partition == target:
                entry.state = "committed" if transaction.outcome else "aborted"
        self.topics[target.topic][target.partition].append(Entry(None, None, 0, state="marker"))
