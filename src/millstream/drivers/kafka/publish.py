"""At-least-once delivery. Implements ``Publisher`` and ``Delivery``.

Everything is acknowledged before a batch is committed. A batch that is run again sends its records again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaException

from millstream.core.model.ids import TopicPartition
from millstream.core.model.record import Records
from millstream.core.ports import BatchId
from millstream.drivers.kafka.clients import ClientSettings, check, warm
from millstream.drivers.kafka.produce import CONNECT_S, DEFAULTS, FailingProducer, hand_over, refused

_FLUSH_S = 1.0


@dataclass(frozen=True)
class KafkaPublisher:
    """Sends records at least once. Picklable; its producer is kept by the process that uses it.

    Attributes:
        settings: Producer settings.
    """

    settings: ClientSettings = field(repr=False)

    def delivery(self, partition: int) -> AcknowledgedDelivery:
        """Get ready to send; the first call in a process connects."""
        producer = warm(_connected, {**DEFAULTS, **self.settings})
        return AcknowledgedDelivery(producer, str(self.settings.get("bootstrap.servers")))

    def check(self) -> None:
        """Refuse settings that no producer can have; connects to nobody.

        Raises:
            SettingsError: If librdkafka does not take a setting.
        """
        check(FailingProducer, {**DEFAULTS, **self.settings})


def _connected(settings: dict[str, Any]) -> FailingProducer:
    """Make a producer and connect now, not with the first record. If that fails, the record waits for the broker."""
    failing = FailingProducer(settings)
    with suppress(KafkaException):
        failing.producer.list_topics(timeout=CONNECT_S)
    return failing


class AcknowledgedDelivery:
    """Sends, and waits for the acknowledgements. Owned by one Spark task."""

    repeatable = False

    def __init__(self, failing: FailingProducer, servers: str) -> None:
        self._failing = failing
        self._servers = servers

    def begin(self, batch: BatchId) -> bool:
        """Begin; there is always something left to do, because nobody knows what an earlier attempt has sent."""
        return True

    def publish(self, topic: str, records: Records) -> None:
        """Hand records to the producer.

        Raises:
            ProductionError: If a record is refused at once, for example because it is too large.
        """
        with self._refusing():
            hand_over(self._failing, topic, records)

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Return when everything handed over is acknowledged; the offsets are committed by the application.

        Raises:
            ProductionError: If the broker refused a record, or did not take it in time.
        """
        with self._refusing():
            while self._failing.producer.flush(_FLUSH_S):
                self._failing.check()
            self._failing.check()

    def abort(self) -> None:
        """Do nothing: what was sent stays sent."""

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            failure = self._failing.failures[0]
            self._failing.failures.clear()
            raise refused(*failure, self._servers) from error
