"""Batches of records as columns: parallel lists of keys, values, timestamps and headers.

``millstream.core.engine.columns`` describes which nodes take them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress
from typing import Any

from millstream.core.model.record import Headers
from millstream.core.model.serdes import Serde, quickly
from millstream.core.topology import nodes as n


@dataclass(slots=True)
class Column:
    """Keys or values of a batch: objects, bytes, or both; what is missing is made when it is asked for, and kept.

    Attributes:
        data: Bytes, None for a null; None if there are objects only.
        known: Objects, None if there are bytes only.
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
        """Return the bytes that a serde writes; made once, and kept.

        Raises:
            SerdeError: If an object does not fit, or whatever a serde of the user raises.
        """
        if self.data is None or (self.serde is not serde and self.serde != serde):
            self.data = serialised(serde, self.objects())
            self.serde = serde
        return self.data

    def without_windows(self, serde: Serde[Any], window_bytes: int) -> list[bytes | None]:
        """Return the bytes that a serde of keys in windows writes, without those of the windows, which come last."""
        return [None if data is None else data[:-window_bytes] for data in self.serialised(serde)]

    def only(self, kept: Sequence[object]) -> Column:
        """Return the rows whose mark is true."""
        data = None if self.data is None else list(compress(self.data, kept))
        return Column(self.serde, data, None if self.known is None else list(compress(self.known, kept)))

    def take(self, rows: Sequence[int]) -> Column:
        """Return the rows at the given indices."""
        data = None if self.data is None else list(map(self.data.__getitem__, rows))
        known = None if self.known is None else list(map(self.known.__getitem__, rows))
        return Column(self.serde, data, known)

    def part(self, start: int, end: int) -> Column:
        """Return the rows from ``start`` up to, but not including, ``end``."""
        data = None if self.data is None else self.data[start:end]
        return Column(self.serde, data, None if self.known is None else self.known[start:end])

    def present(self) -> list[bool]:
        """Return for each row whether it is not null."""
        return [item is not None for item in (self.known if self.data is None else self.data) or ()]

    def any_null(self) -> bool:
        """Return whether any row is null."""
        if self.data is not None:
            return not all(self.data) and None in self.data
        return type(None) in set(map(type, self.known or ()))


@dataclass(slots=True)
class Columns:
    """A batch of records, or of changes of a table whose old values are not needed.

    Attributes:
        keys: Per record.
        values: Per record.
        timestamps: Milliseconds since the epoch.
        headers: Per record, None if no record has any.
        positions: Per record its position in what the task took, so that errors can name a record that fails.
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
        """Return the records whose mark is true."""
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
        """Return the records from ``start`` up to, but not including, ``end``."""
        return Columns(
            self.keys.part(start, end),
            self.values.part(start, end),
            self.timestamps[start:end],
            None if self.headers is None else self.headers[start:end],
            self.positions[start:end],
        )


ColumnsCall = Callable[[Columns], None]


def serialised(serde: Serde[Any], objects: list[Any]) -> list[bytes | None]:
    quick: list[bytes | None] | None = quickly(serde, objects)  # type: ignore[assignment]
    if quick is not None:
        return quick
    write = serde.serialize
    return [None if item is None else write(item) for item in objects]


def deserialised(serde: Serde[Any], data: Iterable[bytes | None]) -> list[Any]:
    read = serde.deserialize
    return [None if item is None else read(item) for item in data]


def checked(serde: Serde[Any], data: list[bytes | None]) -> list[Any]:
    """Return keys or values as a source keeps them that is taken in columns: as they are, if the serde lets us.

    Raises:
        Exception: If the bytes of one do not fit the serde.
    """
    if serde.verbatim is None:
        return deserialised(serde, data)
    serde.verbatim([item for item in data if item is not None] if not all(data) else data)  # type: ignore[arg-type]
    return data


def kept_serialised(source: n.Source, *, columnar: bool) -> tuple[bool, bool]:
    """Return whether the keys and the values of a source stay serialised."""
    return columnar and source.key.verbatim is not None, columnar and source.value.verbatim is not None


Reader = Callable[[list[bytes | None]], list[Any]]


def readers(source: n.Source, *, columnar: bool) -> tuple[Reader, Reader]:
    read = checked if columnar else deserialised
    return partial(read, source.key), partial(read, source.value)
