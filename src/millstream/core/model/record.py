"""Records: a key, a value, a timestamp in milliseconds since the epoch, and headers.

There are two representations:

* :class:`Record`: one record as an object, which processors receive and forward. Immutable, because one record may be forwarded to
  several children.
* :class:`Records`: many records as columns, which the engine and the drivers exchange. A record in columns costs a fraction of an
  object. The hot path uses only columns, unless a user's processor needs objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NamedTuple, NoReturn, Self, TypeVar

LAST_MS: Final = (1 << 63) - 1
"""The latest timestamp of a record in a topic, ms since the epoch."""

K = TypeVar("K")
V = TypeVar("V")
K2 = TypeVar("K2")
V2 = TypeVar("V2")

Headers = tuple[tuple[str, bytes | None], ...]
"""Headers in order; a name may occur more than once, and a value may be None."""


class Record(Generic[K, V]):
    """A record as processors see it: immutable key, value, timestamp and headers.

    Args:
        key: The key, or None.
        value: The value, or None (in a table, None deletes the key).
        timestamp: Milliseconds since the epoch, from 0 to 2^63 - 1.
        headers: Name and value pairs in order.

    Raises:
        ValueError: If the timestamp is negative (Kafka Streams: StreamsException), or too large for a topic.
        TypeError: If the timestamp is not an int, or the headers are not such pairs.

    Source: ``org.apache.kafka.streams.processor.api.Record``.

    Example:
        >>> Record("a", 1, 5).with_value(2)
        Record(key='a', value=2, timestamp=5, headers=())
    """

    __slots__ = ("headers", "key", "timestamp", "value")

    key: K
    value: V
    timestamp: int
    headers: Headers

    def __init__(self, key: K, value: V, timestamp: int, headers: Headers = ()) -> None:
        if not isinstance(timestamp, int):
            raise TypeError(f"the timestamp of a record must be an int of ms, not {timestamp!r}")
        if not 0 <= timestamp <= LAST_MS:
            problem = "not be negative" if timestamp < 0 else f"be at most {LAST_MS}"
            raise ValueError(f"the timestamp of a record must {problem}: {timestamp}")
        _set_key(self, key)
        _set_value(self, value)
        _set_timestamp(self, timestamp)
        _set_headers(self, () if headers == () else checked_headers(headers))

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a record is immutable; use with_{name}(...) to get a changed copy")

    def with_key(self, key: K2) -> Record[K2, V]:
        """Return a copy with another key.

        Args:
            key: The key.

        Source: ``Record.withKey``.

        Example:
            >>> Record("a", 1, 5).with_key("b")
            Record(key='b', value=1, timestamp=5, headers=())
        """
        return Record(key, self.value, self.timestamp, self.headers)

    def with_value(self, value: V2) -> Record[K, V2]:
        """Return a copy with another value. For an example, see :class:`Record`.

        Args:
            value: The value.

        Source: ``Record.withValue``.
        """
        return Record(self.key, value, self.timestamp, self.headers)

    def with_timestamp(self, timestamp: int) -> Record[K, V]:
        """Return a copy with another timestamp.

        Args:
            timestamp: Milliseconds since the epoch, at least 0.

        Raises:
            ValueError: If the timestamp is negative.

        Source: ``Record.withTimestamp``.

        Example:
            >>> Record("a", 1, 5).with_timestamp(7)
            Record(key='a', value=1, timestamp=7, headers=())
        """
        return Record(self.key, self.value, timestamp, self.headers)

    def with_headers(self, headers: Headers) -> Record[K, V]:
        """Return a copy with other headers.

        Args:
            headers: Name and value pairs in order.

        Source: ``Record.withHeaders``.

        Example:
            >>> Record("a", 1, 5).with_headers((("trace", b"1"),))
            Record(key='a', value=1, timestamp=5, headers=(('trace', b'1'),))
        """
        return Record(self.key, self.value, self.timestamp, headers)

    def _astuple(self) -> tuple[K, V, int, Headers]:
        return (self.key, self.value, self.timestamp, self.headers)

    def __eq__(self, other: object) -> bool:
        return self._astuple() == other._astuple() if isinstance(other, Record) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._astuple())

    def __repr__(self) -> str:
        return f"Record(key={self.key!r}, value={self.value!r}, timestamp={self.timestamp}, headers={self.headers!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (Record, self._astuple())


def checked_headers(headers: Iterable[tuple[str, bytes | None]]) -> Headers:
    """Return headers as a tuple; raise TypeError if they are not pairs that a topic can contain."""
    pairs = headers if type(headers) is tuple else tuple(headers)
    for pair in pairs:
        fits = isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)
        if not fits or not (pair[1] is None or isinstance(pair[1], bytes)):
            raise TypeError(
                f"the headers of a record must be pairs of a name and bytes or None, such as (('trace', b'1'),), not {headers!r}"
            )
    return pairs


# The setters of the slots bypass __setattr__ and take a third of the time of object.__setattr__.
_slots: Any = Record.__dict__
_set_key = _slots["key"].__set__
_set_value = _slots["value"].__set__
_set_timestamp = _slots["timestamp"].__set__
_set_headers = _slots["headers"].__set__


class RecordMetadata(NamedTuple):
    """Origin of the record being processed.

    Attributes:
        topic: Name of the topic.
        partition: Number of the partition.
        offset: Offset of the record.

    Source: ``org.apache.kafka.streams.processor.api.RecordMetadata``.
    """

    topic: str
    partition: int
    offset: int


class RecordContext(NamedTuple):
    """Metadata of the record being processed, for functions that choose a topic. For an example, see ``KStream.to``.

    Attributes:
        topic: Topic from which the record was read.
        partition: Number of the partition.
        offset: Offset of the record.
        timestamp: Milliseconds since the epoch.
        headers: Name and value pairs in order.

    Source: ``org.apache.kafka.streams.processor.RecordContext``.
    """

    topic: str | None
    partition: int
    offset: int
    timestamp: int
    headers: Headers


class ValueAndTimestamp(NamedTuple):
    """A value in a timestamped store, with the timestamp of the record that set the value.

    Attributes:
        value: The value.
        timestamp: Milliseconds since the epoch.

    Source: ``org.apache.kafka.streams.state.ValueAndTimestamp``.
    """

    value: Any
    timestamp: int


class Change(NamedTuple):
    """A change of a row of a table: the new and the old value (Kafka Streams: ``Change``)."""

    new: Any
    old: Any


Bytes = bytes | None


class Times(NamedTuple):
    """The times of a whole partition at one offset: running maxima of timestamps in ms since the epoch, -1 before the first record.

    Attributes:
        all: The largest timestamp of all records.
        keyed: The largest timestamp of the records that have a key.
        valued: The largest timestamp of the records that have a key and a value.
    """

    all: int = -1
    keyed: int = -1
    valued: int = -1


@dataclass(slots=True)
class TimeSteps:
    """The steps by which the time of a partition advanced, as parallel lists: one entry per distinct value of the running maximum.

    Attributes:
        time: The largest timestamp so far, ms since the epoch.
        keyed: The largest timestamp of the records that have a key, at the end of the step.
        valued: The largest timestamp of the records that have a key and a value, at the end of the step.
        complete: Whether any record of the step has a key and a value.
    """

    time: list[int] = field(default_factory=list)
    keyed: list[int] = field(default_factory=list)
    valued: list[int] = field(default_factory=list)
    complete: list[bool] = field(default_factory=list)

    def add(self, times: Times, *, complete: bool) -> None:
        """Add the times after a record."""
        if self.time and self.time[-1] == times.all:
            complete = complete or self.complete[-1]
            for column in (self.time, self.keyed, self.valued, self.complete):
                column.pop()
        self.time.append(times.all)
        self.keyed.append(times.keyed)
        self.valued.append(times.valued)
        self.complete.append(complete)

    def not_earlier_than(self, last: Times, start: int = 0) -> TimeSteps:
        """Return the steps from an index on, with times no earlier than the times before these steps."""
        return TimeSteps(
            [max(last.all, time) for time in self.time[start:]],
            [max(last.keyed, time) for time in self.keyed[start:]],
            [max(last.valued, time) for time in self.valued[start:]],
            self.complete[start:],
        )

    def extend(self, other: TimeSteps) -> None:
        """Append later steps."""
        self.time += other.time
        self.keyed += other.keyed
        self.valued += other.valued
        self.complete += other.complete


@dataclass(slots=True)
class PartitionTimes:
    """The times of a whole partition, for records of one of its key ranges.

    The times are running maxima over the records that were read together.

    Attributes:
        before: Per record, the largest timestamp before it.
        keyed_before: Per record, the largest timestamp before it of records that have a key.
        valued_before: Per record, the largest timestamp before it of records that have a key and a value.
        end: The times after all records.
        steps: How time advanced, for operators that depend on more than the time at their own records; None if there are no such
            operators.
    """

    before: list[int] = field(default_factory=list)
    keyed_before: list[int] = field(default_factory=list)
    valued_before: list[int] = field(default_factory=list)
    end: Times = field(default_factory=Times)
    steps: TimeSteps | None = None

    def add(self, times: Times) -> None:
        """Add the times before a record."""
        self.before.append(times.all)
        self.keyed_before.append(times.keyed)
        self.valued_before.append(times.valued)

    def take(self, rows: Sequence[int]) -> PartitionTimes:
        """Return the times of some of the records."""
        return PartitionTimes(
            [self.before[row] for row in rows],
            [self.keyed_before[row] for row in rows],
            [self.valued_before[row] for row in rows],
            self.end,
            self.steps,
        )


@dataclass(slots=True)
class Records:
    """Many records of one partition as columns: parallel lists of serialised keys and values.

    Attributes:
        keys: Serialised keys; None for a null key.
        values: Serialised values; None for a null value.
        timestamps: Milliseconds since the epoch.
        offsets: Offsets in the source partition; empty for records to send.
        headers: Headers per record, or None if no record has headers.
        partitions: Target partition per record, or None to choose it by key (like Java producers).
        writer: The task that sends the records to a repartition topic on the broker, otherwise empty.
        times: The times of the partition, if the records belong to one of its key ranges.
        weights: Per record, the number of records of its key that it stands for; None if each stands for itself.
    """

    keys: list[Bytes] = field(default_factory=list)
    values: list[Bytes] = field(default_factory=list)
    timestamps: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    headers: list[Headers] | None = None
    partitions: list[int] | None = None
    writer: str = ""
    times: PartitionTimes | None = None
    weights: list[int] | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def byte_count(self) -> int:
        """Return the total size of all keys and values, bytes. If records stand for others, the size of these is estimated."""
        if self.weights is not None:
            sizes = zip(self.keys, self.values, self.weights)
            return sum((len(key or b"") + len(value or b"")) * weight for key, value, weight in sizes)
        return sum(map(len, filter(None, self.keys))) + sum(map(len, filter(None, self.values)))

    def represented(self) -> int:
        """Return the number of records that these records stand for."""
        return len(self) if self.weights is None else sum(self.weights)

    def take(self, rows: Sequence[int]) -> Records:
        """Return the records in the given rows, without the fields that are specific to a topic."""
        times = self.times
        return Records(
            [self.keys[row] for row in rows],
            [self.values[row] for row in rows],
            [self.timestamps[row] for row in rows],
            [self.offsets[row] for row in rows] if self.offsets else [],
            None if self.headers is None else [self.headers[row] for row in rows],
            times=None if times is None else times.take(rows),
            weights=None if self.weights is None else [self.weights[row] for row in rows],
        )

    def beyond(self, offset: int) -> Records:
        """Return the records from an offset on. The records may be in any order of offsets."""
        rows = [row for row, known in enumerate(self.offsets) if known >= offset]
        return self if len(rows) == len(self.offsets) else self.take(rows)

    def extend(self, other: Self) -> None:
        """Append the records of another batch of the same kind. The times of the partition are omitted.

        Raises:
            ValueError: If only one of the two batches has chosen partitions.
        """
        self.headers = _extended(self.headers, len(self), other.headers, len(other), ())
        self.weights = _extended(self.weights, len(self), other.weights, len(other), 1)
        if (self.partitions is None) != (other.partitions is None) and len(self):
            raise ValueError("records with and without chosen partitions cannot be in one batch")
        if other.partitions is not None:
            self.partitions = [] if self.partitions is None else self.partitions
            self.partitions.extend(other.partitions)
        self.keys.extend(other.keys)
        self.values.extend(other.values)
        self.timestamps.extend(other.timestamps)
        self.offsets.extend(other.offsets)


def _extended(column: list[Any] | None, size: int, other: list[Any] | None, more: int, missing: Any) -> Any:
    """Append a column to another. Both may be missing."""
    if column is None and other is None:
        return None
    column = [missing] * size if column is None else column
    column.extend([missing] * more if other is None else other)
    return column
