"""Clients: what of the Kafka driver an application uses, made from its settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from millstream.core.model.ids import TaskId
from millstream.core.topology.plan import Plan
from millstream.drivers.kafka.broker import Broker
from millstream.drivers.kafka.changelog import KafkaChangelogs
from millstream.drivers.kafka.clients import hang_up
from millstream.drivers.kafka.fetch import KafkaFetcher
from millstream.drivers.kafka.internal_topics import InternalTopics
from millstream.drivers.kafka.marks import Marks
from millstream.drivers.kafka.publish import KafkaSender
from millstream.drivers.kafka.transactions import KafkaTransactions
from millstream.drivers.spark.executor.changelogs import published
from millstream.drivers.spark.executor.global_restore import GlobalTopics
from millstream.edge.settings.settings import Settings

_MOST_BYTES: Final = 1_000_000
"""What librdkafka takes if nothing is said."""
_COMPRESSION: Final = ("compression.type", "compression.codec")
_TOPIC_LIMIT: Final = "max.message.bytes"


@dataclass(frozen=True)
class Clients:
    """Makes the clients of an application; none of them connects before it is used.

    Attributes:
        settings: The settings.
        application_id: The application's id, which is its group.
    """

    settings: Settings
    application_id: str

    def check(self) -> None:
        """Refuse settings that Kafka's clients do not take; opens no connection.

        Raises:
            SettingsError: If librdkafka does not know a setting or refuses its value.
        """
        self.fetcher().check()
        (self.publisher() or self._sender()).check()

    def broker(self) -> Broker:
        """Return what asks the broker."""
        return self._broker(read_committed=self.settings.read_committed)

    def disconnect(self) -> None:
        """Close the connections of this process that ask the broker."""
        hang_up(self.settings.client("admin", self.application_id))

    def fetcher(self) -> KafkaFetcher:
        """Return what reads the topics of the topology."""
        skip_lost = self.settings.on_lost_offsets == "skip"
        return self._fetcher(read_committed=self.settings.read_committed, skip_lost=skip_lost)

    def publisher(self, run: str = "") -> KafkaTransactions | None:
        """Return what sends exactly once in a run of the application; None at least once."""
        return self.transactions(run) if self.settings.exactly_once else None

    def senders(self) -> tuple[KafkaSender | None, KafkaSender | None]:
        """Return what sends results, and what sends the dead letters of records that stop the application.

        The first is None under exactly once, the second if there is no topic for dead letters.
        """
        sender, settings = self._sender(), self.settings
        return (
            None if settings.exactly_once else sender,
            None if settings.dead_letter_topic is None else sender,
        )

    def most_bytes(self) -> int:
        """Return how large a record may be for the producer."""
        producer = self.settings.client("producer", self.application_id)
        return int(producer.get("message.max.bytes", _MOST_BYTES))

    def most_bytes_in(self, topics: Mapping[str, int]) -> dict[str, int]:
        """Return how large a record may be in topics that take less than the producer.

        A producer that compresses is not bound by them: the broker measures what is compressed.

        Args:
            topics: Topics with their numbers of partitions.
        """
        producer = self.settings.client("producer", self.application_id)
        if any(producer.get(name, "none") != "none" for name in _COMPRESSION):
            return {}
        there = [topic for topic, partitions in topics.items() if partitions]
        configs = InternalTopics(self.broker()).topic_configs(there)
        found = {
            topic: int(config[_TOPIC_LIMIT]) for topic, config in configs.items() if _TOPIC_LIMIT in config
        }
        return {topic: most for topic, most in found.items() if most < self.most_bytes()}

    def transactions(self, run: str = "") -> KafkaTransactions:
        """Return what sends in transactions in a run of the application."""
        settings = self.settings
        producer = settings.client("producer", self.application_id)
        consumer, patience_s = (
            settings.client("consumer", self.application_id),
            settings.task_timeout_ms / 1000,
        )
        return KafkaTransactions(
            producer, consumer, self.application_id, patience_s, settings.transaction_timeout_ms, run
        )

    def marks(self) -> Marks:
        """Return what prepares the marks of delivered batches."""
        admin = self.settings.client("admin", self.application_id)
        return Marks(admin, self.application_id, self.settings.request_timeout_ms / 1000)

    def changelogs(self, plan: Plan) -> KafkaChangelogs | None:
        """Return what reads changelog topics: only what is committed, whatever the application itself reads."""
        if not plan.changelogs:
            return None
        return KafkaChangelogs(self._broker(read_committed=True), self._fetcher(read_committed=True))

    def published(self, plan: Plan, tasks: Iterable[TaskId]) -> list[bytes]:
        """Return what each of the tasks remembered when it last published to changelog topics, as JSON."""
        reader = self.changelogs(plan)
        return [] if reader is None else published(reader, plan, tasks)

    def global_topics(self, plan: Plan) -> GlobalTopics | None:
        """Return what fills global stores; it reads as the application itself does."""
        return GlobalTopics(self.broker(), self.fetcher()) if plan.global_parts else None

    def _sender(self) -> KafkaSender:
        return KafkaSender(self.settings.client("producer", self.application_id))

    def _broker(self, *, read_committed: bool) -> Broker:
        admin, timeout_s = (
            self.settings.client("admin", self.application_id),
            self.settings.request_timeout_ms / 1000,
        )
        return Broker(admin, self.application_id, read_committed, timeout_s)

    def _fetcher(self, *, read_committed: bool, skip_lost: bool = False) -> KafkaFetcher:
        consumer = self.settings.client("consumer", self.application_id)
        patience_s = self.settings.task_timeout_ms / 1000
        return KafkaFetcher(consumer, self.application_id, read_committed, patience_s, skip_lost)
