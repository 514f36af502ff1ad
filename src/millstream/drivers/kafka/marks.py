"""Marks: which micro-batch each Spark partition has delivered last, and for which checkpoint, kept in Kafka.

A mark is written by a transaction (see ``transactions``) in two forms. As an offset of the group ``<application>-commits``
it is read in a millisecond; but brokers forget the offsets of a group that nobody has used for a week
(``offsets.retention.minutes``). As a record of the compacted topic ``<application>-commits`` it stays. Partition ``n`` of
the topic belongs to Spark partition ``n``.

The checkpoint in the mark owns the partition: nobody delivers there for another one. A checkpoint that begins claims the
partitions with marks of batch -1, before anything is read.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ClientPartition

from millstream.core.model.errors import OtherCheckpointError
from millstream.core.model.ids import TopicPartition
from millstream.core.ports import BatchId, OffsetRange
from millstream.core.topology.internal import COMMITS_CONFIG, commits_topic
from millstream.drivers.kafka.broker import Broker
from millstream.drivers.kafka.clients import ClientSettings, log, warm
from millstream.drivers.kafka.fetch import KafkaFetcher


def mark_record(partition: int, batch: BatchId) -> tuple[bytes, bytes]:
    """Give key and value of a mark as a record."""
    return str(partition).encode(), json.dumps(batch._asdict()).encode()


@dataclass(frozen=True)
class Marks:
    """The marks of an application.

    Attributes:
        settings: Client settings.
        application_id: The application's id.
        timeout_s: How long an answer may take, seconds.
    """

    settings: ClientSettings = field(repr=False)
    application_id: str
    timeout_s: float

    def found(self) -> dict[int, BatchId]:
        """Return the mark of each partition that has one; waits for no transaction, and changes nothing.

        Raises:
            BrokerUnavailableError: If no broker answers in time.
        """
        broker = self._broker(read_committed=False)
        counts = broker.partition_counts([broker.group])
        marks = {at.partition: mark for at in broker.committed(counts) if (mark := mark_of(at))}
        for planned in self._forgotten(counts, marks):
            if mark := self._recorded(planned):
                marks[planned.partition] = mark
        return marks

    def prepare(
        self, partitions: int, replication_factor: int, given: Mapping[str, str] | None = None
    ) -> None:
        """Create the topic, or give it more partitions; bring back marks that the broker has forgotten.

        Args:
            partitions: Number of Spark partitions.
            replication_factor: Replicas of the topic; -1 is the broker's default.
            given: What the user adds to the configuration of internal topics.

        Raises:
            BrokerUnavailableError: If no broker answers in time.
        """
        broker = self._broker()
        name, config = broker.group, {**COMMITS_CONFIG, **(given or {})}
        counts = {name: broker.ensure_topic(name, partitions, config, replication_factor)}
        for planned in self._forgotten(counts, broker.committed_offsets(counts).get(name, {})):
            self._bring_back(planned)

    def brought_back(self, partition: int) -> BatchId | None:
        """Return the mark of a partition that the broker has forgotten, and let it be known again; None if there is none.

        Raises:
            BrokerUnavailableError: If no broker answers in time.
        """
        broker = self._broker()
        counts = broker.partition_counts([broker.group])
        for planned in self._forgotten(counts, known=()):
            if planned.partition == partition:
                return self._bring_back(planned)
        return None

    def _forgotten(self, counts: Mapping[str, int], known: Collection[int]) -> Iterator[OffsetRange]:
        """Return what there is to read of partitions whose marks the group does not know."""
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

    def _recorded(self, planned: OffsetRange) -> BatchId | None:
        """Read the mark of a partition as the topic has it."""
        fetcher = KafkaFetcher(self.settings, planned.topic, read_committed=True, patience_s=self.timeout_s)
        wanted = str(planned.partition).encode()
        batch = None
        for records in fetcher.fetch(planned):
            for key, value in zip(records.keys, records.values):
                if key == wanted and value is not None:
                    batch = BatchId(**json.loads(value))
        return batch

    def _bring_back(self, planned: OffsetRange) -> BatchId | None:
        batch = self._recorded(planned)
        if batch is None:
            return None
        at = TopicPartition(planned.topic, planned.partition)
        log.info(
            "the broker had forgotten that batch %d was delivered (%s); it is marked again", batch.number, at
        )
        settings = {**self.settings, "group.id": planned.topic, "enable.auto.commit": False}
        warm(Consumer, settings).commit(
            offsets=[mark_offset(at.partition, batch, planned.topic)], asynchronous=False
        )
        return batch


def mark_offset(partition: int, batch: BatchId, topic: str) -> ClientPartition:
    """Give a mark as an offset to be committed."""
    return ClientPartition(topic, partition, batch.number + 1, batch.checkpoint)


def mark_of(found: ClientPartition) -> BatchId | None:
    """Return the mark that a committed offset is; None if there is none.

    Example:
        >>> mark_of(mark_offset(0, BatchId("5f3a", 7), "app-commits"))
        BatchId(checkpoint='5f3a', number=7)
    """
    return BatchId(found.metadata or "", found.offset - 1) if found.offset >= 0 else None


def taken_over(application_id: str, batch: BatchId, mark: BatchId | None) -> OtherCheckpointError:
    """Make the error for a delivery that comes after somebody else has taken the application over.

    Args:
        application_id: The application.
        batch: The batch that was to be delivered.
        mark: What lies there in place of the checkpoint's mark; None is nothing.
    """
    if mark is None:
        who = f"its topic {commits_topic(application_id)!r} was deleted, as `millstream reset` does"
    else:
        who = f"a start on another checkpoint ({mark.checkpoint}) has taken it over"
    return OtherCheckpointError(
        f"application {application_id!r} may no longer send from checkpoint {batch.checkpoint}: {who}. Nothing of micro-batch "
        f"{batch.number} was sent from here, so nothing is there twice. If this one was to go on, stop the other one and see "
        "'Two checkpoints' in the page on delivery"
    )
