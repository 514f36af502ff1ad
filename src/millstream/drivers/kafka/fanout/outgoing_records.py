"""The records of a producer with fan-out, from ``produce`` to the callback of their delivery.

They are checked when they are produced, as confluent-kafka does: the background thread could only discard them, with all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from operator import index
from typing import Any, Final

from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE, KafkaError, KafkaException

from millstream.core.model.errors import ProductionError
from millstream.core.model.ids import TopicPartition

Headers = list[tuple[str, bytes | None]]
Delivered = Callable[[KafkaError | None, Any], None]

_OVERHEAD: Final = 36
"""What librdkafka adds to the size of a record, in bytes, when it compares it with ``message.max.bytes``."""
_TIMES: Final = range(-(1 << 63), 1 << 63)


@dataclass(slots=True)
class Outgoing:
    """A record to be sent, with serialised key and value.

    Attributes:
        topic_partition: The primary partition that its key selects.
        timestamp: Timestamp, in ms since the epoch. 0 means now.
        delivered: The callback for its delivery, or None.
    """

    topic_partition: TopicPartition
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Any
    delivered: Delivered | None
    message: Any = None

    def keep(self, _error: KafkaError | None, message: Any) -> None:
        """Keep the message for the callback."""
        self.message = message


class Undelivered:
    """The message of a record that was not delivered, with the methods of confluent-kafka's ``Message``.

    The client creates a message only for records that it has sent.
    """

    def __init__(self, record: Outgoing, error: KafkaError) -> None:
        self._record = record
        self._error = error

    def topic(self) -> str:
        return self._record.topic_partition.topic

    def partition(self) -> int:
        return self._record.topic_partition.partition

    def key(self) -> bytes | None:
        return self._record.key

    def value(self) -> bytes | None:
        return self._record.value

    def headers(self) -> Any:
        return self._record.headers

    def timestamp(self) -> tuple[int, int]:
        time = self._record.timestamp
        return (TIMESTAMP_CREATE_TIME if time else TIMESTAMP_NOT_AVAILABLE, time)

    def offset(self) -> None:
        return None

    def error(self) -> KafkaError:
        return self._error


def undelivered(
    records: Iterable[Outgoing], error: KafkaError
) -> Iterator[tuple[Delivered, KafkaError, Undelivered]]:
    """Return the calls of the callbacks of records that were not delivered, or perhaps not."""
    for record in records:
        if record.delivered is not None:
            yield record.delivered, error, Undelivered(record, error)


def refusal(record: Outgoing, cause: KafkaError) -> ProductionError:
    return ProductionError(
        f"the broker refuses a record for {record.topic_partition}: {cause.str()}. The other records are sent. With on_delivery=, produce "
        "reports which record it is; for one that is too large, raise the topic's max.message.bytes"
    )


def checked_bytes(data: object, what: str) -> bytes | None:
    """Return a key or value as bytes.

    Raises:
        TypeError: If it is neither bytes nor text nor None.
    """
    if data is None or isinstance(data, bytes):
        return data
    if isinstance(data, str):
        return data.encode()
    raise TypeError(f"the {what} of a record is bytes, str or None, not {type(data).__name__}")


def checked_headers(headers: object) -> Headers | None:
    """Return the headers of a record as pairs of a name and bytes.

    Raises:
        TypeError: If they are neither a dict nor a list of pairs, or a name or value has a wrong type.
    """
    if headers is None:
        return None
    pairs = list(headers.items()) if isinstance(headers, dict) else headers
    if not isinstance(pairs, list) or not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        raise TypeError("the headers of a record are a dict or a list of tuples (name, value)")
    return [(_checked_name(name), checked_bytes(value, "value of a header")) for name, value in pairs]


def checked_time(timestamp: int) -> int:
    """Return a timestamp that the client can send.

    Raises:
        TypeError: If it is not an integer.
        OverflowError: If it has more than 64 bits.
    """
    if index(timestamp) not in _TIMES:
        raise OverflowError(f"the timestamp {timestamp} of a record has more than 64 bits")
    return timestamp


def check_size(record: Outgoing, most_bytes: int) -> None:
    """Check the size of a record, as librdkafka calculates it.

    Raises:
        KafkaException: MSG_SIZE_TOO_LARGE, if it is larger than ``most_bytes``.
    """
    size = _OVERHEAD + len(record.key or b"") + len(record.value or b"")
    for name, value in record.headers or ():
        sizes = len(name.encode()), len(value or b"")
        size += sum(sizes) + sum(map(_varint_size, sizes))
    if size > most_bytes:
        reason = f"the record has {size:,} bytes, more than the producer setting message.max.bytes ({most_bytes:,})"
        raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE, reason))


def _checked_name(name: object) -> str:
    if isinstance(name, bytes):
        return name.decode()
    if isinstance(name, str):
        name.encode()  # raises an error now instead of in the background
        return name
    raise TypeError(f"the name of a header is str, not {type(name).__name__}")


def _varint_size(size: int) -> int:
    """Return the bytes that a length takes in a record (zigzag encoding)."""
    return max(1, -(-(2 * size).bit_length() // 7))
