"""Requests about topics in use: reading their configuration, and reading and deleting records of internal topics."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import ConfigEntry, ConfigResource

from millstream.core.model.errors import MillstreamError
from millstream.core.model.ids import TopicPartition
from millstream.core.model.record import Records
from millstream.core.ports import OffsetRange
from millstream.drivers.kafka.broker import Broker
from millstream.drivers.kafka.clients import log
from millstream.drivers.kafka.fetch import KafkaFetcher

_DENIED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.POLICY_VIOLATION,
}


@dataclass(frozen=True)
class InternalTopics:
    broker: Broker

    def topic_configs(
        self, topics: Collection[str], otherwise: str = "it is assumed to be correct"
    ) -> dict[str, dict[str, str]]:
        """Return the configuration of topics, including the broker's defaults. Without permission, warn and return an empty dict.

        Args:
            otherwise: What follows without permission, for the warning.
        """
        configs = described_configs(self.broker, topics)
        if configs is None:
            log.warning(
                "this user may not read the configuration of topics %s (DESCRIBE_CONFIGS); %s",
                ", ".join(sorted(topics)),
                otherwise,
            )
            return {}
        return {
            topic: {name: str(entry.value) for name, entry in config.items()}
            for topic, config in configs.items()
        }

    def delete_records(self, before: Mapping[TopicPartition, int]) -> bool:
        """Delete the records before the given offsets.

        Returns:
            Whether this user has the permission.
        """
        if not before:
            return True
        wanted = [
            ClientPartition(partition.topic, partition.partition, offset)
            for partition, offset in before.items()
        ]

        def deleted() -> None:
            for future in (
                self.broker.admin().delete_records(wanted, request_timeout=self.broker.timeout_s).values()
            ):
                future.result()

        try:
            self.broker.ask(
                f"deleting records of {', '.join(sorted({partition.topic for partition in before}))}", deleted
            )
        except MillstreamError as error:
            if not _is_denied(error):
                raise
            return False
        return True


@dataclass(frozen=True)
class KafkaChangelogs:
    """Reads partitions of internal topics from the beginning to the end. Implements ``ChangelogReader``. Picklable.

    Attributes:
        fetcher: Reads the records. Like ``broker``, it omits records of open and aborted transactions.
    """

    broker: Broker
    fetcher: KafkaFetcher

    def extent(self, topic: str, partition: int) -> OffsetRange:
        count = self.broker.partition_counts([topic]).get(topic, 0)
        if partition >= count:
            return OffsetRange(topic, partition, 0, 0)
        begin = self.broker.begin_offsets({topic: count})[topic][partition]
        end = self.broker.end_offsets({topic: count})[topic][partition]
        return OffsetRange(topic, partition, begin, end)

    def read(self, offsets: OffsetRange) -> Iterator[Records]:
        if offsets.end > offsets.start:
            yield from self.fetcher.fetch(offsets)


def described_configs(broker: Broker, topics: Collection[str]) -> dict[str, dict[str, ConfigEntry]] | None:
    """Return the configuration of topics, including the broker's defaults; None without permission."""
    if not topics:
        return {}
    wanted = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in topics]

    def described() -> dict[str, dict[str, ConfigEntry]]:
        futures = broker.admin().describe_configs(wanted, request_timeout=broker.timeout_s)
        return {resource.name: future.result() for resource, future in futures.items()}

    try:
        return broker.ask("reading the configuration of topics", described)
    except MillstreamError as error:
        if not _is_denied(error):
            raise
        return None


def _is_denied(error: MillstreamError) -> bool:
    cause = error.__cause__
    return isinstance(cause, KafkaException) and cause.args[0].code() in _DENIED
