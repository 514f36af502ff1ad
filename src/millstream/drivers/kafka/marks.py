"""Marks: the last delivered micro-batch of each Spark partition and its checkpoint, stored in Kafka.

A transaction (see ``transactions``) writes a mark in two forms. As an offset of the group ``<application>-commits``, it can be read in
1 ms, but brokers delete the offsets of a group that was unused for a week (``offsets.retention.minutes``). As a record of the
compacted topic ``<application>-commits``, it is permanent. Partition ``n`` of the topic belongs to Spark partition ``n``.

Only the checkpoint in the mark may deliver to the partition, and only the *owner* in the mark, which is a run of the application. Two
copies of one checkpoint have different runs. A run claims all partitions before it reads or plans. The marks of a new checkpoint
have micro-batch number -1.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ClientPartition

from millstream.core.model.errors import OtherCheckpointError
from millstream.core.model.ids import TopicPartition
from millstream.core.ports import BatchId, OffsetRange
from millstream.core.topology.internal import COMMITS_CONFIG, commits_topic
from millstream.drivers.kafka.broker import Broker
from millstream.drivers.kafka.clients import ClientSettings, log, warm
from millstream.drivers.kafka.fetch import KafkaFetcher


class Mark(NamedTuple):
    """The mark of a Spark partition.

    Attributes:
        checkpoint: The checkpoint that may deliver to the partition.
        number: The number of the last delivered micro-batch. -1 if there was none.
        run: The run of the application that planned this micro-batch.
        owner: The run that may deliver. Marks from older versions have neither run nor owner.
    """

    checkpoint: str
    number: int
    run: str = ""
    owner: str = ""


def mark_record(partition: int, mark: Mark) -> tuple[bytes, bytes]:
    return str(partition).encode(), json.dumps(mark._asdict()).encode()


@dataclass(frozen=True)
class Marks:
    settings: ClientSettings = field(repr=False)
    application_id: str
    timeout_s: float

    def read_marks(self) -> dict[int, Mark]:
        """Return the mark of each partition that has one. Does not wait for transactions and changes nothing."""
        broker = self._broker(read_committed=False)
        counts = broker.partition_counts([broker.group])
        marks = {
            partition.partition: mark
            for partition in broker.committed_partitions(counts)
            if (mark := mark_of(partition))
        }
        for planned in self._ranges_without_mark(counts, marks):
            if mark := self._recorded_mark(planned):
                marks[planned.partition] = mark
        return marks

    def ensure_topic(
        self, partitions: int, replication_factor: int, given: Mapping[str, str] | None = None
    ) -> int:
        """Create the topic or add partitions, and return the number of partitions.

        Args:
            replication_factor: Number of replicas of the topic. -1 means the broker's default.
            given: The user's configuration of internal topics, which overrides the default.
        """
        broker = self._broker()
        config = {**COMMITS_CONFIG, **(given or {})}
        return broker.ensure_topic(broker.group, partitions, config, replication_factor)

    def prepare(
        self, partitions: int, replication_factor: int, given: Mapping[str, str] | None = None
    ) -> None:
        """Create the topic or add partitions, and restore marks whose offsets the broker has deleted.

        This reads each partition without a mark among the offsets.
        """
        broker = self._broker()
        name, counts = broker.group, {broker.group: self.ensure_topic(partitions, replication_factor, given)}
        for planned in self._ranges_without_mark(counts, broker.committed_offsets(counts).get(name, {})):
            self._bring_back(planned)

    def brought_back(self, partition: int) -> Mark | None:
        """Restore and return the mark of a partition whose offset the broker has deleted, or None if there is no mark."""
        broker = self._broker()
        counts = broker.partition_counts([broker.group])
        for planned in self._ranges_without_mark(counts, known=()):
            if planned.partition == partition:
                return self._bring_back(planned)
        return None

    def _ranges_without_mark(
        self, counts: Mapping[str, int], known: Collection[int]
    ) -> Iterator[OffsetRange]:
        """Yield the offset ranges of partitions whose mark is not among the group's offsets."""
        broker = self._broker()
        for name, count in counts.items():
            unknown = [partition for partition in range(count) if partition not in known]
            begins, ends = (broker.begin_offsets(counts), broker.end_offsets(counts)) if unknown else ({}, {})
            for partition in unknown:
                begin, end = begins[name][partition], ends[name][partition]
                if end > begin:
                    yield OffsetRange(name, partition, begin, end)

    def _broker(self, *, read_committed: bool = True) -> Broker:
        return Broker(self.settings, commits_topic(self.application_id), read_committed, self.timeout_s)

    def _recorded_mark(self, planned: OffsetRange) -> Mark | None:
        fetcher = KafkaFetcher(self.settings, planned.topic, read_committed=True, patience_s=self.timeout_s)
        wanted = str(planned.partition).encode()
        mark = None
        for records in fetcher.fetch(planned):
            for key, value in zip(records.keys, records.values):
                if key == wanted and value is not None:
                    mark = Mark(**json.loads(value))
        return mark

    def _bring_back(self, planned: OffsetRange) -> Mark | None:
        mark = self._recorded_mark(planned)
        if mark is None:
            return None
        partition = TopicPartition(planned.topic, planned.partition)
        log.info(
            "the broker has deleted the mark of delivered micro-batch %d (%s); writing it again",
            mark.number,
            partition,
        )
        consumer = warm(Consumer, {**self.settings, "group.id": planned.topic, "enable.auto.commit": False})
        offsets = [mark_offset(partition.partition, mark, planned.topic)]
        self._broker().ask("restoring a mark", lambda: consumer.commit(offsets=offsets, asynchronous=False))
        return mark


def mark_offset(partition: int, mark: Mark, topic: str) -> ClientPartition:
    metadata = f"{mark.checkpoint} {mark.run} {mark.owner}" if mark.run or mark.owner else mark.checkpoint
    return ClientPartition(topic, partition, mark.number + 1, metadata)


def mark_of(committed: ClientPartition) -> Mark | None:
    """Return the mark encoded in a committed offset, or None.

    Example:
        >>> mark_of(mark_offset(0, Mark("5f3a", 7, "c41d", "d8e0"), "app-commits"))
        Mark(checkpoint='5f3a', number=7, run='c41d', owner='d8e0')
    """
    if committed.offset < 0:
        return None
    checkpoint, _, runs = (committed.metadata or "").partition(" ")
    run, _, owner = runs.partition(" ")
    return Mark(checkpoint, committed.offset - 1, run, owner)


def owner_of(mark: Mark | None) -> tuple[str, str] | None:
    """Return the checkpoint and the run that may deliver, or None without a mark."""
    return None if mark is None else (mark.checkpoint, mark.owner)


def ahead_of(mark: Mark, newest: BatchId) -> bool:
    """Return whether a copy of a checkpoint has delivered a micro-batch after ``newest``, the last one planned on the checkpoint."""
    return mark.number > newest.number or (mark.number == newest.number >= 0 and mark.run != newest.run)


def taken_over(application_id: str, batch: BatchId, mark: Mark | None) -> OtherCheckpointError:
    """Return the error for a delivery after a takeover by another run. The found mark (None if there is none) provides the details."""
    if mark is None:
        reason = f"its topic {commits_topic(application_id)!r} was deleted, as `millstream reset` does"
    elif mark.checkpoint == batch.checkpoint:
        reason = "a later start on that checkpoint, or on a copy of it, has taken it over"
    else:
        reason = f"a start on another checkpoint ({mark.checkpoint}) has taken it over"
    return OtherCheckpointError(
        f"application {application_id!r} may no longer send from checkpoint {batch.checkpoint}: {reason}. This process "
        f"has sent nothing of micro-batch {batch.number}, so there are no duplicates. To continue with this checkpoint, "
        "stop the other application and see 'Two checkpoints' on the page about delivery"
    )
