"""Columns: the columnar form of a node, which processes many records at once.

A *batch of columns* holds one or several runs of records of one source, as parallel lists of keys, values, timestamps and headers. A node
that needs no Python function per record (a count, a sum, a filter by an expression, a sink) is compiled to a function of a batch, in
addition to its function of one record (``millstream.core.engine.compile``). Both forms have the same results and use the same store. The
columnar form has the costs of calls, key conversions and bookkeeping once per batch instead of once per record.

The form is chosen once per source, when the task is created. A source is processed in columns if

* no node of the sub-topology is a processor, which could read stores and stream time between two records;
* the nodes downstream form a chain of nodes with a columnar form. The chain may end before the last node if all nodes after it are
  stateless; these process one record at a time;
* at most one node calls a user's function, because two functions would be called in a different order than record by record. Expressions
  (``ms.col``) do not count as functions.

If a batch fails, it is processed again record by record, so that the error policies handle the bad records as usual. A user's function is
not called again: the records before the failed one are forwarded first, then the failed record is handled, then the rest follow.

Keys and values stay serialised until objects are needed. This requires a serde that writes exactly the bytes that it reads
(``Serde.verbatim``). A count of text keys, for example, never decodes text.

Columns are lists, so the core stays pure. docs/decisions/0037-columnar-processing-uses-lists.md explains why they are not Arrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import compress, repeat
from operator import and_
from typing import Any, Final, NamedTuple

from millstream.core.engine.records.queue import Chunk
from millstream.core.engine.runtime import Piece, Runtime
from millstream.core.model.record import Headers
from millstream.core.model.serdes import Serde, quickly

FEW: Final = 16
"""Fewer records are processed one by one in less time than in columns. Inputs that alternate in time have such runs."""


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
        weights: The number of records that each record stands for; None if each stands for itself.
    """

    keys: Column
    values: Column
    timestamps: list[int]
    headers: list[Headers] | None
    positions: Sequence[int]
    weights: list[int] | None = None

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
            None if self.weights is None else list(compress(self.weights, kept)),
        )

    def take(self, numbers: Sequence[int]) -> Columns:
        """Return the records at the given indices; an index may occur more than once."""
        return Columns(
            self.keys.take(numbers),
            self.values.take(numbers),
            list(map(self.timestamps.__getitem__, numbers)),
            None if self.headers is None else list(map(self.headers.__getitem__, numbers)),
            list(map(self.positions.__getitem__, numbers)),
            None if self.weights is None else list(map(self.weights.__getitem__, numbers)),
        )

    def part(self, start: int, end: int) -> Columns:
        return Columns(
            self.keys.part(start, end),
            self.values.part(start, end),
            self.timestamps[start:end],
            None if self.headers is None else self.headers[start:end],
            self.positions[start:end],
            None if self.weights is None else self.weights[start:end],
        )


ColumnsCall = Callable[[Columns], None]


def serialised(serde: Serde[Any], objects: list[Any]) -> list[bytes | None]:
    return _converted(serde.serialize, objects)


def deserialised(serde: Serde[Any], data: list[bytes | None]) -> list[Any]:
    return _converted(serde.deserialize, data)


def checked(serde: Serde[Any], data: list[bytes | None]) -> list[Any]:
    """Return keys or values in the form that a columnar source keeps: serialised if the serde is verbatim, else as objects.

    Raises:
        Exception: If the bytes of a key or value do not fit the serde.
    """
    if serde.verbatim is None:
        return deserialised(serde, data)
    # mypy cannot see that a list of true items has no None; it is not copied, because most columns have none.
    serde.verbatim([item for item in data if item is not None] if not all(data) else data)  # type: ignore[arg-type]
    return data


def _converted(convert: Callable[[Any], Any], items: list[Any]) -> list[Any]:
    quick = quickly(convert, items)
    return [None if item is None else convert(item) for item in items] if quick is None else quick


class Form(NamedTuple):
    """The columnar form of a node.

    Attributes:
        calls_functions: True if the node or a node downstream calls functions of the user.
        by_rows: True if the form only passes the records on one at a time.
    """

    call: ColumnsCall
    calls_functions: bool = False
    by_rows: bool = False


class Entry(NamedTuple):
    """The columnar entry of a source: the function that takes its records, and its serdes."""

    call: ColumnsCall
    key: Serde[Any]
    value: Serde[Any]

    def columns(self, pieces: Sequence[Piece]) -> Columns:
        """Join pieces that were taken from queues to one batch."""
        timestamps = _joined_column(pieces, lambda chunk: chunk.timestamps)
        return Columns(
            _column(self.key, _joined_column(pieces, lambda chunk: chunk.keys)),
            _column(self.value, _joined_column(pieces, lambda chunk: chunk.values)),
            timestamps,
            _joined_headers(pieces),
            range(len(timestamps)),
            _joined_weights(pieces),
        )


def by_rows(call: Callable[..., None], runtime: Runtime) -> Form:
    return Form(lambda columns: call_per_row(columns, call, runtime), calls_functions=True, by_rows=True)


def call_per_row(columns: Columns, call: Callable[..., None], runtime: Runtime) -> None:
    locate = runtime.locate
    headers: Iterable[Headers] = repeat(()) if columns.headers is None else columns.headers
    keys, values = columns.keys.objects(), columns.values.objects()
    for position, key, value, timestamp, header in zip(
        columns.positions, keys, values, columns.timestamps, headers
    ):
        locate(position)
        call(key, value, timestamp, header)


def without_nulls(
    columns: Columns, runtime: Runtime, reason: str, *, keys: bool = True, values: bool = True
) -> Columns:
    """Drop the records with a null key or a null value, and count them with a reason."""
    checked = ((columns.keys, keys), (columns.values, values))
    present = [column.present() for column, matters in checked if matters and column.any_null()]
    if not present:
        return columns
    kept = present[0] if len(present) == 1 else [*map(and_, *present)]
    runtime.drop(reason, kept.count(False))
    return columns.only(kept)


def _column(serde: Serde[Any], kept: list[Any]) -> Column:
    return Column(known=kept) if serde.verbatim is None else Column(serde, kept)


def _joined_column(pieces: Sequence[Piece], column: Callable[[Chunk], list[Any]]) -> list[Any]:
    """Join the parts of a column. A single whole part is not copied, because columns are never modified."""
    whole = column(pieces[0].chunk)
    if len(pieces) == 1 and pieces[0].end - pieces[0].start == len(whole):
        return whole
    joined: list[Any] = []
    for piece in pieces:
        joined.extend(column(piece.chunk)[piece.start : piece.end])
    return joined


def _joined_headers(pieces: Sequence[Piece]) -> list[Headers] | None:
    if all(piece.chunk.headers is None for piece in pieces):
        return None
    return _joined_column(pieces, lambda chunk: chunk.headers or [()] * len(chunk.timestamps))


def _joined_weights(pieces: Sequence[Piece]) -> list[int] | None:
    if all(piece.chunk.raw.weights is None for piece in pieces):
        return None
    return _joined_column(pieces, lambda chunk: chunk.weights() or [1] * len(chunk.timestamps))
