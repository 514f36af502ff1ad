"""At-least-once delivery. Implements ``Sender``.

All records are acknowledged before a micro-batch is committed. A repeated micro-batch sends its records again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from confluent_kafka import KafkaException

from millstream.core.model.record import Records
from millstream.drivers.kafka.clients import ClientSettings, check, warm, warmed
from millstream.drivers.kafka.produce import CONNECT_S, DEFAULTS, FailingProducer, hand_over, refused

_FLUSH_S = 1.0


@dataclass(frozen=True)
class KafkaSender:
    """Sends records at least once, with producer settings. Picklable; the producer is cached per process."""

    settings: ClientSettings = field(repr=False)

    def check(self) -> None:
        """Check the settings without connecting.

        Raises:
            SettingsError: If librdkafka does not accept a setting.
        """
        check(FailingProducer, self._complete_settings())

    def publish(self, topic: str, records: Records) -> None:
        """Pass records to the producer of this process; the first call connects it.

        Raises:
            ProductionError: If a record is refused immediately, for example because it is too large.
        """
        producer = warm(_connected, self._complete_settings())
        with self._refusing(producer):
            hand_over(producer, topic, records)

    def flush(self) -> None:
        """Wait until all records that this process has published are acknowledged.

        Raises:
            ProductionError: If the broker refused a record, or did not acknowledge it in time.
        """
        producer = warmed(_connected, self._complete_settings())
        if producer is None:
            return
        with self._refusing(producer):
            while producer.producer.flush(_FLUSH_S):
                producer.check()
            producer.check()

    def _complete_settings(self) -> ClientSettings:
        return {**DEFAULTS, **self.settings}

    @contextmanager
    def _refusing(self, producer: FailingProducer) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            failure = producer.failures[0]
            producer.failures.clear()
            raise refused(*failure, str(self.settings.get("bootstrap.servers"))) from error


def _connected(settings: ClientSettings) -> FailingProducer:
    """Create a producer and connect it. If that fails, the first record waits for the broker."""
    failing = FailingProducer(settings)
    with suppress(KafkaException):
        failing.producer.list_topics(timeout=CONNECT_S)
    return failing
