"""Input and output topics of a test, with their own serdes and with timestamps that advance automatically."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Generic, NamedTuple, TypeAlias

from millstream.core.model.durations import Duration, millis, since_epoch_ms
from millstream.core.model.record import Headers, K, Record, V
from millstream.core.model.serdes import Serde
from millstream.testing._tasks import Sent

Serdes: TypeAlias = tuple[Serde[Any] | None, Serde[Any] | None]
"""Serdes of keys and values; None uses the serde of the source."""


class NewRecord(NamedTuple):
    """A record to write. If the partition is None, the key determines it."""

    key: Any
    value: Any
    timestamp: int
    headers: Headers = ()
    partition: int | None = None


Write: TypeAlias = Callable[[str, Serdes, NewRecord], None]
"""A function that writes a record to a topic, given the topic's name and serdes."""


class InputTopic(Generic[K, V]):
    """A topic to which a test writes. Created by :meth:`TopologyTestDriver.input_topic`, which has an example.

    Records without a timestamp receive the timestamps ``start``, ``start + advance``, and so on.

    Attributes:
        name: The topic.
        time_ms: The timestamp of the next record, ms since the epoch.

    Source: ``org.apache.kafka.streams.TestInputTopic``.
    """

    def __init__(
        self,
        name: str,
        write: Write,
        serdes: Serdes,
        start: int | datetime,
        advance: Duration,
    ) -> None:
        self.name = name
        self.time_ms = since_epoch_ms(start) if isinstance(start, datetime) else start
        self._advance_ms = _forward(advance, "advance")
        self._write = write
        self._serdes = serdes

    def pipe(
        self,
        key: K | None,
        value: V | None,
        timestamp: int | None = None,
        headers: Headers = (),
        *,
        partition: int | None = None,
    ) -> None:
        """Write a record; see :meth:`TopologyTestDriver.pipe`.

        Args:
            key: The key, or None.
            value: The value, or None.
            timestamp: Milliseconds since the epoch; None uses the topic's time and advances it.
            headers: Name and value pairs.
            partition: The partition; None chooses it by the key.

        Raises:
            SerdeError: If the key or the value does not fit the serdes.
            MillstreamError: As in ``TopologyTestDriver.pipe``.

        Source: ``TestInputTopic.pipeInput``.
        """
        if timestamp is None:
            timestamp = self.time_ms
            self.time_ms += self._advance_ms
        self._write(self.name, self._serdes, NewRecord(key, value, timestamp, headers, partition))

    def pipe_value(self, value: V | None, timestamp: int | None = None, headers: Headers = ()) -> None:
        """Write a record without a key.

        Args:
            value: The value, or None.
            timestamp: As in :meth:`pipe`.
            headers: Name and value pairs.

        Raises:
            MillstreamError: As in :meth:`pipe`.

        Source: ``TestInputTopic.pipeInput(value)``.
        """
        self.pipe(None, value, timestamp, headers)

    def pipe_all(self, records: Iterable[tuple[K | None, V | None]]) -> None:
        """Write several records.

        Args:
            records: Pairs of key and value.

        Raises:
            MillstreamError: As in :meth:`pipe`.

        Source: ``TestInputTopic.pipeKeyValueList``.
        """
        for key, value in records:
            self.pipe(key, value)

    def pipe_values(self, values: Iterable[V | None]) -> None:
        """Write several records without keys.

        Args:
            values: The values.

        Raises:
            MillstreamError: As in :meth:`pipe`.

        Source: ``TestInputTopic.pipeValueList``.
        """
        for value in values:
            self.pipe(None, value)

    def advance_time(self, duration: Duration) -> None:
        """Advance the timestamp of the next record.

        Args:
            duration: A timedelta, or milliseconds; not negative.

        Raises:
            ValueError: If the duration is negative.

        Source: ``TestInputTopic.advanceTime``.

        Example:
            >>> import millstream as ms
            >>> builder = ms.StreamsBuilder()
            >>> builder.stream("in").to("out")
            >>> with ms.testing.TopologyTestDriver(builder.build()) as driver:
            ...     topic = driver.input_topic("in", start=0)
            ...     topic.advance_time(500)
            ...     topic.pipe_value("v")
            ...     [record.timestamp for record in driver.read("out")]
            [500]
        """
        self.time_ms += _forward(duration, "advance_time")


class OutputTopic(Generic[K, V]):
    """A topic that a test reads. Created by :meth:`TopologyTestDriver.output_topic`, which has an example.

    Reading removes records. All objects for one topic, and ``TopologyTestDriver.read``, share the same queue.

    Attributes:
        name: The topic.

    Source: ``org.apache.kafka.streams.TestOutputTopic``.
    """

    def __init__(
        self, name: str, sent: Callable[[], deque[Sent]], key: Serde[K] | None, value: Serde[V] | None
    ) -> None:
        self.name = name
        self._sent = sent
        self._serdes = (key, value)

    def __len__(self) -> int:
        """Return the number of records that can be read."""
        return len(self._sent())

    @property
    def is_empty(self) -> bool:
        """Whether the topic has no record to read.

        Source: ``TestOutputTopic.isEmpty``.
        """
        return not self._sent()

    def read_one(self) -> Record[K, V]:
        """Take the next record.

        Returns:
            The record, with its key and value as objects.

        Raises:
            LookupError: If the topic has no record to read.

        Source: ``TestOutputTopic.readRecord``.
        """
        if self.is_empty:
            raise LookupError(
                f"topic {self.name!r} has no record to read: nothing was sent to it since the last read; check len() or "
                "is_empty first, or use read_all(), which may return an empty list"
            )
        return self._sent().popleft().record(self._serdes)

    def read_all(self) -> list[Record[K, V]]:
        """Take all records, in the order in which they were sent.

        Source: ``TestOutputTopic.readRecordsToList``.
        """
        return [self.read_one() for _ in range(len(self))]

    def read_pairs(self) -> list[tuple[K, V]]:
        """Take all records, as pairs of key and value.

        Source: ``TestOutputTopic.readKeyValuesToList``.
        """
        return [(record.key, record.value) for record in self.read_all()]

    def read_values(self) -> list[V]:
        """Take all records, as values.

        Source: ``TestOutputTopic.readValuesToList``.
        """
        return [record.value for record in self.read_all()]

    def read_as_table(self) -> dict[K, V]:
        """Take all records, and keep the last value of each key.

        Returns:
            The values by key, without keys whose last value is None.

        Raises:
            ValueError: If a record has no key.

        Source: ``TestOutputTopic.readKeyValuesToMap``.
        """
        rows: dict[K, V] = {}
        for record in self.read_all():
            if record.key is None:
                raise ValueError(
                    f"topic {self.name!r} has a record without a key, which is not a row of a table: {record}"
                )
            rows.pop(record.key, None)
            if record.value is not None:
                rows[record.key] = record.value
        return rows


def _forward(duration: Duration, name: str) -> int:
    if millis(duration) < 0:
        raise ValueError(
            f"{name}({duration!r}): the time of a topic cannot go back; pass a timestamp for a late record"
        )
    return millis(duration)
