"""Columns: the columnar form of a node, which processes many records at once.

A *batch of columns* holds one or several runs of records of one source, as parallel lists. A node that needs no Python function per
record (a count, a sum, a filter by an expression, a sink) is compiled to a function of a batch, in addition to its function of one record
(``millstream.core.engine.compile``). Both forms have the same results and use the same store. The columnar form has the costs of calls,
key conversions and bookkeeping once per batch instead of once per record.

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
from functools import singledispatch
from itertools import repeat
from operator import and_
from typing import Any, Final, NamedTuple

from millstream.core.engine.batch import Column, Columns, ColumnsCall
from millstream.core.engine.compile import Call, Compiled, discard
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

FEW: Final = 16
"""Fewer records are processed one by one in less time than in columns. Inputs that alternate in time have such runs."""


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
        )


def entries(sub: SubTopology, compiled: Compiled) -> dict[str, Entry]:
    """Return the columnar entries by source. Sources that are processed record by record are missing."""
    if compiled.contexts:
        return {}
    forms = {source: _only_child(source, compiled) for source in sub.sources if source.timestamp is None}
    return {
        source.name: Entry(_tapped(source, compiled, form.call), source.key, source.value)
        for source, form in forms.items()
        if form is not None and not form.by_rows
    }


def form_downstream(node: n.Node, compiled: Compiled) -> Form | None:
    """Return the columnar form of all nodes downstream of a node except the stream of its late records; None if there is none.

    If the node has a cache, this is the form of the cache. It calls no functions: nodes downstream of a cache run after the batch, so
    their functions do not alternate with functions upstream. There is no form downstream of a table whose old values are needed.
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
    """Create the columnar form of a node that calls a user's function for each record.

    Args:
        then: Forwards the records with their results to the nodes downstream.
        with_key: True if the function takes key and value; False if it takes the value only.
    """
    form, row, runtime = form_downstream(node, compiled), row_of(node, compiled), compiled.runtime
    if form is None:
        return None
    if form.calls_functions:
        return by_rows(row, runtime) if _stateless(node, compiled) else None
    apply = applying(node, compiled, form, function, then)

    def call(columns: Columns) -> None:
        values = columns.values.objects()
        apply(columns, *((columns.keys.objects(), values) if with_key else (values,)))

    return Form(call, calls_functions=True)


def applying(
    node: n.Node,
    compiled: Compiled,
    form: Form,
    function: Callable[..., Any],
    then: Callable[[ColumnsCall, Columns, list[Any]], None],
) -> Callable[..., None]:
    """Return a function of a batch and its columns of arguments: it calls a user's function for each record and handles the records that fail.

    Args:
        form: The form of the nodes downstream; it calls no functions.
        then: Forwards the records with their results to the nodes downstream.
    """
    child, row, runtime = form.call, row_of(node, compiled), compiled.runtime

    def apply(columns: Columns, *arguments: list[Any]) -> None:
        start, size = 0, len(columns.timestamps)
        rest, call_each = zip(*arguments), _LOOPS[len(arguments)]
        while True:
            done: list[Any] = []
            failed: Exception | None = None
            try:
                call_each(function, rest, done)
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


def _call_with_one(function: Callable[..., Any], rest: Iterable[Any], done: list[Any]) -> None:
    for (first,) in rest:
        done.append(function(first))


def _call_with_two(function: Callable[..., Any], rest: Iterable[Any], done: list[Any]) -> None:
    for first, second in rest:
        done.append(function(first, second))


def _call_with_three(function: Callable[..., Any], rest: Iterable[Any], done: list[Any]) -> None:
    for first, second, third in rest:
        done.append(function(first, second, third))


_LOOPS: Final = {1: _call_with_one, 2: _call_with_two, 3: _call_with_three}
"""Loops over calls of a function, by its number of arguments. A call with ``*arguments`` takes longer, and ``map`` would take a
StopIteration of the function for the end of the records. If a call fails, the results before it are in ``done``."""


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
    """Create the columnar form of a node that computes an expression of the value."""
    form, row, runtime = form_downstream(node, compiled), row_of(node, compiled), compiled.runtime
    if form is None:
        return None
    child = form.call

    def call(columns: Columns) -> None:
        try:
            results = list(expression.over(columns.values.objects()))
        except Exception:  # then process record by record, to find the bad ones
            return call_per_row(columns, row, runtime)
        return then(child, columns, results)

    return Form(call, form.calls_functions)


@singledispatch
def columns_of(node: n.Node, compiled: Compiled) -> Form | None:
    return None


def row_of(node: n.Node, compiled: Compiled) -> Call:
    """Return a node's function of one record. For a table, the returned function passes None as old value."""
    return _as_stream(node, compiled.call(node))


def by_rows(call: Call, runtime: Runtime) -> Form:
    return Form(lambda columns: call_per_row(columns, call, runtime), calls_functions=True, by_rows=True)


def call_per_row(columns: Columns, call: Call, runtime: Runtime) -> None:
    locate = runtime.locate
    headers: Iterable[Headers] = repeat(()) if columns.headers is None else columns.headers
    keys, values = columns.keys.objects(), columns.values.objects()
    for position, key, value, timestamp, header in zip(
        columns.positions, keys, values, columns.timestamps, headers
    ):
        locate(position)
        call(key, value, timestamp, header)


def _as_stream(node: n.Node, call: Call) -> Call:
    """Adapt a table's function of changes to a function of records; it passes None as old value."""
    if not node.table:
        return call
    return lambda key, value, timestamp, headers: call(key, value, None, timestamp, headers)


def _followers(node: n.Node, compiled: Compiled) -> list[n.Node]:
    """Return the children of a node except the stream of its late records, to which the node forwards separately."""
    return [child for child in compiled.children_of(node) if not isinstance(child, Late)]


def _only_child(node: n.Node, compiled: Compiled) -> Form | None:
    children = _followers(node, compiled)
    if not children:
        return Form(discard)
    form = columns_of(children[0], compiled) if len(children) == 1 else None
    return None if form is None else form._replace(call=_tapped(children[0], compiled, form.call))


def _tapped(node: n.Node, compiled: Compiled, call: ColumnsCall) -> ColumnsCall:
    """Wrap the columnar function of a node so that its records are sampled, if the node is tapped."""
    runtime, point = compiled.runtime, compiled.runtime.taps.get(node.name)
    if point is None:
        return call

    def tapped(columns: Columns) -> None:
        with runtime.elsewhere():
            _note(columns, point, runtime)
        call(columns)

    return tapped


def _note(columns: Columns, point: TapPoint, runtime: Runtime) -> None:
    (sample, note, skip), metadata = point, runtime.metadata
    count = min(len(columns.timestamps), MAX_RECORDS)
    skip(len(columns.timestamps) - count)
    try:
        call_per_row(columns.part(0, count), lambda *args: note(sample(args, metadata)), runtime)
    except Exception:  # a serde cannot read data that only the tap needs to read
        skip(count)


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


def _stateless(node: n.Node, compiled: Compiled) -> bool:
    return node.pure and all(_stateless(child, compiled) for child in compiled.children_of(node))


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
