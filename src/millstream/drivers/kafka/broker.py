"""Requests to the broker: topics, offsets, groups. Implements ``TopicReader`` and ``OffsetCommitter``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from time import monotonic, sleep
from types import MappingProxyType
from typing import Any, Final, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicCollection
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import NewPartitions, NewTopic, OffsetSpec

from millstream.core.model.errors import BrokerUnavailableError, TopicNotFoundError
from millstream.core.model.ids import TopicPartition
from millstream.core.model.positions import Offsets
from millstream.core.ports import TimedOffset, TopicFacts
from millstream.drivers.kafka.admin_client import ExplainingAdminClient
from millstream.drivers.kafka.clients import NOT_READY, ClientSettings, is_unavailable, translated, warm
from millstream.drivers.kafka.log_offsets import found, requested
from millstream.drivers.kafka.overdue import Patience

Answer = TypeVar("Answer")

RESET = "penstock:reset"
"""Metadata of an offset that a reset has committed for the next start. A later commit overwrites it.

Like the next constant, it contains the project's former name, so that offsets committed under that name remain readable."""
_TAKEN: Final = "penstock:read up to "
"""Prefix of the metadata of an offset that was committed below the position because of in-flight records."""

_RETRY_S = 0.1
_ATTEMPT_S = 3.0
"""Timeout of one request for offsets, in seconds. librdkafka sometimes waits for a leader without requesting it again."""
_APPEAR_S = 60.0
"""Timeout until brokers know a topic that the controller has created, or no longer know a deleted one, in seconds."""
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""The id that brokers without topic ids return."""
# A broker may not know its topics yet immediately after its start, and a client may not know new partitions.
_MAY_COME = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION, KafkaError._TIMED_OUT}
_ASK_AGAIN = NOT_READY | _MAY_COME


@dataclass(frozen=True)
class Broker:
    """Requests of the planner and the application to the broker. Picklable. Connects on first use.

    Requests raise ``BrokerUnavailableError`` if no broker answers in time.

    Attributes:
        group: The consumer group, which is the application's id.
        read_committed: Whether only records of committed transactions count as readable.
    """

    settings: ClientSettings = field(repr=False)
    group: str
    read_committed: bool = False
    timeout_s: float = 10.0

    @property
    def servers(self) -> str:
        return str(self.settings.get("bootstrap.servers"))

    @property
    def _attempt_s(self) -> float:
        return min(_ATTEMPT_S, self.timeout_s / 2)

    def partition_counts(self, topics: Iterable[str] | None = None) -> dict[str, int]:
        """Return the number of partitions of each existing topic. None means all topics."""
        known = self.ask("listing topics", lambda: self.admin().list_topics(timeout=self.timeout_s)).topics
        wanted = known if topics is None else [topic for topic in topics if topic in known]
        return {topic: len(known[topic].partitions) for topic in wanted if known[topic].error is None}

    def topic_facts(self, topics: Iterable[str]) -> dict[str, TopicFacts]:
        """Return the id and the number of partitions of each existing topic."""
        wanted = list(topics)
        if not wanted:
            return {}
        return self.ask(f"describing topics {', '.join(wanted)}", lambda: self._described(wanted))

    def _described(self, topics: list[str]) -> dict[str, TopicFacts]:
        admin = self.admin()
        futures = admin.describe_topics(TopicCollection(topics), request_timeout=self.timeout_s)
        facts: dict[str, TopicFacts] = {}
        for topic, future in futures.items():
            try:
                description = future.result()
            except KafkaException as error:
                if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    continue
                raise
            identity = str(description.topic_id)
            facts[topic] = TopicFacts("" if identity == _NO_ID else identity, len(description.partitions))
        return facts

    def writable_topics(self, topics: Iterable[str]) -> dict[str, int]:
        """Return the partition counts of topics for a producer. A broker with auto-creation then creates missing topics."""
        counts: dict[str, int] = {}
        producer = warm(Producer, {"allow.auto.create.topics": True, **self.settings})
        for topic in topics:
            answer = self.ask(
                f"describing topic {topic!r}", partial(producer.list_topics, topic, self.timeout_s)
            )
            counts[topic] = len(answer.topics[topic].partitions) if answer.topics[topic].error is None else 0
        return counts

    def create_topic(
        self, topic: str, partitions: int, config: Mapping[str, str], replication_factor: int = -1
    ) -> None:
        """Create a topic unless it exists, and wait until the brokers know it.

        Args:
            replication_factor: Number of replicas. -1 means the broker's default.

        Raises:
            BrokerUnavailableError: If no broker answers in time, or the partitions do not appear.
        """
        new = NewTopic(topic, partitions, replication_factor, config=dict(config))

        def created() -> bool:
            admin = self.admin()
            future = admin.create_topics([new], operation_timeout=self.timeout_s)[topic]
            return self._has_changed(future, KafkaError.TOPIC_ALREADY_EXISTS)

        try:
            is_new = self.ask(f"creating topic {topic!r}", created)
        except Exception:
            if topic not in self.partition_counts([topic]):
                raise
            return
        self._await_partitions(topic, partitions if is_new else 1)

    def _has_changed(self, future: Future[Any], already: int) -> bool:
        """Wait for a change of a topic.

        Returns:
            False if the broker answers that another process, or an attempt whose answer was lost, has made it already.
        """
        try:
            future.result(self.timeout_s)
        except KafkaException as error:
            if error.args[0].code() != already:
                raise
            return False
        return True

    def ensure_topic(
        self, topic: str, partitions: int, config: Mapping[str, str], replication_factor: int = -1
    ) -> int:
        """Create a topic or add missing partitions, wait until the brokers know them, and return the number of partitions.

        Raises:
            BrokerUnavailableError: If no broker answers in time, or the partitions do not appear.
        """
        existing = self.partition_counts([topic]).get(topic, 0)
        if not existing:
            self.create_topic(topic, partitions, config, replication_factor)
        elif existing < partitions:

            def added() -> bool:
                admin, more = self.admin(), [NewPartitions(topic, partitions)]
                future = admin.create_partitions(more, operation_timeout=self.timeout_s)[topic]
                return self._has_changed(future, KafkaError.INVALID_PARTITIONS)

            self.ask(f"adding partitions to topic {topic!r}", added)
            self._await_partitions(topic, partitions)
        return max(existing, partitions)

    def _await_partitions(self, topic: str, partitions: int) -> None:
        self._await_count(
            topic,
            lambda count: count >= partitions,
            f"topic {topic!r} was created at {self.servers}, but its {partitions} partitions did not appear within "
            f"{_APPEAR_S:.0f} s. Check whether the cluster is overloaded, and start again",
        )

    def _await_count(self, topic: str, is_right: Callable[[int], bool], otherwise: str) -> None:
        """Wait until the brokers return an expected partition count for a topic. A missing topic has 0 partitions."""
        patience = Patience(_APPEAR_S)
        while not is_right(self.partition_counts([topic]).get(topic, 0)):
            if patience.is_over():
                raise BrokerUnavailableError(otherwise)
            sleep(_RETRY_S)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic if it exists, and wait until it has disappeared.

        Raises:
            BrokerUnavailableError: If no broker answers, or the topic still exists after the timeout.
        """

        def deleted() -> None:
            admin = self.admin()
            admin.delete_topics([topic], operation_timeout=self.timeout_s)[topic].result(self.timeout_s)

        with suppress(TopicNotFoundError):
            self.ask(f"deleting topic {topic!r}", deleted, NOT_READY)
        self._await_count(
            topic,
            lambda count: count == 0,
            f"the topic {topic!r} still exists {_APPEAR_S:.0f} s after it was deleted at {self.servers}; try again "
            "when the cluster has caught up",
        )

    def groups(self) -> list[str]:
        """Return the ids of all groups.

        Raises:
            MillstreamError: If a broker cannot list its groups. Without them, the topics of their applications would have no owner.
        """

        def listed() -> list[str]:
            admin = self.admin()
            groups = admin.list_consumer_groups(request_timeout=self.timeout_s).result(self.timeout_s)
            for error in groups.errors or ():
                raise KafkaException(error)
            return [group.group_id for group in groups.valid]

        return self.ask("listing groups", listed)

    def offsets_at(self, partitions: Mapping[str, int], timestamp_ms: int) -> Offsets:
        spec = OffsetSpec.for_timestamp(timestamp_ms)
        return self._offsets(partitions, spec, read_committed=self.read_committed, may_be_missing=True)

    def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, TimedOffset]:
        return self._records(
            {partition: OffsetSpec.for_timestamp(time_ms) for partition, time_ms in times.items()}
        )

    def newest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, TimedOffset]:
        """Return the record with the largest timestamp in each partition, in one round trip (KIP-734)."""
        return self._records(dict.fromkeys(partitions, OffsetSpec.max_timestamp()))

    def _records(self, wanted: Mapping[TopicPartition, OffsetSpec]) -> dict[TopicPartition, TimedOffset]:
        if not wanted:
            return {}
        asked = {ClientPartition(*partition): spec for partition, spec in wanted.items()}
        doing = f"looking up offsets by timestamp for {', '.join(sorted({partition.topic for partition in wanted}))}"
        answers = self.ask(
            doing,
            lambda: found(self._answers(asked, read_committed=self.read_committed), may_be_missing=True),
        )
        return {
            TopicPartition(partition.topic, partition.partition): TimedOffset(answer.offset, answer.timestamp)
            for partition, answer in answers.items()
        }

    def _answers(self, wanted: dict[ClientPartition, OffsetSpec], *, read_committed: bool) -> dict[Any, Any]:
        return requested(self.admin(), wanted, self._attempt_s, read_committed=read_committed)

    def begin_offsets(self, partitions: Mapping[str, int]) -> Offsets:
        return self._offsets(partitions, OffsetSpec.earliest(), read_committed=self.read_committed)

    def end_offsets(self, partitions: Mapping[str, int]) -> Offsets:
        return self._offsets(partitions, OffsetSpec.latest(), read_committed=self.read_committed)

    def log_end_offsets(self, partitions: Mapping[str, int]) -> Offsets:
        return self._offsets(partitions, OffsetSpec.latest(), read_committed=False)

    def committed_offsets(self, partitions: Mapping[str, int]) -> Offsets:
        return _by_topic(self.committed_partitions(partitions))

    def taken_offsets(self, partitions: Mapping[str, int]) -> Offsets:
        committed = self.committed_partitions(partitions)
        for partition in committed:
            if (metadata := partition.metadata or "").startswith(_TAKEN):
                partition.offset = int(metadata.removeprefix(_TAKEN))
        return _by_topic(committed)

    def reset_offsets(self, partitions: Mapping[str, int]) -> Offsets:
        committed = self.committed_partitions(partitions)
        return _by_topic(committed) if all(partition.metadata == RESET for partition in committed) else {}

    def committed_partitions(self, partitions: Mapping[str, int]) -> list[ClientPartition]:
        """Return the group's committed offsets with their metadata. Partitions without one are omitted."""
        wanted = [ClientPartition(t, p) for t, count in partitions.items() for p in range(count)]
        if not wanted:
            return []
        doing = f"fetching the committed offsets of group {self.group!r}"
        committed = self.ask(doing, lambda: self._fetch_committed(wanted))
        return [partition for partition in committed if partition.offset >= 0]

    def _fetch_committed(self, partitions: list[ClientPartition]) -> list[ClientPartition]:
        try:
            return list(self._consumer().committed(partitions, timeout=self.timeout_s))
        except KafkaException as error:
            if error.args[0].code() == KafkaError._TIMED_OUT:
                self.admin().check_group(self.group, self._attempt_s)
            raise

    def commit(
        self,
        offsets: Mapping[TopicPartition, int],
        taken: Mapping[TopicPartition, int] = MappingProxyType({}),
        metadata: str = "",
    ) -> None:
        """Commit the group's offsets.

        Args:
            taken: Positions of partitions that were read beyond their committed offset. Stored as metadata.
        """
        if offsets:
            positions = [
                ClientPartition(
                    partition.topic,
                    partition.partition,
                    offset,
                    f"{_TAKEN}{taken[partition]}" if partition in taken else metadata,
                )
                for partition, offset in offsets.items()
            ]
            self._commit(positions)

    def renew(self, partitions: Mapping[str, int]) -> None:
        """Commit the group's committed offsets again, with their metadata, so that the broker keeps them."""
        if committed := self.committed_partitions(partitions):
            self._commit(committed)

    def _commit(self, positions: list[ClientPartition]) -> None:
        consumer = self._consumer()
        doing = f"committing offsets of group {self.group!r}"
        self.ask(doing, lambda: consumer.commit(offsets=positions, asynchronous=False))

    def _offsets(
        self,
        partitions: Mapping[str, int],
        spec: OffsetSpec,
        *,
        read_committed: bool,
        may_be_missing: bool = False,
    ) -> Offsets:
        wanted = {ClientPartition(t, p): spec for t, count in partitions.items() for p in range(count)}
        if not wanted:
            return {}
        doing = f"listing offsets of {', '.join(partitions)}"
        return self.ask(doing, lambda: self._list_offsets(wanted, read_committed, may_be_missing))

    def _list_offsets(
        self, wanted: dict[ClientPartition, OffsetSpec], read_committed: bool, may_be_missing: bool
    ) -> Offsets:
        answers = self._answers(wanted, read_committed=read_committed)
        offsets: Offsets = {}
        for partition, answer in found(answers, may_be_missing=may_be_missing).items():
            offsets.setdefault(partition.topic, {})[partition.partition] = answer.offset
        return offsets

    def admin(self) -> ExplainingAdminClient:
        """Return the admin client. Keep a reference while waiting for one of its futures: without references it is destroyed."""
        return warm(ExplainingAdminClient, self.settings)

    def _consumer(self) -> Consumer:
        # A consumer that reads only committed records waits for the offsets of open transactions.
        isolation = "read_committed" if self.read_committed else "read_uncommitted"
        settings = {"group.id": self.group, "enable.auto.commit": False, "isolation.level": isolation}
        return warm(Consumer, {**self.settings, **settings})

    def ask(self, doing: str, question: Callable[[], Answer], again: Collection[int] = _ASK_AGAIN) -> Answer:
        """Send a request. Retry while the broker is not ready, and after an attempt that failed at once because of a connection.

        Args:
            question: Sends the request and waits for the answer. A future that was created outside would fail again with the same error.
            again: The errors after which to retry.

        Raises:
            MillstreamError: The client's error, translated for users.
        """
        patience = Patience(self.timeout_s)
        while True:
            began_s = monotonic()
            try:
                return question()
            except TimeoutError as late:
                # Of a future, which has waited for the answer as long as all attempts together.
                timed_out = KafkaException(KafkaError(KafkaError._TIMED_OUT))
                raise translated(timed_out, doing, self.servers, self.admin().last_problem()) from late
            except KafkaException as error:
                cause = error.args[0]
                # A lost connection fails at once, without waiting for another one.
                is_quick = monotonic() - began_s < self._attempt_s
                may_help = cause.code() in again or (is_quick and is_unavailable(cause))
                if patience.is_over() or not may_help:
                    raise translated(error, doing, self.servers, self.admin().last_problem()) from error
                sleep(_RETRY_S)
                # Refresh the metadata. Otherwise, librdkafka keeps using outdated leaders and epochs for minutes.
                with suppress(KafkaException):
                    self.admin().list_topics(timeout=self._attempt_s)


def _by_topic(committed: Iterable[ClientPartition]) -> Offsets:
    offsets: Offsets = {}
    for partition in committed:
        offsets.setdefault(partition.topic, {})[partition.partition] = partition.offset
    return offsets
