"""Produces records and collects failures. :class:`KafkaSender` implements at-least-once delivery.

Under at-least-once delivery, all records are acknowledged before a micro-batch is committed. A repeated micro-batch sends its records
again.

librdkafka interprets the timestamp 0 as "now", so a record with timestamp 0 is sent with timestamp 1.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice, repeat, starmap
from operator import length_hint
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from millstream.core.engine.records.merging import WRITER_HEADER
from millstream.core.model.errors import MillstreamError, ProductionError
from millstream.core.model.record import Records
from millstream.drivers.kafka.client_callbacks import pending_exception
from millstream.drivers.kafka.clients import ClientSettings, check, discard, translated, warm, warmed

_POLL_EVERY = 4096
_FULL_WAIT_S = 0.5
_FLUSH_S = 1.0
CONNECT_S: Final = 10.0

# Idempotent, so that the client's retries neither duplicate nor reorder records. murmur2_random is the partitioner of Java producers.
# Only failures are reported, because a callback per record would cost more than sending it.
DEFAULTS: Final[Mapping[str, Any]] = {
    "enable.idempotence": True,
    "partitioner": "murmur2_random",
    "linger.ms": 20,
    "batch.num.messages": 10_000,
    "batch.size": 1_000_000,
    "queue.buffering.max.messages": 1_000_000,
    "queue.buffering.max.kbytes": 262_144,
    "delivery.report.only.error": True,
}


class FailingProducer:
    """A producer, with its reported failures that have not been handled yet."""

    def __init__(self, settings: ClientSettings) -> None:
        self.failures: list[tuple[KafkaError, str, int]] = []
        self.producer = Producer({**settings, "on_delivery": self._on_delivery})

    def check(self) -> None:
        if self.failures:
            raise KafkaException(self.failures[0][0])

    def flush(self, timeout_s: float) -> int:
        """Wait until all records are acknowledged or refused. Return how many are neither after a time; ``failures`` has those refused."""
        try:
            return self.producer.flush(timeout_s)
        except KafkaException as error:  # it is fatal: no more records are sent
            self.failures.insert(0, (error.args[0], "", -1))
            return len(self.producer)

    def _on_delivery(self, error: KafkaError | None, message: Any) -> None:
        fatal = pending_exception()
        if error is not None:
            cause = fatal.args[0] if isinstance(fatal, KafkaException) else error
            self.failures.append((cause, message.topic(), message.partition()))
        if fatal is not None:
            raise fatal


def hand_over(failing: FailingProducer, topic: str, records: Records) -> None:
    """Pass records to a producer, which sends them in the background.

    Raises:
        KafkaException: If a record is refused, now or since the last call. ``failures`` contains the details.
    """
    partitions = repeat(-1) if records.partitions is None else records.partitions
    nothing: Iterable[None] = repeat(None)  # no callback, by both of its names
    times = records.timestamps if all(records.timestamps) else [time or 1 for time in records.timestamps]
    columns = (repeat(topic), records.values, records.keys, partitions, nothing, nothing, times)
    rows = zip(*columns, _headers(records))
    while some := list(islice(rows, _POLL_EVERY)):
        is_empty = False
        while left := _queued(failing, some):
            if is_empty and len(left) == len(some):
                _refuse(failing, left[0])
            some = left
            failing.producer.poll(_FULL_WAIT_S)
            failing.check()
            is_empty = not len(failing.producer)
        failing.producer.poll(0)
    failing.check()


def _refuse(failing: FailingProducer, row: tuple[Any, ...]) -> None:
    """Refuse a record for which an empty queue has no room."""
    topic, _, _, partition, *_ = row
    error = KafkaError(KafkaError._QUEUE_FULL, "the record is larger than the queue")
    failing.failures.insert(0, (error, topic, partition))
    raise KafkaException(error)


def _queued(failing: FailingProducer, rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Queue records, given as arguments of the producer. Return those for which the queue has no room."""
    waiting = iter(rows)
    try:
        deque(starmap(failing.producer.produce, waiting), maxlen=0)  # a loop without bytecode
        return []
    except BufferError:
        return rows[-length_hint(waiting) - 1 :]
    except KafkaException as error:
        topic, _, _, partition, *_ = rows[-length_hint(waiting) - 1]
        failing.failures.insert(0, (error.args[0], topic, partition))
        raise


def _headers(records: Records) -> Iterable[Any]:
    """Return the headers of each record. Records for a repartition topic have a header with the task that wrote them."""
    writer = [(WRITER_HEADER, records.writer.encode())] if records.writer else []
    if records.headers is None:
        return repeat(writer or None)
    return ([*each, *writer] for each in records.headers)


_ADVICE: dict[int, Callable[[str], str]] = {
    KafkaError._UNKNOWN_TOPIC: lambda topic: (
        f"the topic does not exist; create it: kafka-topics --create --topic {topic}"
    ),
    KafkaError.UNKNOWN_TOPIC_OR_PART: lambda topic: (
        f"the topic does not exist; create it: kafka-topics --create --topic {topic}"
    ),
    KafkaError.MSG_SIZE_TOO_LARGE: lambda _: (
        "raise the producer setting message.max.bytes and the topic's max.message.bytes"
    ),
    KafkaError._QUEUE_FULL: lambda _: "raise the producer setting queue.buffering.max.kbytes",
    KafkaError._MSG_TIMED_OUT: lambda _: (
        "the broker did not acknowledge it in time (producer setting message.timeout.ms); check that the broker runs"
    ),
    KafkaError.TOPIC_AUTHORIZATION_FAILED: lambda topic: (
        f"this user may not write to {topic}; grant it the WRITE permission"
    ),
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: lambda topic: (
        f"this user may not write to any topic; grant it the WRITE permission for {topic}, and for brokers before 3.0 also "
        "IDEMPOTENT_WRITE for the cluster"
    ),
    KafkaError._UNKNOWN_PARTITION: lambda _: "the partitioner chose a partition that the topic does not have",
}


def production_error(error: KafkaError, topic: str, partition: int, servers: str) -> MillstreamError:
    """Return the error for a record that the broker did not accept."""
    advice = _ADVICE.get(error.code())
    if advice is None:
        cause = translated(
            KafkaException(error), f"sending to topic {topic!r}, partition {partition}", servers
        )
        return cause if type(cause) is not MillstreamError else ProductionError(f"{cause} (stage 'produce')")
    return ProductionError(
        f"a record for topic {topic!r} was not accepted (stage 'produce', partition {partition}, {error.str()}): "
        f"{advice(topic)}. The micro-batch is not committed and will be processed again"
    )


@dataclass(frozen=True)
class KafkaSender:
    """Implements ``Sender``: sends records at least once. Picklable. Each process caches the producer."""

    settings: ClientSettings = field(repr=False)

    def check(self) -> None:
        check(FailingProducer, self._complete_settings())

    def publish(self, topic: str, records: Records) -> None:
        """Pass records to the producer of this process. The first call connects it.

        Raises:
            ProductionError: If a record is refused immediately, for example because it is too large.
        """
        producer = warm(_connect_producer, self._complete_settings())
        with self._refusing(producer):
            hand_over(producer, topic, records)

    def flush(self) -> None:
        """Wait until all records that this process has published are acknowledged.

        Raises:
            ProductionError: If the broker refused a record, or did not acknowledge it in time.
        """
        producer = warmed(_connect_producer, self._complete_settings())
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
            cause, servers = error.args[0], str(self.settings.get("bootstrap.servers"))
            failures = producer.failures[:1]
            producer.failures.clear()
            if cause.fatal() or cause.code() == KafkaError._FATAL:
                discard(producer)  # it accepts no more records; the next attempt creates another
            for failure in failures:
                raise production_error(*failure, servers) from error
            raise translated(error, "sending records", servers) from error


def _connect_producer(settings: ClientSettings) -> FailingProducer:
    """Create a producer and connect it. If the connection fails, the first record waits for the broker."""
    failing = FailingProducer(settings)
    with suppress(KafkaException):
        failing.producer.list_topics(timeout=CONNECT_S)
    return failing
