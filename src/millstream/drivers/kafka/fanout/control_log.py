"""The control topic of a topic with fan-out, on a broker. Records are applied in the order of the topic. ``ledger`` explains them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from time import monotonic
from typing import Any, Final
from uuid import uuid4

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from millstream.core.fanout.epochs import History, control_topic
from millstream.core.fanout.ledger import BARRIER, Ledger
from millstream.core.model.errors import BrokerUnavailableError, TopicNotFoundError
from millstream.drivers.kafka.broker import Broker
from millstream.drivers.kafka.clients import ClientSettings, create_client, is_unavailable, translated
from millstream.drivers.kafka.fanout.inherited_settings import replica_count
from millstream.drivers.kafka.produce import FailingProducer

CONNECTION: Final = (
    "bootstrap.servers",
    "client.id",
    "security.",
    "sasl.",
    "ssl.",
    "socket.",
    "broker.",
    "enable.ssl",
)
_CONFIG: Final = {"cleanup.policy": "compact"}


class ControlReader:
    """Reads the control topic of a topic with fan-out. The control topic is created if missing.

    Raises:
        BrokerUnavailableError: If no broker answers in time.
    """

    def __init__(self, settings: ClientSettings, topic: str, patience_s: float) -> None:
        self.name = control_topic(topic)
        self.ledger = Ledger(topic)
        self.patience_s = patience_s
        base = connection(settings)
        self._servers = str(base.get("bootstrap.servers"))
        self._next = 0
        self.broker = Broker(base, self.name, False, patience_s)
        self.broker.ensure_topic(self.name, 1, _CONFIG, replica_count(self.broker, topic))
        reading = {"group.id": self.name, "enable.auto.commit": False, "isolation.level": "read_committed"}
        more = {"fetch.wait.max.ms": 100, "enable.partition.eof": True}
        self._consumer = create_client(Consumer, {**base, **reading, **more})
        self._consumer.assign([ClientPartition(self.name, 0, OFFSET_BEGINNING)])

    def poll(self, timeout_s: float = 0.0) -> bool:
        """Apply the next record, waiting at most ``timeout_s`` seconds. Return whether there was one."""
        message = self._consumer.poll(timeout_s)
        if message is None:
            return False
        if error := message.error():
            if error.code() == KafkaError._PARTITION_EOF:
                self._next = message.offset() or 0
            elif error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED and not is_unavailable(error):
                # Permission for its group is not needed: the consumer neither joins it nor commits.
                raise translated(KafkaException(error), f"reading {self.name!r}", self._servers)
            return False
        value = message.value()
        self.ledger.apply((message.key() or b"").decode(), None if value is None else json.loads(value))
        self._next = (message.offset() or 0) + 1
        return True

    def until(self, reached: Callable[[], bool], timeout_s: float) -> bool:
        """Apply records until a condition holds, for at most ``timeout_s`` seconds. Check after each record and return whether it holds."""
        deadline = monotonic() + timeout_s
        while not reached():
            left = deadline - monotonic()
            if left <= 0:
                return False
            self.poll(min(left, 0.1))
        return True

    def expect(self, reached: Callable[[], bool], what: str) -> None:
        """Apply records until a condition holds."""
        if not self.until(reached, self.patience_s):
            raise BrokerUnavailableError(
                f"the control topic {self.name!r} at {self._servers} did not show {what} within {self.patience_s:.0f} s. "
                "Check that the broker runs and that no transaction on this topic hangs, then try again"
            )

    def read_on(self) -> None:
        """Apply all committed records that are in the topic now."""
        end = replace(self.broker, read_committed=True).end_offsets({self.name: 1})[self.name][0]
        self.expect(lambda: self._next >= end, f"the records before offset {end}")

    def close(self) -> None:
        self._consumer.close()


class ControlLog(ControlReader):
    """The control topic of a topic with fan-out, to read and to write.

    Attributes:
        partitions: Number of partitions of the topic, as last counted.

    Raises:
        TopicNotFoundError: If the topic does not exist.
        BrokerUnavailableError: If no broker answers in time.
    """

    def __init__(self, settings: ClientSettings, topic: str, patience_s: float) -> None:
        base = connection(settings)
        self._topic, self._brokers = topic, Broker(base, topic, False, patience_s)
        if not self.count_partitions():
            raise TopicNotFoundError(f"topic {topic!r} does not exist; give the name of an existing topic")
        super().__init__(settings, topic, patience_s)
        self._failing = create_client(FailingProducer, {**base, "enable.idempotence": True, "linger.ms": 0})

    def count_partitions(self) -> int:
        """Ask the brokers for the number of partitions of the topic, and return it; 0 if it does not exist."""
        self.partitions = self._brokers.partition_counts([self._topic]).get(self._topic, 0)
        return self.partitions

    def publish(self, key: str, value: Mapping[str, Any] | None) -> None:
        """Write a record and wait for its acknowledgement."""
        try:
            self._failing.producer.produce(self.name, encoded(value), key, 0)
        except KafkaException as error:
            self._failing.failures.append((error.args[0], self.name, 0))
        left = self._failing.flush(self.patience_s)
        failures = [error for error, *_ in self._failing.failures]
        self._failing.failures.clear()
        if left or failures:
            cause = failures[0] if failures else KafkaError(KafkaError._TIMED_OUT)
            raise translated(KafkaException(cause), f"writing to {self.name!r}", self._servers)

    def barrier(self) -> None:
        """Read to the current end of the topic."""
        token = uuid4().hex
        self.publish(BARRIER, {"token": token})
        self.expect(lambda: self.ledger.barrier == token, "the records that were written before")


@dataclass(frozen=True)
class KafkaEpochs:
    """The epochs of the topics that an application reads with fan-out. Implements ``EpochReader``. Picklable until it is read."""

    settings: ClientSettings = field(repr=False)
    topics: tuple[str, ...]
    timeout_s: float

    @cached_property
    def _readers(self) -> list[ControlReader]:
        return [ControlReader(self.settings, topic, self.timeout_s) for topic in self.topics]

    def histories(self) -> tuple[History, ...]:
        for reader in self._readers:
            reader.read_on()
        return tuple(state.history for reader in self._readers for state in reader.ledger.states().values())


def connection(settings: ClientSettings) -> ClientSettings:
    return {name: value for name, value in settings.items() if name.startswith(CONNECTION)}


def encoded(value: Mapping[str, Any] | None) -> bytes | None:
    return None if value is None else json.dumps(value, separators=(",", ":")).encode()
