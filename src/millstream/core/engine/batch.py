"""Batches of records as columns (parallel lists of keys, values, timestamps and headers), and the deserialisation of records.

``millstream.core.engine.columns`` describes which nodes process columns. The records of a source are deserialised together or, if one of
them fails, one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import compress
from typing import Any

from millstream.core.engine.failures import Attempt, Failure
from millstream.core.engine.records.queue import Chunk, RecordQueue
from millstream.core.engine.runtime import Runtime
from millstream.core.model.errors import DeserializationError, MillstreamError
from millstream.core.model.ids import TopicPartition
from millstream.core.model.record import ConsumerRecord, Headers, Records
from millstream.core.model.serdes import Serde, quickly, read
from millstream.core.model.timestamps import wall_clock
from millstream.core.state.keys import FOREVER
from millstream.core.topology.nodes import Source


@dataclass(slots=True)
class Column:
    """Keys or values of a batch, as objects, bytes, or both. The missing form is computed on demand and kept.

    Attributes:
        serde: The serde of ``data``.
        data: Bytes, with None for a null; None if there are only objects.
        known: Objects; None if there are only bytes.
    """

    serde: Serde[Any] | None = None
    data: list[bytes | None] | None = None
    known: list[Any] | None = None

    def objects(self) -> list[Any]:
        if self.known is None:
            assert self.serde is not None
            self.known = deserialised(self.serde, self.data or [])
        return self.known

    def serialised(self, serde: Serde[Any]) -> list[bytes | None]:
        """Return the bytes that a serde writes. They are computed once and kept.

        Raises:
            SerdeError: If an object does not fit the serde. A serde of the user may raise other exceptions.
        """
        if self.data is None or (self.serde is not serde and self.serde != serde):
            self.data = serialised(serde, self.objects())
            self.serde = serde
        return self.data

    def without_windows(self, serde: Serde[Any], window_bytes: int) -> list[bytes | None]:
        """Return the bytes of windowed keys without the window, the last ``window_bytes`` bytes."""
        return [None if data is None else data[:-window_bytes] for data in self.serialised(serde)]

    def only(self, kept: Sequence[object]) -> Column:
        """Return the rows with a true mark in ``kept``."""
        data = None if self.data is None else list(compress(self.data, kept))
        return Column(self.serde, data, None if self.known is None else list(compress(self.known, kept)))

    def take(self, rows: Sequence[int]) -> Column:
        data = None if self.data is None else list(map(self.data.__getitem__, rows))
        known = None if self.known is None else list(map(self.known.__getitem__, rows))
        return Column(self.serde, data, known)

    def part(self, start: int, end: int) -> Column:
        data = None if self.data is None else self.data[start:end]
        return Column(self.serde, data, None if self.known is None else self.known[start:end])

    def present(self) -> list[bool]:
        return [item is not None for item in (self.known if self.data is None else self.data) or ()]

    def any_null(self) -> bool:
        if self.data is not None:
            return not all(self.data) and None in self.data
        return type(None) in set(map(type, self.known or ()))


@dataclass(slots=True)
class Columns:
    """A batch of records, or of changes of a table whose old values are not needed.

    Attributes:
        timestamps: Milliseconds since the epoch.
        headers: None if no record has headers.
        positions: The position of each record in the pieces that the task took, to identify a record that fails.
    """

    keys: Column
    values: Column
    timestamps: list[int]
    headers: list[Headers] | None
    positions: Sequence[int]

    def with_values(self, values: list[Any], timestamps: list[int] | None = None) -> Columns:
        stamps = self.timestamps if timestamps is None else timestamps
        return Columns(self.keys, Column(known=values), stamps, self.headers, self.positions)

    def with_keys(self, keys: list[Any] | Column) -> Columns:
        column = keys if isinstance(keys, Column) else Column(known=keys)
        return Columns(column, self.values, self.timestamps, self.headers, self.positions)

    def only(self, kept: Sequence[object]) -> Columns:
        return Columns(
            self.keys.only(kept),
            self.values.only(kept),
            list(compress(self.timestamps, kept)),
            None if self.headers is None else list(compress(self.headers, kept)),
            list(compress(self.positions, kept)),
        )

    def take(self, numbers: Sequence[int]) -> Columns:
        """Return the records at the given indices; an index may occur more than once."""
        return Columns(
            self.keys.take(numbers),
            self.values.take(numbers),
            list(map(self.timestamps.__getitem__, numbers)),
            None if self.headers is None else list(map(self.headers.__getitem__, numbers)),
            list(map(self.positions.__getitem__, numbers)),
        )

    def part(self, start: int, end: int) -> Columns:
        return Columns(
            self.keys.part(start, end),
            self.values.part(start, end),
            self.timestamps[start:end],
            None if self.headers is None else self.headers[start:end],
            self.positions[start:end],
        )


ColumnsCall = Callable[[Columns], None]


def serialised(serde: Serde[Any], objects: list[Any]) -> list[bytes | None]:
    return _converted(serde.serialize, objects)


def deserialised(serde: Serde[Any], data: list[bytes | None]) -> list[Any]:
    return _converted(serde.deserialize, data)


def _converted(convert: Callable[[Any], Any], items: list[Any]) -> list[Any]:
    quick = quickly(convert, items)
    return [None if item is None else convert(item) for item in items] if quick is None else quick


def _checked(serde: Serde[Any], data: list[bytes | None]) -> list[Any]:
    """Return keys or values in the form that a columnar source keeps: serialised if the serde is verbatim, else as objects.

    Raises:
        Exception: If the bytes of a key or value do not fit the serde.
    """
    if serde.verbatim is None:
        return deserialised(serde, data)
    serde.verbatim([item for item in data if item is not None] if not all(data) else data)  # type: ignore[arg-type]
    return data


class Reading:
    """Deserialises the records of a task. Owned by the task.

    Args:
        columnar: Names of the sources whose records are processed in columns.
    """

    def __init__(self, sources: Iterable[Source], columnar: Collection[str], runtime: Runtime) -> None:
        self._columnar, self._runtime = columnar, runtime
        self._readers = {
            source.name: [
                partial(_checked if source.name in columnar else deserialised, serde)
                for serde in (source.key, source.value)
            ]
            for source in sources
        }

    def chunk(self, source: Source, queue: RecordQueue, records: Records) -> Chunk:
        """Deserialise records of a source for a queue. The error policies handle records that fail."""
        to_keys, to_values = self._readers[source.name]
        one_by_one = source.timestamp is not None or source.key.contextual or source.value.contextual
        if not one_by_one and min(records.timestamps, default=0) >= 0:
            with suppress(Exception):  # then deserialise one at a time, to find the bad records
                keys, values = to_keys(records.keys), to_values(records.values)
                return Chunk(records, None, keys, values, records.timestamps, records.headers)
        return self._one_by_one(source, queue, records)

    def _one_by_one(self, source: Source, queue: RecordQueue, records: Records) -> Chunk:
        """Deserialise records one at a time, because some may be bad or a timestamp extractor needs the partition time."""
        columnar = source.name in self._columnar
        raw_key, raw_value = (columnar and serde.verbatim is not None for serde in (source.key, source.value))
        rows: list[int] = []
        good = Chunk(records, rows, [], [], [], None if records.headers is None else [])
        partition_time = queue.newest_timestamp()
        for row in range(len(records)):
            record = self._deserialized_one(source, queue.partition, records, row, partition_time)
            if record is None:
                continue
            partition_time = max(partition_time, record.timestamp)
            rows.append(row)
            good.keys.append(records.keys[row] if raw_key else record.key)
            good.values.append(records.values[row] if raw_value else record.value)
            good.timestamps.append(record.timestamp)
            if good.headers is not None:
                good.headers.append(record.headers)
        return good

    def _deserialized_one(
        self, source: Source, partition: TopicPartition, records: Records, row: int, partition_time: int
    ) -> ConsumerRecord | None:
        key, value, timestamp = records.keys[row], records.values[row], records.timestamps[row]
        headers = records.headers[row] if records.headers is not None else ()
        raw = (partition, records.offsets[row], key, value, timestamp, headers)
        try:
            record = ConsumerRecord(
                *partition,
                records.offsets[row],
                timestamp,
                read(source.key, key, partition.topic, "key", headers),
                read(source.value, value, partition.topic, "value", headers),
                headers,
            )
            if source.timestamp is None:
                if timestamp < 0:
                    raise DeserializationError(
                        "the record has no timestamp; set timestamp=... of the source to extract one"
                    )
                return record
            by_clock = source.timestamp is wall_clock
            extracted = self._runtime.now_ms if by_clock else source.timestamp(record, partition_time)
            if not isinstance(extracted, int) or extracted > FOREVER:
                raise DeserializationError(
                    f"the timestamp extractor returned {extracted!r} instead of an int of ms below 2**63"
                )
            record = record._replace(timestamp=extracted)
        except Exception as error:
            cause = MillstreamError(error.message) if isinstance(error, DeserializationError) else error
            again = Attempt(self._deserialized_one, (source, partition, records, row, partition_time))
            failure = Failure("deserialize", source.name, cause, raw)
            retried: ConsumerRecord | None = self._runtime.handle_failure(failure, again)
            return retried
        if record.timestamp < 0:
            self._runtime.drop("negative timestamp")
            return None
        return record
