"""Writes records to the embedded broker, and reads all records that a topic currently contains.

These are the records below the end offsets at the time of the call. The reader cannot count up to the end offsets, because offsets have
gaps (transaction markers, compaction, deleted records). For each partition, it stops at the first record at or above the end, or at the
broker's end-of-partition event.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from millstream.testing._broker import QUIET_CLIENT
from millstream.testing._java import EmbeddedKafkaError

Payload = bytes | str | None
"""A key or a value: bytes, text that is written as UTF-8, or null."""

Outgoing = tuple[Payload, Payload] | tuple[Payload, Payload, int]
"""A record to write: key, value and optionally its timestamp, ms since the epoch."""

Isolation = Literal["read_uncommitted", "read_committed"]
"""Kafka's isolation level: ``read_committed`` skips records of open and aborted transactions."""

_PROGRESS_TIMEOUT_S = 30.0
_BATCH = 5_000


@dataclass(frozen=True)
class ConsumedRecord:
    """A record as read from the broker. For an example, see :class:`EmbeddedKafka`.

    Attributes:
        topic: Name of the topic.
        partition: Number of the partition.
        offset: Offset in the partition.
        timestamp: Milliseconds since the epoch.
        key: Key, or None for null.
        value: Value, or None for null.
        headers: Name and value pairs, in order.

    Source: ``org.apache.kafka.clients.consumer.ConsumerRecord``.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def write_all(servers: str, topic: str, records: Iterable[Outgoing], *, partition: int | None) -> None:
    """Write records in order and wait until the broker has acknowledged all of them.

    Args:
        partition: The partition to write to; None chooses by the hash of the key, as in Java.

    Raises:
        EmbeddedKafkaError: If a record was not acknowledged.
        ValueError: If a timestamp is not positive.
    """
    failures: list[KafkaError] = []
    settings: dict[str, str | int | bool] = {
        "bootstrap.servers": servers,
        "partitioner": "murmur2_random",
        # A single broker needs no idempotence, whose producer id takes up to a second: one request in flight also keeps the order.
        # In a cluster, a leader may crash after it has written a record and before it has acknowledged it.
        "max.in.flight": 1,
        "enable.idempotence": "," in servers,
        "message.timeout.ms": 30_000,
    }
    producer = Producer({**settings, **QUIET_CLIENT})
    target = {} if partition is None else {"partition": partition}

    def note(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(error)

    try:
        for key, value, *timestamp in records:
            options = {**target, "timestamp": _positive(timestamp[0])} if timestamp else target
            while not _accepts(producer, topic, value, key, on_delivery=note, **options):
                producer.poll(0.1)
            producer.poll(0)
        producer.flush()
    except KafkaException as error:
        raise EmbeddedKafkaError(f"a record for topic {topic} was refused: {error}") from error
    if failures:
        raise EmbeddedKafkaError(
            f"{len(failures)} records were not written to topic {topic} on {servers}; the first error: {failures[0]}"
        )


def _accepts(producer: Producer, topic: str, value: Payload, key: Payload, **options: Any) -> bool:
    try:
        producer.produce(topic, value, key, **options)
    except BufferError:
        return False
    return True


def _positive(timestamp: int) -> int:
    if timestamp <= 0:
        raise ValueError(
            f"a timestamp must be positive, not {timestamp}: librdkafka interprets 0 as the current time"
        )
    return timestamp


def read_all(
    servers: str, topic: str, ends: Mapping[int, int], *, isolation: Isolation
) -> list[ConsumedRecord]:
    """Read the records of a topic below the given offsets, by partition, then by offset.

    Args:
        ends: The offset before which to stop, for each partition to read.

    Raises:
        EmbeddedKafkaError: If the broker sent nothing for half a minute.
    """
    settings: dict[str, str | int | bool] = {
        "bootstrap.servers": servers,
        "group.id": "millstream-embedded-kafka",
        "auto.offset.reset": "earliest",  # reads start at offset 0; librdkafka delays a look-up of the beginning by half a second
        "isolation.level": isolation,
        "enable.partition.eof": True,
        "enable.auto.commit": False,
        "fetch.wait.max.ms": 10,
    }
    open_ends = {partition: end for partition, end in ends.items() if end > 0}
    records: list[ConsumedRecord] = []
    consumer = Consumer({**settings, **QUIET_CLIENT})
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in open_ends])
        while open_ends:
            for message in _next_answers(consumer, topic, open_ends):
                _take(message, open_ends, records)
    finally:
        consumer.close()
    return sorted(records, key=lambda record: (record.partition, record.offset))


def _next_answers(consumer: Consumer, topic: str, open_ends: Mapping[int, int]) -> list[Message]:
    """Wait for one message and take the messages that arrived with it. Waiting for a full batch would cost its timeout."""
    trouble = "none"
    deadline = time.monotonic() + _PROGRESS_TIMEOUT_S
    while time.monotonic() < deadline:
        first = consumer.poll(1.0)
        batch = [] if first is None else [first, *consumer.consume(_BATCH, 0)]
        answers = [message for message in batch if _is_end(message) or message.error() is None]
        if answers:
            return answers
        trouble = str(batch[-1].error()) if batch else trouble
    raise EmbeddedKafkaError(
        f"the broker sent no records of topic {topic} for {_PROGRESS_TIMEOUT_S:.0f} s; partitions not read to their end: "
        f"{sorted(open_ends)}; last error of the client: {trouble}"
    )


def _is_end(message: Message) -> bool:
    error = message.error()
    return error is not None and error.code() == KafkaError._PARTITION_EOF


def _take(message: Message, open_ends: dict[int, int], records: list[ConsumedRecord]) -> None:
    partition, offset, topic = message.partition(), message.offset(), message.topic()
    if topic is None or partition is None or partition not in open_ends:
        return
    if _is_end(message) or offset is None:
        open_ends.pop(partition)
        return
    if offset < open_ends[partition]:
        headers = tuple(cast("list[tuple[str, bytes | None]]", message.headers() or []))
        stamp = message.timestamp()[1]
        records.append(
            ConsumedRecord(topic, partition, offset, stamp, message.key(), message.value(), headers)
        )
    if offset + 1 >= open_ends[partition]:
        open_ends.pop(partition)
