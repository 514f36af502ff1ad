"""Joins of a stream with a table or a global table, and of two tables by their key."""

from __future__ import annotations

from collections.abc import Callable
from itertools import compress
from typing import Any, Final

from millstream.core.engine.columns import FEW, Columns, Form, call_per_row, without_nulls
from millstream.core.engine.compile import Call, Compiled, columns_of, compile_node, form_downstream, row_of
from millstream.core.engine.operators.lookups import lookup
from millstream.core.engine.operators.stateless import applying, forward_values
from millstream.core.model.record import Headers
from millstream.core.state.keys import FOREVER
from millstream.core.topology import join_nodes as j
from millstream.core.topology import nodes as n
from millstream.core.topology.global_nodes import GlobalJoin
from millstream.core.topology.stores import KeyValueSpec

_NO_ROW = (None, -1)
_INCOMPLETE: Final = "null key or value in a join"


@compile_node.register
def _compile_stream_table_join(node: j.StreamTableJoin, compiled: Compiled) -> Call:
    runtime, name, child = compiled.runtime, node.name, compiled.children(node)
    row_of, left = lookup(node.other, compiled), node.kind == "left"
    joiner = j.joiner_with_key(node.joiner, with_key=node.with_key)

    def stream_table_join(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if value is None or (key is None and not left):
            return runtime.drop(_INCOMPLETE)
        try:
            row = None if key is None else row_of(key, timestamp)
            if row is None and not left:
                return None
            result = joiner(key, value, None if row is None else row[0])
        except Exception as error:
            return runtime.on_error("process", name, error)
        return child(key, result, timestamp, headers)

    return stream_table_join


class _Rows(dict[Any, Any]):
    """The rows of a table while it does not change, by serialised key. An immutable row is read when its key is looked up for the first time.

    Other rows are read in each lookup, because a joiner may change its row.

    Attributes:
        lacking: True if a key that was looked up has no row.
    """

    __slots__ = ("_fetch", "_immutable", "lacking")

    def __init__(self, fetch: Callable[[bytes], Any], *, immutable: bool) -> None:
        self._fetch, self._immutable = fetch, immutable
        self.lacking = False

    def __missing__(self, key: bytes | None) -> Any:
        entry = None if key is None else self._fetch(key)
        if entry is None:
            self.lacking = True
        row = None if entry is None else entry[0]
        if self._immutable:
            self[key] = row
        return row


@columns_of.register
def _stream_table_join_columns(node: j.StreamTableJoin, compiled: Compiled) -> Form | None:
    table, form = compiled.node(node.other), form_downstream(node, compiled)
    if form is None or form.calls_functions or not isinstance(table, n.Materialised):
        return None
    if compiled.sources_of(node.name) & compiled.sources_of(
        table.name
    ):  # rows change between the records of a batch
        return None
    spec = table.store
    # A lookup changes an LRU store. In other stores, the row may depend on the time of the record.
    if type(spec) is not KeyValueSpec or spec.ttl_ms is not None:
        return None
    fetch, left, runtime = compiled.runtime.stores[spec.name].fetch, node.kind == "left", compiled.runtime
    row, apply = row_of(node, compiled), applying(node, compiled, form, node.joiner, forward_values)

    def join(columns: Columns) -> None:
        if len(columns.timestamps) < FEW:
            return call_per_row(columns, row, runtime)
        columns = without_nulls(columns, runtime, _INCOMPLETE, keys=not left)
        rows = _Rows(fetch, immutable=spec.value.immutable)
        try:
            others = list(map(rows.__getitem__, columns.keys.serialised(spec.key)))
        except Exception:  # then process record by record, to find the bad ones
            return call_per_row(columns, row, runtime)
        if rows.lacking and not left:
            kept = [other is not None for other in others]
            columns, others = columns.only(kept), list(compress(others, kept))
        joined = columns.values.objects(), others
        return apply(columns, *((columns.keys.objects(), *joined) if node.with_key else joined))

    return Form(join, calls_functions=True)


@compile_node.register
def _compile_global_join(node: GlobalJoin, compiled: Compiled) -> Call:
    runtime, name, child = compiled.runtime, node.name, compiled.children(node)
    fetch, key_bytes = runtime.global_stores[node.store.name].fetch, node.store.key.serialize
    selector, joiner, left = node.selector, node.joiner, node.kind == "left"

    def row_of(row_key: Any) -> Any:
        entry = None if row_key is None else fetch(key_bytes(row_key))
        return None if entry is None else entry[0]

    def global_join(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if value is None:
            return runtime.drop("null value in a join")
        try:
            row_key = selector(key, value)
            if row_key is None and not left:
                return runtime.drop("null key in a join")
            row = row_of(row_key)
            if row is None and not left:
                return None
            joined = joiner(key, value, row)
        except Exception as error:
            return runtime.on_error("process", name, error)
        return child(key, joined, timestamp, headers)

    return global_join


@compile_node.register
def _compile_table_join(node: j.TableJoin, compiled: Compiled) -> Call:
    runtime, name, child = compiled.runtime, node.name, compiled.children(node)
    row_of, result = lookup(node.other, compiled, forwarded=True), _result(node)
    # True if rows of this side have results even without a row of the other side.
    alone = node.kind == "outer" or (node.kind == "left" and node.left)
    needs_old, versioned = compiled.needs_old(node), compiled.versioned(node.parents[0])
    other_table = compiled.node(node.other)
    immutable_rows = isinstance(other_table, n.Materialised) and other_table.store.value.immutable
    row_again = needs_old and not immutable_rows

    def table_join(key: Any, new: Any, old: Any, timestamp: int, headers: Headers) -> None:
        if versioned and not runtime.latest:
            return runtime.drop("late change of a versioned table")
        try:
            row = row_of(key, FOREVER)
            if row is None and (not alone or (new is None and old is None)):
                return None
            other, then = _NO_ROW if row is None else row[:2]
            new = result(key, new, other)
            if row_again and row is not None:  # the joiner may have changed it
                other, _ = row_of(key, FOREVER) or _NO_ROW
            old = result(key, old, other) if needs_old else None
        except Exception as error:
            return runtime.on_error("process", name, error)
        return child(key, new, old, max(timestamp, then), headers)

    return table_join


def _result(node: j.TableJoin) -> Callable[[Any, Any, Any], Any]:
    """Return a function of key, value of this side and value of the other side. It returns None if there is no result."""
    joiner, left = node.joiner, node.left
    # True if a row of the other side has a result even after the value of this side is deleted.
    outlives = node.kind == "outer" or (node.kind == "left" and not left)

    def result(key: Any, this: Any, other: Any) -> Any:
        if this is None and (other is None or not outlives):
            return None
        return joiner(key, this, other) if left else joiner(key, other, this)

    return result
