"""Decodes the coordinator's log of transactions, the topic ``__transaction_state``, as evidence.

The records are Kafka's ``TransactionLogKey`` (version 0) and ``TransactionLogValue`` (version 0, and version 1, which encodes the
lengths of texts and lists as variable-length numbers).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import final

from millstream.testing.kafka import ConsumedRecord

TOPIC = "__transaction_state"

_STATES = (
    "empty",
    "ongoing",
    "prepares to commit",
    "prepares to abort",
    "committed",
    "aborted",
    "dead",
    "prepares to fence",
)


def told_transactions(records: Iterable[ConsumedRecord], last: int) -> tuple[str, ...]:
    """Return the last states of all transactions as lines of text, ordered by time.

    Args:
        records: The records of the coordinator's topic.
        last: The number of states per transactional id.
    """
    by_id: dict[bytes, list[ConsumedRecord]] = {}
    for record in records:
        by_id.setdefault(record.key or b"", []).append(record)
    chosen = [record for of_one in by_id.values() for record in of_one[-last:]]
    return tuple(_line(record) for record in sorted(chosen, key=lambda record: record.timestamp))


def _line(record: ConsumedRecord) -> str:
    time = datetime.fromtimestamp(record.timestamp / 1000, UTC).strftime("%H:%M:%S.%f")[:-3]
    name = (record.key or b"")[4:].decode()
    return f"{time} {name}: {'deleted' if record.value is None else _state(record.value)}"


def _state(value: bytes) -> str:
    reader = _LogReader(value)
    (version,) = reader.take(">h")
    producer, epoch, _, state = reader.take(">qhib")
    compact = version > 0
    partitions = []
    for _ in range(reader.length(">i", compact)):
        topic = reader.text(reader.length(">h", compact))
        partitions += [f"{topic}-{reader.take('>i')[0]}" for _ in range(reader.length(">i", compact))]
        if compact:
            reader.number()  # the number of tagged fields, which is 0
    return f"{_STATES[state]}, producer {producer}, epoch {epoch}, {', '.join(partitions) or 'no partitions'}"


@final
class _LogReader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, form: str) -> tuple[int, ...]:
        value: tuple[int, ...] = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return value

    def length(self, form: str, compact: bool) -> int:
        """Read the length of a text or a list; that of null is 0."""
        return max(self.number() - 1 if compact else self.take(form)[0], 0)

    def number(self) -> int:
        """Read a variable-length number: seven bits per byte, the lowest first."""
        value = shift = 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def text(self, length: int) -> str:
        self._at += length
        return self._data[self._at - length : self._at].decode()
