"""Evidence of a run from the broker's own topics: the commits of a group, and the states of transactions.

Polling the committed offset would show only some commits, without their times. The topic ``__consumer_offsets`` contains all of them, as
``OffsetCommitKey`` (versions 0 and 1) and ``OffsetCommitValue`` (versions 3 and 4) of Kafka. The coordinator's log,
``__transaction_state``, contains ``TransactionLogKey`` (version 0) and ``TransactionLogValue`` (version 0, and version 1, which encodes
the lengths of strings and lists as variable-length numbers).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import NamedTuple, final

from millstream.testing.kafka import ConsumedRecord, EmbeddedKafka

OFFSETS = "__consumer_offsets"
TRANSACTIONS = "__transaction_state"
_KEYS_OF_OFFSETS = (0, 1)


class Commit(NamedTuple):
    """A commit of one partition.

    Attributes:
        offset: The committed offset, that is, the first unfinished one.
        at_us: The time of the commit at the broker, microseconds since the epoch: the end of the millisecond that the broker records.
    """

    partition: int
    offset: int
    at_us: int


def commits_of(kafka: EmbeddedKafka, group: str, topic: str) -> list[Commit]:
    """Return the commits of a group for a topic, in order. Commits in transactions are included only if the transaction committed.

    Args:
        kafka: The broker, which must not have compacted the commits yet.
    """
    records = kafka.consume(OFFSETS, isolation="read_committed")
    return [commit for record in records for commit in commits_in(record, group, topic)]


def went_back(commits: Iterable[Commit]) -> int:
    """Return the number of commits with an offset below an earlier commit of the same partition.

    Example:
        >>> went_back([Commit(0, 5, 1), Commit(1, 3, 1), Commit(0, 5, 2), Commit(0, 4, 3)])
        1
    """
    furthest: dict[int, int] = {}
    back = 0
    for commit in commits:
        back += commit.offset < furthest.get(commit.partition, 0)
        furthest[commit.partition] = max(commit.offset, furthest.get(commit.partition, 0))
    return back


def commits_in(record: ConsumedRecord, group: str, topic: str) -> Iterator[Commit]:
    """Yield the commit in a record of ``__consumer_offsets``, if it belongs to the group and topic."""
    if record.key is None or record.value is None:
        return
    key = _FieldReader(record.key)
    if key.take(">h")[0] not in _KEYS_OF_OFFSETS or (key.read_text(), key.read_text()) != (group, topic):
        return
    (partition,) = key.take(">i")
    value = _FieldReader(record.value)
    (version,) = value.take(">h")
    assert version in (3, 4), f"the broker writes offsets in version {version}, which is not known here"
    offset, _ = value.take(">qi")
    value.read_text(compact=version > 3)  # the metadata
    (at_ms,) = value.take(">q")
    yield Commit(partition, offset, at_ms * 1000 + 999)


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


def transaction_lines(records: Iterable[ConsumedRecord], last: int) -> tuple[str, ...]:
    """Return the last states of all transactions as lines of text, in order of time."""
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
    reader = _FieldReader(value)
    (version,) = reader.take(">h")
    producer, epoch, _, state = reader.take(">qhib")
    compact = version > 0
    partitions = []
    for _ in range(reader.length(">i", compact)):
        topic = reader.read_text(compact=compact)
        partitions += [f"{topic}-{reader.take('>i')[0]}" for _ in range(reader.length(">i", compact))]
        if compact:
            reader.read_number()  # the number of tagged fields, which is 0
    return f"{_STATES[state]}, producer {producer}, epoch {epoch}, {', '.join(partitions) or 'no partitions'}"


@final
class _FieldReader:
    """Reads the fields of a record in order."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, form: str) -> tuple[int, ...]:
        value: tuple[int, ...] = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return value

    def length(self, form: str, compact: bool) -> int:
        """Read the length of a string or a list; the length of null is 0."""
        return max(self.read_number() - 1 if compact else self.take(form)[0], 0)

    def read_number(self) -> int:
        """Read a variable-length number: seven bits per byte, lowest first."""
        value = shift = 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def read_text(self, *, compact: bool = False) -> str:
        length = self.length(">h", compact)
        self._at += length
        return self._data[self._at - length : self._at].decode()
