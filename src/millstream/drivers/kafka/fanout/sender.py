"""Sends the results of an application to topics with fan-out. Implements ``Sender``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from millstream.core.model.errors import MillstreamError
from millstream.core.model.record import Records
from millstream.drivers.kafka.clients import ClientSettings, discard, warm, warmed
from millstream.drivers.kafka.fanout.key_range_producer import KeyRangeProducer
from millstream.drivers.kafka.produce import KafkaSender

_TOPIC: Final = "millstream.topic"
_PATIENCE_S: Final = "millstream.patience.s"


@dataclass(frozen=True)
class FanOutSender:
    """Sends records to topics with fan-out by key range, and all others with another sender. Picklable.

    Each process caches a producer per topic with fan-out. It answers changes while no micro-batch runs, too.

    Attributes:
        patience_s: How long producers with fan-out wait for brokers, in seconds.
    """

    others: KafkaSender
    topics: frozenset[str]
    patience_s: float = 30.0

    def publish(self, topic: str, records: Records) -> None:
        """Put records into the queue of the topic's producer. The first call connects it.

        Raises:
            MillstreamError: If the producer has failed.
        """
        if topic not in self.topics:
            return self.others.publish(topic, records)
        producer = self._producer(topic) or warm(_open_producer, self._settings(topic))
        with _discarded_if_failed(producer):
            producer.hand_over(records)
        return None

    def flush(self) -> None:
        """Wait until all records that this process has published are committed.

        Raises:
            MillstreamError: If a producer has failed.
        """
        self.others.flush()
        for topic in self.topics:
            producer = self._producer(topic)
            if producer is not None:
                with _discarded_if_failed(producer):
                    producer.flush()

    def _producer(self, topic: str) -> KeyRangeProducer | None:
        """Return the producer of a topic, unless there is none yet or it failed between two micro-batches."""
        producer = warmed(_open_producer, self._settings(topic))
        if producer is not None and producer.failed_idle:
            discard(producer)
            return None
        return producer

    def _settings(self, topic: str) -> ClientSettings:
        return {**self.others.settings, _TOPIC: topic, _PATIENCE_S: self.patience_s}


def _open_producer(settings: ClientSettings) -> KeyRangeProducer:
    given = dict(settings)
    topic, patience_s = str(given.pop(_TOPIC)), float(given.pop(_PATIENCE_S))
    return KeyRangeProducer(given, topic, patience_s=patience_s)


@contextmanager
def _discarded_if_failed(producer: KeyRangeProducer) -> Iterator[None]:
    try:
        yield
    except MillstreamError:
        if producer.failed:
            discard(producer)  # the next attempt opens another
        raise
