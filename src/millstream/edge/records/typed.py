"""Reading the last records of a topic, and writing some, with serdes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from millstream.core.model.serdes import Serde, SerdeContext
from millstream.edge.records.raw import Raw, as_bytes, messages, write
from millstream.edge.settings.settings import Settings

Serdes = tuple[Serde[Any], Serde[Any]]


def last_records(
    settings: Settings, topic: str, last: int, serdes: Serdes
) -> Iterator[tuple[int | None, int | None, int, Any, Any]]:
    """Yield partition, offset, timestamp (ms since the epoch), key and value of the last records of each partition, by time.

    Raises:
        TopicNotFoundError: If there is no such topic.
        DeserializationError: If a record does not fit the serdes.
    """
    found = list(messages(settings, topic, last))
    for message in sorted(found, key=lambda m: (m.timestamp()[1], m.partition() or 0, m.offset() or 0)):
        yield (
            message.partition(),
            message.offset(),
            message.timestamp()[1],
            _read(serdes[0], as_bytes(message.key()), SerdeContext(topic, "key", [])),
            _read(serdes[1], as_bytes(message.value()), SerdeContext(topic, "value", [])),
        )


def send_records(settings: Settings, topic: str, records: Iterable[Any], serdes: Serdes) -> int:
    """Write records: values, pairs of key and value, or key, value and timestamp (ms since the epoch).

    Raises:
        TopicNotFoundError: If there is no such topic.
        ProductionError: If a record is not acknowledged.
    """
    return write(settings, topic, [_raw(record, topic, serdes) for record in records])


def _raw(record: Any, topic: str, serdes: Serdes) -> Raw:
    key, value, timestamp = (*record, None, None)[:3] if isinstance(record, tuple) else (None, record, None)
    return (
        _written(serdes[0], key, SerdeContext(topic, "key", [])),
        _written(serdes[1], value, SerdeContext(topic, "value", [])),
        timestamp,
    )


def _read(serde: Serde[Any], data: bytes | None, context: SerdeContext) -> Any:
    if data is None:
        return None
    return serde.deserialize(data) if serde.contextual is None else serde.contextual[1](data, context)


def _written(serde: Serde[Any], found: Any, context: SerdeContext) -> Any:
    if found is None:
        return None
    return serde.serialize(found) if serde.contextual is None else serde.contextual[0](found, context)
