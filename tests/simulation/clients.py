"""Clients of the model of Kafka: confluent-kafka's producer and consumer, and the ports of the planner and the readers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from millstream.core.model.errors import BrokerUnavailableError
from millstream.core.model.ids import TopicPartition
from millstream.core.model.positions import Offsets
from millstream.core.model.record import Records
from millstream.core.ports import OffsetRange, TimedOffset, TopicFacts
from simulation.broker import Broker, Entry, FencedError, Headers

_FETCH_RECORDS = 5


def _unavailable() -> KafkaException:
    return KafkaException(KafkaError(KafkaError._TIMED_OUT, "nobody answers", retriable=True))


def _fenced() -> KafkaException:
    return KafkaException(KafkaError(KafkaError._FENCED, "fenced", fatal=True))


def _to_abort() -> KafkaException:
    return KafkaException(
        KafkaError(KafkaError._TIMED_OUT, "records were not taken", txn_requires_abort=True)
    )


class Producer:
    """confluent-kafka's producer: records wait, and are sent in the background, in order within a partition.

    Args:
        broker: The model of the broker.
        settings: librdkafka's settings.
        loses: The probability per record that its transaction loses records, as when a partition has no leader for too long.
    """

    def __init__(self, broker: Broker, settings: Mapping[str, Any], loses: float = 0.005) -> None:
        self._loses = loses
        self._broker = broker
        self._scheduler = broker.scheduler
        self._id: str | None = settings.get("transactional.id")
        self._epoch = -1
        self._waiting: dict[TopicPartition, list[Entry]] = {}
        self._lost = False
        """Whether records were lost, so that the transaction has to be aborted."""
        self._fatal = False

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> None:
        """Connect."""
        self._scheduler.step("connects")

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int = -1,
        on_delivery: Any = None,
        callback: Any = None,
        timestamp: int = 1,
        headers: Iterable[tuple[str, bytes | None]] | None = None,
    ) -> None:
        """Take a record."""
        self._check()
        number = self._broker.partition_of(topic, key) if partition < 0 else partition
        entry = Entry(key, value, timestamp, tuple(headers or ()))
        self._waiting.setdefault(TopicPartition(topic, number), []).append(entry)
        if self._scheduler.random.random() < 0.1:
            self._scheduler.step("sends some records")
            self._send(self._scheduler.random.randrange(4))

    def poll(self, timeout: float) -> int:
        """Do nothing: failures are raised by the next call."""
        return 0

    def flush(self, timeout: float) -> int:
        """Send the waiting records; return how many are left."""
        self._scheduler.step("flushes")
        if self._broker.available:
            self._send(1 << 30)
        return sum(map(len, self._waiting.values()))

    def init_transactions(self, timeout: float) -> None:
        """Take the transactional id over."""
        assert self._id is not None
        self._reach(f"takes {self._id} over")
        while (epoch := self._broker.take_over(self._id)) is None:
            self._reach("waits for the transaction before")
        self._epoch = epoch

    def begin_transaction(self) -> None:
        """Begin a transaction, which sends no request."""
        self._check()

    def send_offsets_to_transaction(self, positions: list[Any], group: str, timeout: float) -> None:
        """Add offsets to the transaction."""
        assert self._id is not None
        self._reach(f"adds offsets of {group}")
        self._check()
        self._await_begin()
        offsets = {
            TopicPartition(position.topic, position.partition): (position.offset, position.metadata or "")
            for position in positions
        }
        self._fencing(lambda: self._broker.add_offsets(self._id or "", self._epoch, group, offsets))

    def commit_transaction(self, timeout: float) -> None:
        """Send the waiting records, and commit. The answer may be lost; the answer to a repeated request is the same."""
        self._reach("sends the rest")
        self._check()
        self._send(1 << 30)
        self._reach("commits the transaction")
        self._check()
        self._fencing(lambda: self._broker.decide(self._id or "", self._epoch, commit=True))
        if self._scheduler.random.random() < 0.05:
            self._scheduler.note("the answer to a commit is lost")
            raise _unavailable()
        self._scheduler.step("has committed")

    def abort_transaction(self, timeout: float) -> None:
        """Abort the transaction, and discard the waiting records."""
        self._reach("aborts the transaction")
        self._waiting.clear()
        self._fencing(lambda: self._broker.decide(self._id or "", self._epoch, commit=False))
        self._lost = False

    def _send(self, count: int) -> None:
        if self._id is not None:
            self._await_begin()
        for _ in range(count):
            waiting = [partition for partition, entries in self._waiting.items() if entries]
            if not waiting:
                return
            partition = self._scheduler.random.choice(waiting)
            entry = self._waiting[partition].pop(0)
            if self._id is None:
                self._broker.append(partition, entry)
                continue
            self._fencing(
                lambda partition=partition, entry=entry: self._broker.add(
                    self._id or "", self._epoch, partition, entry
                )
            )
            if self._scheduler.random.random() < self._loses:
                self._scheduler.note("records of a transaction are lost")
                self._lost = True
                raise _to_abort()

    def _await_begin(self) -> None:
        while not self._fencing(lambda: self._broker.begin(self._id or "", self._epoch)):
            self._scheduler.step("waits for its transaction before")

    def _fencing(self, request: Any) -> Any:
        try:
            return request()
        except FencedError:
            self._fatal = True
            raise _fenced() from None

    def _check(self) -> None:
        if self._fatal:
            raise _fenced()
        if self._lost:
            raise _to_abort()

    def _reach(self, action: str) -> None:
        self._scheduler.step(action)
        if not self._broker.available:
            raise _unavailable()


class Consumer:
    """The part of confluent-kafka's consumer that reads committed offsets."""

    def __init__(self, broker: Broker, settings: Mapping[str, Any]) -> None:
        self._broker = broker
        self._group: str = settings["group.id"]
        self._stable = settings["isolation.level"] == "read_committed"

    def consumer_group_metadata(self) -> str:
        """Return the group, in place of the metadata of a member."""
        return self._group

    def committed(self, partitions: list[Any], timeout: float) -> list[Any]:
        """Return the committed offsets; with read_committed, fail while a transaction can still change them."""
        self._broker.scheduler.step(f"asks for offsets of {self._group}")
        requested = [TopicPartition(partition.topic, partition.partition) for partition in partitions]
        if not self._broker.available or (self._stable and self._broker.undecided(self._group, requested)):
            raise _unavailable()
        known = self._broker.groups.get(self._group, {})
        found = [(partition, *known.get(partition, (-1001, ""))) for partition in requested]
        return [
            ClientPartition(partition.topic, partition.partition, offset, metadata)
            for partition, offset, metadata in found
        ]


class Reader:
    """The client of planner, application and readers. Implements TopicReader, OffsetCommitter, Fetcher, ChangelogReader.

    Args:
        broker: The model of the broker.
        group: The group of the application.
        committed: Whether only committed records are read.
    """

    def __init__(self, broker: Broker, group: str, *, committed: bool) -> None:
        self._broker = broker
        self._group = group
        self._only_committed = committed

    def partition_counts(self, topics: Iterable[str]) -> dict[str, int]:
        return {topic: len(self._broker.topics[topic]) for topic in topics if topic in self._broker.topics}

    def topic_facts(self, topics: Iterable[str]) -> dict[str, TopicFacts]:
        return {topic: TopicFacts(topic, count) for topic, count in self.partition_counts(topics).items()}

    def begin_offsets(self, partitions: Mapping[str, int]) -> Offsets:
        return {topic: dict.fromkeys(range(count), 0) for topic, count in partitions.items()}

    def end_offsets(self, partitions: Mapping[str, int]) -> Offsets:
        return self._ends(partitions, stable=self._only_committed)

    def log_end_offsets(self, partitions: Mapping[str, int]) -> Offsets:
        return self._ends(partitions, stable=False)

    def offsets_at(self, partitions: Mapping[str, int], timestamp_ms: int) -> Offsets:
        return {}

    def reset_offsets(self, partitions: Mapping[str, int]) -> Offsets:
        return {}

    def committed_offsets(self, partitions: Mapping[str, int]) -> Offsets:
        self._reach("asks for committed offsets")
        requested = [TopicPartition(t, p) for t, count in partitions.items() for p in range(count)]
        while self._only_committed and self._broker.undecided(self._group, requested):
            self._broker.scheduler.step("waits for the offsets of a transaction")
        known = self._broker.groups.get(self._group, {})
        found: Offsets = {topic: {} for topic in partitions}
        for partition in requested:
            if partition in known:
                found[partition.topic][partition.partition] = known[partition][0]
        return found

    taken_offsets = committed_offsets

    def commit(
        self,
        offsets: Mapping[TopicPartition, int],
        taken: Mapping[TopicPartition, int] = MappingProxyType({}),
    ) -> None:
        self._reach("commits offsets")
        self._broker.commit_offsets(self._group, {partition: (n, "") for partition, n in offsets.items()})

    def renew(self, partitions: Mapping[str, int]) -> None:
        found = self.committed_offsets(partitions)
        self.commit({TopicPartition(t, p): n for t, offsets in found.items() for p, n in offsets.items()})

    def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, TimedOffset]:
        found: dict[TopicPartition, TimedOffset] = {}
        for partition, time in times.items():
            for offset, entry in self._readable(partition):
                if entry.timestamp >= time:
                    found[partition] = TimedOffset(offset, entry.timestamp)
                    break
        return found

    def newest(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, TimedOffset]:
        found: dict[TopicPartition, TimedOffset] = {}
        for partition in partitions:
            if readable := self._readable(partition):
                offset, entry = max(readable, key=lambda pair: pair[1].timestamp)
                found[partition] = TimedOffset(offset, entry.timestamp)
        return found

    def connect(self) -> None:
        """Do nothing."""

    def fetch(self, planned: OffsetRange) -> Iterator[Records]:
        partition = TopicPartition(planned.topic, planned.partition)
        found = [pair for pair in self._readable(partition) if planned.start <= pair[0] < planned.end]
        for first in range(0, len(found), _FETCH_RECORDS):
            self._broker.scheduler.step(f"fetches {planned.topic}-{planned.partition}")
            yield _columns(found[first : first + _FETCH_RECORDS])

    def fetch_all(self, ranges: Sequence[OffsetRange]) -> Iterator[tuple[OffsetRange, Iterator[Records]]]:
        for planned in ranges:
            yield planned, self.fetch(planned)

    def sample_bytes(self, planned: OffsetRange) -> float | None:
        return None

    def extent(self, topic: str, partition: int) -> OffsetRange:
        end = self._broker.end(TopicPartition(topic, partition), stable=self._only_committed)
        return OffsetRange(topic, partition, 0, end)

    def read(self, planned: OffsetRange) -> Iterator[Records]:
        return self.fetch(planned)

    def _readable(self, partition: TopicPartition) -> list[tuple[int, Entry]]:
        end = self._broker.end(partition, stable=self._only_committed)
        read = self._broker.read(partition, committed=self._only_committed)
        return [pair for pair in read if pair[0] < end]

    def _ends(self, partitions: Mapping[str, int], *, stable: bool) -> Offsets:
        self._reach("asks for the ends of topics")
        return {
            topic: {p: self._broker.end(TopicPartition(topic, p), stable=stable) for p in range(count)}
            for topic, count in partitions.items()
        }

    def _reach(self, action: str) -> None:
        self._broker.scheduler.step(action)
        if not self._broker.available:
            raise BrokerUnavailableError("nobody answers")


def _columns(found: list[tuple[int, Entry]]) -> Records:
    headers: list[Headers] = [entry.headers for _, entry in found]
    return Records(
        [entry.key for _, entry in found],
        [entry.value for _, entry in found],
        [entry.timestamp for _, entry in found],
        [offset for offset, _ in found],
        headers if any(headers) else None,
    )
