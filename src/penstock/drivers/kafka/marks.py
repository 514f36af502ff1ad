"""Marks: which micro-batch each Spark partition has delivered last, kept in Kafka.

A mark is written by a transaction (see ``transactions``) in two forms. As an offset of the group ``<application>-commits``
it is read in a millisecond; but brokers forget the offsets of a group that nobody has used for a week
(``offsets.retention.minutes``). As a record of the compacted topic ``<application>-commits`` it stays. Partition ``n`` of
the topic belongs to Spark partition ``n``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ClientPartition

from penstock.core.model.ids import TopicPartition
from penstock.core.plan.internal import COMMITS_CONFIG, commits_topic
from penstock.core.ports import BatchId, OffsetRange
from penstock.drivers.kafka.broker import Broker
from penstock.drivers.kafka.clients import ClientSettings, log, warm
from penstock.drivers.kafka.fetch import KafkaFetcher


def mark_record(partition: int, batch: BatchId) -> tuple[bytes, bytes]:
    """Give key and value of a mark as a record."""
    return str(partition).encode(), json.dumps(batch._asdict()).encode()


@dataclass(frozen=True)
class Marks:
    """The marks of an application, before it starts.

    Attributes:
        settings: Client settings.
        application_id: The application's id.
        timeout_s: How long an answer may take, seconds.
    """

    settings: ClientSettings = field(repr=False)
    application_id: str
    timeout_s: float

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
        name = commits_topic(self.application_id)
        broker = Broker(self.settings, name, read_committed=True, timeout_s=self.timeout_s)
        config = {**COMMITS_CONFIG, **(given or {})}
        counts = {name: broker.ensure_topic(name, partitions, config, replication_factor)}
        begin, end = broker.begin_offsets(counts)[name], broker.end_offsets(counts)[name]
        known = broker.committed_offsets(counts).get(name, {})
        for partition in range(counts[name]):
            if partition not in known and end[partition] > begin[partition]:
                self._bring_back(OffsetRange(name, partition, begin[partition], end[partition]))

    def _bring_back(self, planned: OffsetRange) -> None:
        fetcher = KafkaFetcher(self.settings, planned.topic, read_committed=True, patience_s=self.timeout_s)
        wanted = str(planned.partition).encode()
        batch = None
        for records in fetcher.fetch(planned):
            for key, value in zip(records.keys, records.values):
                if key == wanted and value is not None:
                    batch = BatchId(**json.loads(value))
        if batch is None:
            return
        at = TopicPartition(planned.topic, planned.partition)
        log.info(
            "the broker had forgotten that batch %d was delivered (%s); it is marked again", batch.number, at
        )
        settings = {**self.settings, "group.id": planned.topic, "enable.auto.commit": False}
        warm(Consumer, settings).commit(
            offsets=[mark_offset(at.partition, batch, planned.topic)], asynchronous=False
        )


def mark_offset(partition: int, batch: BatchId, topic: str) -> ClientPartition:
    """Give a mark as an offset to be committed."""
    return ClientPartition(topic, partition, batch.number + 1, batch.checkpoint)


def is_marked(found: ClientPartition, batch: BatchId) -> bool:
    """Tell whether a mark that was found says that a batch has been delivered; marks of other checkpoints say nothing."""
    return bool(found.metadata == batch.checkpoint and found.offset > batch.number)
