"""Sending records. Implements ``Publisher``.

librdkafka takes the timestamp 0 for "now". A record of the first millisecond of 1970 is therefore sent with timestamp 1,
which is closer to the truth than today.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from penstock.core.model.errors import PenstockError, ProductionError
from penstock.core.model.record import Records
from penstock.drivers.kafka.clients import ClientSettings, translated, warm

_POLL_EVERY = 4096
_FULL_WAIT_S = 0.5
_FLUSH_S = 1.0
_CONNECT_S = 10.0

# Idempotent, so that the client's own retries neither duplicate nor reorder; murmur2_random is what Java producers do;
# only failures are reported, because a callback per record would cost more than the sending.
_DEFAULTS = {
    "enable.idempotence": True,
    "partitioner": "murmur2_random",
    "linger.ms": 20,
    "batch.num.messages": 10_000,
    "batch.size": 1_000_000,
    "queue.buffering.max.messages": 1_000_000,
    "queue.buffering.max.kbytes": 262_144,
    "delivery.report.only.error": True,
}


class _WarmProducer:
    """A producer with the failures it has reported since the last flush."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.failures: list[tuple[KafkaError, str, int]] = []
        self.producer = Producer({**settings, "on_delivery": self._failed})
        # Connect now, not with the first record. If that fails, the record waits for the broker.
        with suppress(KafkaException):
            self.producer.list_topics(timeout=_CONNECT_S)

    def _failed(self, error: KafkaError | None, message: Any) -> None:
        if error is not None:
            self.failures.append((error, message.topic(), message.partition()))


@dataclass(frozen=True)
class KafkaPublisher:
    """Sends records at least once. Picklable; its producer is kept by the process that uses it.

    Attributes:
        settings: Producer settings.
    """

    settings: ClientSettings = field(repr=False)

    def publish(self, topic: str, records: Records) -> None:
        """Hand records to the producer, which sends them in the background.

        Raises:
            ProductionError: If a record is refused at once, for example because it is too large.
        """
        warm_producer = self._warm()
        produce, poll = warm_producer.producer.produce, warm_producer.producer.poll
        partitions = repeat(-1) if records.partitions is None else records.partitions
        headers: Iterable[Any] = repeat(None) if records.headers is None else map(list, records.headers)
        rows = zip(records.keys, records.values, records.timestamps, partitions, headers)
        for count, (key, value, timestamp, partition, header) in enumerate(rows):
            while True:
                try:
                    produce(topic, value, key, partition, None, None, timestamp or 1, header)
                    break
                except BufferError:
                    poll(_FULL_WAIT_S)
                    self._check(warm_producer)
                except KafkaException as error:
                    raise _refused(error.args[0], topic, partition, self._servers()) from error
            if count % _POLL_EVERY == 0:
                poll(0)
        self._check(warm_producer)

    def flush(self) -> None:
        """Return when everything handed over is acknowledged; the first call in a process connects.

        Raises:
            ProductionError: If the broker refused a record, or did not take it in time.
        """
        warm_producer = self._warm()
        while warm_producer.producer.flush(_FLUSH_S):
            self._check(warm_producer)
        self._check(warm_producer)

    def _warm(self) -> _WarmProducer:
        return warm(_WarmProducer, {**_DEFAULTS, **self.settings})

    def _check(self, warm_producer: _WarmProducer) -> None:
        if warm_producer.failures:
            (error, topic, partition), *_ = warm_producer.failures
            warm_producer.failures.clear()
            raise _refused(error, topic, partition, self._servers())

    def _servers(self) -> str:
        return str(self.settings.get("bootstrap.servers"))


_ADVICE: dict[int, Callable[[str], str]] = {
    KafkaError._UNKNOWN_TOPIC: lambda topic: (
        f"the topic does not exist; create it: kafka-topics --create --topic {topic}"
    ),
    KafkaError.UNKNOWN_TOPIC_OR_PART: lambda topic: (
        f"the topic does not exist; create it: kafka-topics --create --topic {topic}"
    ),
    KafkaError.MSG_SIZE_TOO_LARGE: lambda _: (
        "raise producer setting message.max.bytes and the topic's max.message.bytes"
    ),
    KafkaError._MSG_TIMED_OUT: lambda _: (
        "the broker did not take it in time (producer setting message.timeout.ms); is it up?"
    ),
    KafkaError.TOPIC_AUTHORIZATION_FAILED: lambda topic: (
        f"this user may not write to {topic}; ask for the WRITE permission"
    ),
    KafkaError._UNKNOWN_PARTITION: lambda _: "the partitioner chose a partition that the topic does not have",
}


def _refused(error: KafkaError, topic: str, partition: int, servers: str) -> PenstockError:
    advice = _ADVICE.get(error.code())
    if advice is None:
        cause = translated(KafkaException(error), f"sending to topic {topic!r}", servers)
        return cause if type(cause) is not PenstockError else ProductionError(f"{cause} (stage 'produce')")
    return ProductionError(
        f"a record for topic {topic!r} was not accepted (stage 'produce', partition {partition}, {error.str()}): "
        f"{advice(topic)}. The micro-batch is not committed and will be processed again"
    )
