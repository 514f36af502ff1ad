"""Columns: the second compiled form of a node, which takes many records at once.

A *batch of columns* is a run of records, or several runs of one source, as parallel lists. A node whose work needs no Python
function per record (a count, a sum, a filter by an expression, a sink) is compiled to a function of such a batch beside its
function of one record (``millstream.core.engine.compile``). It gives the same results from the same store; only what lies
between the records is paid once per batch in place of once per record: calls, conversions of keys, bookkeeping.

Which form runs is decided once per source, when the task is made. Its records are taken in columns if

* no node of the sub-topology is a processor: one could look at stores and at stream time between two records;
* the nodes behind the source form a chain of nodes with a columnar form, up to its end or up to where only nodes without
  state follow, which then get their records one by one;
* at most one of them calls a function of the user: two would be called in another order than record by record. Expressions
  (``ms.col``) are no functions; there may be any number.

Whatever fails in columns is done again record by record, which finds the bad records and treats them as always. A function of
the user is not called again: the records before the bad one go down first, then it is treated, then the others follow.

Keys and values stay serialised as long as nobody needs objects. That is possible where the serde says that it writes exactly
what it read (``Serde.verbatim``), so that a count by text never makes text.

The core stays pure: columns are lists. Why not Arrow, see docs/decisions/0037-columnar-processing-uses-lists.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import singledispatch
from itertools import repeat
from typing import Any, NamedTuple

from millstream.core.engine.batch import Column, Columns, ColumnsCall
from millstream.core.engine.compile import Call, Compiled
from millstream.core.engine.failures import Attempt
from millstream.core.engine.records.queue import Chunk
from millstream.core.engine.runtime import Piece, Runtime
from millstream.core.model.expressions import Expression
from millstream.core.model.record import Headers
from millstream.core.model.serdes import Serde
from millstream.core.taps.samples import MAX_RECORDS, TapPoint
from millstream.core.topology import nodes as n
from millstream.core.topology.nodes import Late
from millstream.core.topology.plan import SubTopology


class Form(NamedTuple):
    """What a node is compiled to besides its function of one record.

    Attributes:
        calls_functions: Whether it, or what is behind it, calls functions of the user.
        by_rows: Whether it only passes on record by record.
    """

    call: ColumnsCall
    calls_functions: bool = False
    by_rows: bool = False


class Entry(NamedTuple):
    """How the records of a source are read and taken in columns: the function that takes them, and their serdes."""

    call: ColumnsCall
    key: Serde[Any]
    value: Serde[Any]

    def columns(self, pieces: Sequence[Piece]) -> Columns:
        """Join what was taken from queues to one batch."""
        timestamps = _joined(pieces, lambda chunk: chunk.timestamps)
        return Columns(
            _column(self.key, _joined(pieces, lambda chunk: chunk.keys)),
            _column(self.value, _joined(pieces, lambda chunk: chunk.values)),
            timestamps,
            _joined_headers(pieces),
            range(len(timestamps)),
        )


def entries(sub: SubTopology, compiled: Compiled) -> dict[str, Entry]:
    """Return, by source, how its records are taken in columns; sources that are taken record by record are missing."""
    if compiled.contexts:
        return {}
    forms = {source: _only_child(source, compiled) for source in sub.sources if source.timestamp is None}
    return {
        source.name: Entry(_tapped(source, compiled, form.call), source.key, source.value)
        for source, form in forms.items()
        if form is not None and not form.by_rows
    }


def behind(node: n.Node, compiled: Compiled) -> Form | None:
    """Return the form of all that is behind a node but its late records, None if there is none: that of its cache, if it has one.

    There is none behind a table if its old values are needed. Nothing behind a cache is called before the batch is over, so no
    functions there take turns with those in front.
    """
    if node.table and compiled.needs_old(node):
        return None
    form = _only_child(node, compiled)
    if form is None and all(_stateless(child, compiled) for child in _followers(node, compiled)):
        form = by_rows(_as_stream(node, compiled.fan_out(node)), compiled.runtime)
    cache = compiled.caches.of(node)
    if form is None or cache is None:
        return form
    cache.columns = form.call
    return Form(cache.put_columns)


def of_function(
    node: n.Node,
    compiled: Compiled,
    function: Callable[..., Any],
    then: Callable[[ColumnsCall, Columns, list[Any]], None],
    *,
    with_key: bool = True,
) -> Form | None:
    """Make the columnar form of a node that calls a function of the user for each record.

    Args:
        then: Hands the records with their results to what is behind the node.
        with_key: Whether the function takes the key; else it takes the value alone.
    """
    form, row, runtime = behind(node, compiled), row_of(node, compiled), compiled.runtime
    if form is None:
        return None
    if form.calls_functions:
        return by_rows(row, runtime) if _stateless(node, compiled) else None
    apply = applying(node, compiled, form, function, then)

    def call(columns: Columns) -> None:
        values = columns.values.objects()
        apply(columns, zip(columns.keys.objects(), values) if with_key else zip(values))

    return Form(call, calls_functions=True)


def applying(
    node: n.Node,
    compiled: Compiled,
    form: Form,
    function: Callable[..., Any],
    then: Callable[[ColumnsCall, Columns, list[Any]], None],
) -> Callable[[Columns, Iterator[tuple[Any, ...]]], None]:
    """Return what calls a function of the user for each record of a batch, and treats the records that fail.

    Args:
        form: What is behind the node; it calls no functions.
        then: Hands the records with their results on to what is behind the node.
    """
    child, row, runtime = form.call, row_of(node, compiled), compiled.runtime

    def apply(columns: Columns, rest: Iterator[tuple[Any, ...]]) -> None:
        start, size = 0, len(columns.timestamps)
        while True:
            done: list[Any] = []
            failed: Exception | None = None
            try:
                for arguments in rest:
                    done.append(function(*arguments))
            except Exception as error:
                failed = error
            end = start + len(done)
            if done:
                then(child, columns if len(done) == size else columns.part(start, end), done)
            if failed is None:
                return
            runtime.locate(columns.positions[end])
            runtime.on_error("process", node.name, failed, again=Attempt(row, _record(columns, end)))
            start = end + 1

    return apply


def _record(columns: Columns, number: int) -> tuple[Any, Any, int, Headers]:
    headers = () if columns.headers is None else columns.headers[number]
    return (
        columns.keys.objects()[number],
        columns.values.objects()[number],
        columns.timestamps[number],
        headers,
    )


def of_expression(
    node: n.Node,
    compiled: Compiled,
    expression: Expression,
    then: Callable[[ColumnsCall, Columns, list[Any]], None],
) -> Form | None:
    """Make the columnar form of a node that computes an expression of the value.

    Args:
        then: Hands the records with their results to what is behind the node.
    """
    form, row, runtime = behind(node, compiled), row_of(node, compiled), compiled.runtime
    if form is None:
        return None
    child = form.call

    def call(columns: Columns) -> None:
        try:
            results = list(expression.over(columns.values.objects()))
        except Exception:  # then record by record, which finds the bad ones
            return each(columns, row, runtime)
        return then(child, columns, results)

    return Form(call, form.calls_functions)


@singledispatch
def columns_of(node: n.Node, compiled: Compiled) -> Form | None:
    """Make the columnar form of a node; None for the many that have none."""
    return None


def row_of(node: n.Node, compiled: Compiled) -> Call:
    """Return the function of one record of a node; for a table, one that passes no old value."""
    return _as_stream(node, compiled.call(node))


def by_rows(call: Call, runtime: Runtime) -> Form:
    return Form(lambda columns: each(columns, call, runtime), calls_functions=True, by_rows=True)


def each(columns: Columns, call: Call, runtime: Runtime) -> None:
    """Pass a batch on record by record."""
    locate = runtime.locate
    headers: Iterable[Headers] = repeat(()) if columns.headers is None else columns.headers
    keys, values = columns.keys.objects(), columns.values.objects()
    for position, key, value, timestamp, header in zip(
        columns.positions, keys, values, columns.timestamps, headers
    ):
        locate(position)
        call(key, value, timestamp, header)


def _as_stream(node: n.Node, call: Call) -> Call:
    """Return a function of changes, if the node has them, as one of records, without old values."""
    if not node.table:
        return call
    return lambda key, value, timestamp, headers: call(key, value, None, timestamp, headers)


def _followers(node: n.Node, compiled: Compiled) -> list[n.Node]:
    """Return the nodes behind a node without the stream of its late records, which the node serves itself."""
    return [child for child in compiled.children_of(node) if not isinstance(child, Late)]


def _only_child(node: n.Node, compiled: Compiled) -> Form | None:
    children = _followers(node, compiled)
    if not children:
        return Form(_nothing)
    form = columns_of(children[0], compiled) if len(children) == 1 else None
    return None if form is None else form._replace(call=_tapped(children[0], compiled, form.call))


def _tapped(node: n.Node, compiled: Compiled, call: ColumnsCall) -> ColumnsCall:
    """Return the columnar form of a node; if the node is tapped, with a function in front of it that notes the records."""
    runtime, point = compiled.runtime, compiled.runtime.taps.get(node.name)
    if point is None:
        return call

    def tapped(columns: Columns) -> None:
        with runtime.elsewhere():
            _note(columns, point, runtime)
        call(columns)

    return tapped


def _note(columns: Columns, point: TapPoint, runtime: Runtime) -> None:
    """Sample the first records of a batch, and count the others."""
    (sample, note, skip), metadata = point, runtime.metadata
    count = min(len(columns.timestamps), MAX_RECORDS)
    skip(len(columns.timestamps) - count)
    try:
        each(columns.part(0, count), lambda *args: note(sample(args, metadata)), runtime)
    except Exception:  # a serde cannot read what need not be read otherwise
        skip(count)


def _stateless(node: n.Node, compiled: Compiled) -> bool:
    return node.pure and all(_stateless(child, compiled) for child in compiled.children_of(node))


def _nothing(columns: Columns) -> None:
    """Discard the arguments: no node follows."""


def _column(serde: Serde[Any], kept: list[Any]) -> Column:
    return Column(known=kept) if serde.verbatim is None else Column(serde, kept)


def _joined(pieces: Sequence[Piece], column: Callable[[Chunk], list[Any]]) -> list[Any]:
    """Join the parts of a column. A part that was taken as a whole is not copied: nobody changes columns."""
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
    return _joined(pieces, lambda chunk: chunk.headers or [()] * len(chunk.timestamps))
