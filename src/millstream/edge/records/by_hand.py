"""Reading a few records of a topic, and writing a few, for the command line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from millstream.core.model import serdes
from millstream.core.model.errors import MillstreamError, ProductionError, SettingsError, TopicNotFoundError
from millstream.drivers.kafka.broker import Broker
from millstream.drivers.kafka.secret import with_secrets
from millstream.edge.settings import Settings

_GROUP: Final = "millstream-peek"
_POLL_S: Final = 0.2
_FLUSH_S: Final = 60.0
SERDES: Final = ("auto", "string", "bytes", "int16", "int32", "int64", "float32", "float64", "uuid", "json")
"""Formats by name; ``auto`` is text, or hexadecimal where it is none."""


@dataclass(frozen=True)
class Peek:
    """Which records are read.

    Attributes:
        topic: The topic.
        last: How many of each partition, the last ones; None is all.
        follow: Whether to wait for further records.
        key: Format of the keys.
        value: Format of the values.
    """

    topic: str
    last: int | None = 10
    follow: bool = False
    key: str = "auto"
    value: str = "auto"


def peeked(peek: Peek, settings: Settings) -> Iterator[dict[str, Any]]:
    """Read records, and yield them as plain data. Commits nothing.

    Args:
        peek: Which.
        settings: Where the brokers are.

    Raises:
        TopicNotFoundError: If there is no such topic.
        SettingsError: If there is no such format.
    """
    _check(peek.key, peek.value)
    timeout_s = settings.request_timeout_ms / 1000
    broker = Broker(settings.client("admin", _GROUP), _GROUP, True, timeout_s)
    counts = broker.partition_counts([peek.topic])
    if peek.topic not in counts:
        raise TopicNotFoundError(f"there is no topic {peek.topic!r} at {settings.bootstrap_servers}")
    begins, ends = broker.begin_offsets(counts)[peek.topic], broker.end_offsets(counts)[peek.topic]
    starts = {
        number: begins[number] if peek.last is None else max(begins[number], ends[number] - peek.last)
        for number in begins
    }
    own = {
        "group.id": _GROUP,
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
    }
    consumer = Consumer({**with_secrets(settings.client("consumer", _GROUP)), **own})
    try:
        consumer.assign([TopicPartition(peek.topic, number, start) for number, start in starts.items()])
        yield from _rows(consumer, peek, {number for number in starts if starts[number] < ends[number]}, ends)
    finally:
        consumer.close()


def _rows(
    consumer: Consumer, peek: Peek, waiting: set[int], ends: Mapping[int, int]
) -> Iterator[dict[str, Any]]:
    while waiting or peek.follow:
        message = consumer.poll(_POLL_S)
        if message is None:
            continue
        error, partition = message.error(), message.partition() or 0
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise MillstreamError(f"topic {peek.topic!r} cannot be read: {error}")
        if error is not None or (message.offset() or 0) + 1 >= ends[partition]:
            waiting.discard(partition)
        if error is None:
            yield _row(message, peek)


def _row(message: Message, peek: Peek) -> dict[str, Any]:
    return {
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": message.timestamp()[1],
        "key": _shown(message.key(), peek.key),
        "value": _shown(message.value(), peek.value),
        "headers": [[header[0], _shown(_bytes(header[1]), "auto")] for header in message.headers() or ()],
    }


def _bytes(data: Any) -> bytes | None:
    return data.encode() if isinstance(data, str) else data


def _shown(data: Any, form: str) -> Any:
    raw = _bytes(data)
    if raw is None:
        return None
    if form in ("auto", "bytes"):
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return raw.hex()
    try:
        found = getattr(serdes, form).deserialize(raw)
    except Exception as error:  # another record may fit
        return f"<no {form}: {error}>"
    return found if isinstance(found, str | int | float | bool | list | dict | None) else str(found)


def sent(
    topic: str, records: Iterable[tuple[str | None, str | None]], forms: tuple[str, str], settings: Settings
) -> int:
    """Write records, and return their number when all are acknowledged.

    Args:
        topic: The topic, which must exist.
        records: Keys and values as text; None is null.
        forms: Format of the keys, and of the values.
        settings: Where the brokers are.

    Raises:
        TopicNotFoundError: If there is no such topic.
        SettingsError: If there is no such format, or text does not fit it.
        ProductionError: If a record is not acknowledged.
    """
    _check(*forms)
    broker = Broker(settings.client("admin", _GROUP), _GROUP, True, settings.request_timeout_ms / 1000)
    if topic not in broker.partition_counts([topic]):
        raise TopicNotFoundError(f"there is no topic {topic!r} at {settings.bootstrap_servers}")
    failures: list[KafkaError] = []

    def note(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(error)

    own = {"enable.idempotence": True, "partitioner": "murmur2_random"}
    producer = Producer({**with_secrets(settings.client("producer", _GROUP)), **own})
    count = 0
    for key, value in records:
        key_bytes, value_bytes = _written(key, forms[0]), _written(value, forms[1])
        while True:
            try:
                producer.produce(topic, key=key_bytes, value=value_bytes, on_delivery=note)
                break
            except BufferError:
                producer.poll(_POLL_S)
        producer.poll(0)
        count += 1
    left = producer.flush(_FLUSH_S)
    if failures or left:
        why = str(failures[0]) if failures else f"{left} records are not acknowledged after {_FLUSH_S:.0f} s"
        raise ProductionError(f"topic {topic!r}: {why}")
    return count


def _written(text: str | None, form: str) -> bytes | None:
    if text is None:
        return None
    if form in ("auto", "string", "bytes"):
        return text.encode()
    try:
        given = UUID(text) if form == "uuid" else json.loads(text)
        data: bytes = getattr(serdes, form).serialize(given)
    except (ValueError, MillstreamError) as error:
        raise SettingsError(f"{text!r} is no {form}: {error}") from None
    return data


def _check(*forms: str) -> None:
    for form in forms:
        if form not in SERDES:
            raise SettingsError(f"there is no format {form!r}; the formats are {', '.join(SERDES)}")
