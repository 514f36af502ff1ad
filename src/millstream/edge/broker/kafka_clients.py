"""Clients: the parts of the Kafka driver that an application uses, created from its settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from millstream.core.model.ids import TaskId
from millstream.core.ports import Sender
from millstream.core.topology.plan import Plan
from millstream.drivers.kafka.broker import Broker
from millstream.drivers.kafka.clients import ClientSettings, hang_up
from millstream.drivers.kafka.election import Election
from millstream.drivers.kafka.fanout.control_log import KafkaEpochs
from millstream.drivers.kafka.fanout.sender import FanOutSender
from millstream.drivers.kafka.fetch import KafkaFetcher
from millstream.drivers.kafka.internal_topics import InternalTopics, KafkaChangelogs
from millstream.drivers.kafka.marks import Marks
from millstream.drivers.kafka.produce import KafkaSender
from millstream.drivers.kafka.transactions import KafkaTransactions
from millstream.drivers.spark.executor.changelogs import published
from millstream.drivers.spark.executor.global_restore import GlobalTopics
from millstream.edge.broker.topic_preparation import creates_topics
from millstream.edge.settings.settings import Settings

_MOST_BYTES: Final = 1_000_000
"""librdkafka's default for the maximum size of a message."""
_COMPRESSION: Final = ("compression.type", "compression.codec")
_TOPIC_LIMIT: Final = "max.message.bytes"


@dataclass(frozen=True)
class Clients:
    """Creates the clients of an application; its id is the consumer group. Clients connect on first use."""

    settings: Settings
    application_id: str

    def check(self) -> None:
        """Check the settings of all clients without a connection."""
        self.fetcher().check()
        (self.publisher() or self._sender()).check()

    def broker(self) -> Broker:
        return self._broker(read_committed=self.settings.read_committed)

    def creates_topics(self) -> bool | None:
        """Return whether the brokers create missing output topics; None if this user may not see that."""
        return creates_topics(self.broker())

    def disconnect(self) -> None:
        hang_up(self._client("admin"))

    def fetcher(self) -> KafkaFetcher:
        skip_lost = self.settings.on_lost_offsets == "skip"
        return self._fetcher(read_committed=self.settings.read_committed, skip_lost=skip_lost)

    def publisher(self, run: str = "") -> KafkaTransactions | None:
        """Return the sender of an exactly-once run; None under at least once."""
        return self.transactions(run) if self.settings.exactly_once else None

    def senders(self, plan: Plan) -> tuple[Sender | None, Sender | None]:
        """Return the sender of results, and the sender of dead letters for records that stop the application.

        The first is None under exactly once, the second without a dead-letter topic.
        """
        sender, settings = self._sender(), self.settings
        results: Sender = sender
        if plan.fan_out_sinks:
            results = FanOutSender(sender, plan.fan_out_sinks, settings.task_timeout_ms / 1000)
        return (
            None if settings.exactly_once else results,
            None if settings.dead_letter_topic is None else sender,
        )

    def most_bytes(self) -> int:
        """Return the maximum size of a record of the producer, bytes."""
        producer = self._client("producer")
        return int(producer.get("message.max.bytes", _MOST_BYTES))

    def most_bytes_in(self, topics: Mapping[str, int]) -> dict[str, int]:
        """Return the maximum size of a record, bytes, for topics whose limit is smaller than the producer's.

        Empty for a producer that compresses, because the broker measures the compressed size.
        """
        producer = self._client("producer")
        if any(producer.get(name, "none") != "none" for name in _COMPRESSION):
            return {}
        existing = [topic for topic, partitions in topics.items() if partitions]
        too_large = "a result that is too large for its topic stops the application, whatever the policy is"
        configs = InternalTopics(self.broker()).topic_configs(existing, too_large)
        found = {
            topic: int(config[_TOPIC_LIMIT]) for topic, config in configs.items() if _TOPIC_LIMIT in config
        }
        return {topic: most for topic, most in found.items() if most < self.most_bytes()}

    def transactions(self, run: str = "") -> KafkaTransactions:
        settings = self.settings
        patience_s, timeout_ms = settings.task_timeout_ms / 1000, settings.transaction_timeout_ms
        return KafkaTransactions(
            self._client("producer"),
            self._client("consumer"),
            self.application_id,
            patience_s,
            timeout_ms,
            run,
        )

    def election(self) -> Election:
        replicas = self.settings.replication_factor
        return Election(self._client("consumer"), self.broker(), self.application_id, replicas)

    def marks(self) -> Marks:
        return Marks(self._client("admin"), self.application_id, self._timeout_s)

    def prepare_commits(self, partitions: int) -> None:
        """Create the commits topic or add partitions. Under exactly once, also restore forgotten marks."""
        settings, marks = self.settings, self.marks()
        # At least once writes no marks. A search for them would read the whole topic at each start, with the snapshots of all tasks.
        prepare = marks.prepare if settings.exactly_once else marks.ensure_topic
        prepare(partitions, settings.replication_factor, settings.internal_topic_config)

    def changelogs(self, plan: Plan) -> KafkaChangelogs | None:
        """Return the reader of changelog topics, which reads only committed records; None without changelog topics."""
        if not plan.changelogs:
            return None
        return KafkaChangelogs(self._broker(read_committed=True), self._fetcher(read_committed=True))

    def published(self, plan: Plan, tasks: Iterable[TaskId]) -> list[bytes]:
        """Return each task's memory at its last publication to changelog topics, as JSON."""
        reader = self.changelogs(plan)
        return [] if reader is None else published(reader, plan, tasks)

    def global_topics(self, plan: Plan) -> GlobalTopics | None:
        """Return the readers of global topics, with the isolation level of the application; None without global stores."""
        return GlobalTopics(self.broker(), self.fetcher()) if plan.global_parts else None

    def epochs(self, plan: Plan) -> KafkaEpochs | None:
        """Return the epochs of the topics that are read with their fan-out topics; None if there are none."""
        if not plan.split_topics:
            return None
        return KafkaEpochs(self._client("consumer"), plan.split_topics, self._timeout_s)

    def _sender(self) -> KafkaSender:
        return KafkaSender(self._client("producer"))

    def _broker(self, *, read_committed: bool) -> Broker:
        return Broker(self._client("admin"), self.application_id, read_committed, self._timeout_s)

    def _fetcher(self, *, read_committed: bool, skip_lost: bool = False) -> KafkaFetcher:
        patience_s = self.settings.task_timeout_ms / 1000
        return KafkaFetcher(
            self._client("consumer"), self.application_id, read_committed, patience_s, skip_lost
        )

    def _client(self, kind: Literal["admin", "consumer", "producer"]) -> ClientSettings:
        return self.settings.client(kind, self.application_id)

    @property
    def _timeout_s(self) -> float:
        return self.settings.request_timeout_ms / 1000
