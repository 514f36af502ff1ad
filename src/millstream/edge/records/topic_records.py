"""Reads the last records of a topic, and writes records, as bytes or with serdes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from millstream.core.model.errors import (
    BrokerUnavailableError,
    DeserializationError,
    MillstreamError,
    ProductionError,
    SettingsError,
    TopicNotFoundError,
    UnavailableError,
)
from millstream.core.model.record import Headers
from millstream.core.model.serdes import Serde, Side, read, serialize_for_topic
from millstream.drivers.kafka.broker import Broker
from millstream.drivers.kafka.clients import create_client
from millstream.drivers.kafka.fetch import KafkaFetcher
from millstream.drivers.kafka.overdue import Patience
from millstream.drivers.kafka.produce import FailingProducer
from millstream.edge.settings.settings import Settings

T = TypeVar("T")
_GROUP: Final = "millstream-peek"
_SENDER: Final = "millstream-send"
_POLL_S: Final = 0.2
_FLUSH_S: Final = 60.0
_READ_S: Final = 60.0
"""How long to wait for a record that is in the topic."""

Raw = tuple[bytes | None, bytes | None, int | None, Headers]
"""Key, value, timestamp (ms since the epoch; None for the current time) and headers."""
Serdes = tuple[Serde[Any], Serde[Any]]


def broker_of(settings: Settings, group: str = _GROUP) -> Broker:
    return Broker(settings.client("admin", group), group, True, settings.request_timeout_ms / 1000)


def fetcher_of(settings: Settings, group: str) -> KafkaFetcher:
    """Return a reader of committed records, which skips deleted ones."""
    timeout_s = settings.request_timeout_ms / 1000
    return KafkaFetcher(settings.client("consumer", group), group, True, timeout_s, skip_lost=True)


def existing_topic(settings: Settings, topic: str) -> dict[str, int]:
    """Return the partition count of a topic by its name.

    Raises:
        TopicNotFoundError: If the topic does not exist.
    """
    counts = broker_of(settings).partition_counts([topic])
    if not counts:
        raise TopicNotFoundError(
            f"there is no topic {topic!r} at {settings.bootstrap_servers}; correct its name, or create it"
        )
    return counts


def messages(settings: Settings, topic: str, last: int | None, *, follow: bool = False) -> Iterator[Message]:
    """Yield the last records of a topic; commits no offsets.

    Args:
        last: The number of records per partition; None for all.
        follow: Whether to wait for new records.

    Raises:
        BrokerUnavailableError: If no broker answers, or, without ``follow``, one stops to send records.
    """
    counts, broker = existing_topic(settings, topic), broker_of(settings)
    begins, ends = broker.begin_offsets(counts)[topic], broker.end_offsets(counts)[topic]
    own = {
        "group.id": _GROUP,
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
    }
    consumer = create_client(Consumer, {**settings.client("consumer", _GROUP), **own})
    reader = _TopicReader(consumer, topic, ends)
    try:
        if last is not None:
            for records in newest(reader.by_partition, begins, ends, last).values():
                yield from records
        if last is None or follow:
            yield from reader.read(begins if last is None else ends, follow=follow)
    finally:
        consumer.close()


def newest(
    read: Callable[[Mapping[int, int]], Mapping[int, Sequence[T]]],
    begins: Mapping[int, int],
    ends: Mapping[int, int],
    last: int,
) -> dict[int, list[T]]:
    """Return the last records of each partition, although offsets have gaps, such as the markers of transactions.

    Args:
        read: Returns the records of partitions from an offset on, up to the ends.
    """
    found: dict[int, list[T]] = {number: [] for number in sorted(ends)}
    span, missing = last, [number for number in found if begins[number] < ends[number]]
    while missing:
        starts = {number: max(begins[number], ends[number] - span) for number in missing}
        for number, records in read(starts).items():
            found[number] = list(records[-last:])
        missing = [n for n in missing if len(found[n]) < last and starts[n] > begins[n]]
        span *= 2
    return found


@dataclass(frozen=True)
class _TopicReader:
    """Reads partitions of a topic up to their ends, exclusive, and then further records."""

    consumer: Consumer
    topic: str
    ends: Mapping[int, int]

    def by_partition(self, starts: Mapping[int, int]) -> dict[int, list[Message]]:
        found: dict[int, list[Message]] = {number: [] for number in starts}
        for message in self.read(starts):
            number = message.partition() or 0
            if (message.offset() or 0) < self.ends[number]:
                found[number].append(message)
        return found

    def read(self, starts: Mapping[int, int], *, follow: bool = False) -> Iterator[Message]:
        """Yield records from an offset on. With ``follow``, wait for further records.

        Raises:
            BrokerUnavailableError: If, without ``follow``, the broker sends nothing for too long.
        """
        self.consumer.assign([TopicPartition(self.topic, number, start) for number, start in starts.items()])
        waiting = {number for number in starts if starts[number] < self.ends[number]}
        patience = Patience(_READ_S)
        while waiting or follow:
            message = self.consumer.poll(_POLL_S)
            if message is None:
                if patience.is_over() and not follow:
                    raise BrokerUnavailableError(
                        f"topic {self.topic!r} cannot be read: its brokers have sent nothing for {_READ_S:g} s of partition "
                        f"{', '.join(map(str, sorted(waiting)))}. Check that they run, and try again"
                    )
                continue
            patience.restart()
            error, partition = message.error(), message.partition() or 0
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise MillstreamError(
                    f"topic {self.topic!r} cannot be read: {error} (partition {partition}). Check that its brokers run, and that this user "
                    "may read the topic"
                )
            if error is not None or (message.offset() or 0) + 1 >= self.ends[partition]:
                waiting.discard(partition)
            if error is None:
                yield message


def write(settings: Settings, topic: str, records: Iterable[Raw]) -> int:
    """Write records; return their number when all are acknowledged.

    If the iterable raises an exception, the records before it are sent first.
    """
    existing_topic(settings, topic)
    own = {"enable.idempotence": True, "partitioner": "murmur2_random"}
    failing = create_client(FailingProducer, {**settings.client("producer", _SENDER), **own})
    producer = failing.producer
    count = 0
    try:
        for record in records:
            _enqueue(producer, topic, record)
            count += 1
    except KafkaException as error:  # such as a record that is too large
        failing.flush(_FLUSH_S)
        raise ProductionError(
            f"topic {topic!r}: record {count + 1:,} is refused ({error.args[0]}); those before it were sent. Correct it, then send it and those "
            "after it"
        ) from None
    except Exception:
        failing.flush(_FLUSH_S)
        raise
    left = failing.flush(_FLUSH_S)
    if failing.failures or left:
        unknown = f"{left} records are not acknowledged after {_FLUSH_S:.0f} s"
        why = str(failing.failures[0][0]) if failing.failures else unknown
        raise ProductionError(
            f"topic {topic!r}: {why}; some of the {count:,} records may be in the topic. Check that its brokers run, and that this user may "
            "write, then send those that are missing"
        )
    return count


def _enqueue(producer: Producer, topic: str, record: Raw) -> None:
    """Queue a record for sending; wait while the producer's queue is full."""
    key, value, timestamp, headers = record
    sent_ms = 0 if timestamp is None else max(timestamp, 1)  # librdkafka reads 0 as "now"
    while True:
        try:
            producer.produce(topic, key=key, value=value, timestamp=sent_ms, headers=list(headers))
            break
        except BufferError:
            producer.poll(_POLL_S)
    producer.poll(0)


def as_bytes(data: str | bytes | None) -> bytes | None:
    return data.encode() if isinstance(data, str) else data


def last_records(
    settings: Settings, topic: str, last: int, serdes: Serdes
) -> Iterator[tuple[int | None, int | None, int, Any, Any]]:
    """Yield partition, offset, timestamp (ms since the epoch), key and value of the last records of each partition, in order of time.

    Raises:
        DeserializationError: If a record does not fit the serdes.
    """
    found = list(messages(settings, topic, last))
    for message in sorted(found, key=lambda m: (m.timestamp()[1], m.partition() or 0, m.offset() or 0)):
        yield (
            message.partition(),
            message.offset(),
            message.timestamp()[1],
            _deserialized(serdes[0], message, "key"),
            _deserialized(serdes[1], message, "value"),
        )


def _deserialized(serde: Serde[Any], message: Message, side: Side) -> Any:
    topic = message.topic() or ""
    headers = tuple((header[0], as_bytes(header[1])) for header in message.headers() or ())
    try:
        return read(
            serde, as_bytes(message.key() if side == "key" else message.value()), topic, side, headers
        )
    except UnavailableError:
        raise
    except Exception as error:
        raise DeserializationError(
            f"topic {topic!r}, partition {message.partition()}, offset {message.offset()}: the {side} does not fit {serde!r} "
            f"({type(error).__name__}: {error}); give the serde that fits as {side}="
        ) from error


def send_records(settings: Settings, topic: str, records: Iterable[Any], serdes: Serdes) -> int:
    """Write records; return their number when all are acknowledged.

    Args:
        records: Each is a value, a pair of key and value, or a tuple of key, value and timestamp (ms since the epoch).

    Raises:
        SettingsError: If a tuple is not a record.
    """
    return write(settings, topic, [_raw(record, topic, serdes) for record in records])


def _raw(record: Any, topic: str, serdes: Serdes) -> Raw:
    key, value, timestamp = _record_fields(record) if isinstance(record, tuple) else (None, record, None)
    key_bytes, headers = serialize_for_topic(serdes[0], key, topic, "key", ())
    value_bytes, headers = serialize_for_topic(serdes[1], value, topic, "value", headers)
    return key_bytes, value_bytes, timestamp, headers


def _record_fields(record: tuple[Any, ...]) -> tuple[Any, Any, int | None]:
    if len(record) in (2, 3):
        key, value, timestamp = (*record, None)[:3]
        if timestamp is None or (isinstance(timestamp, int) and timestamp >= 0):
            return key, value, timestamp
    raise SettingsError(
        f"{record!r} is not a record: a record is a value, a pair of key and value, or a tuple of key, value and timestamp (ms since the epoch)"
    )
