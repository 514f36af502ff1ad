"""Table operators without state, or with only the rows of the table as state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millstream.core.engine.columns import Columns, Form, call_per_row
from millstream.core.engine.compile import Call, Compiled, columns_of, compile_node, form_downstream, row_of
from millstream.core.engine.operators.results import pair_of, truth_of
from millstream.core.engine.operators.stateless import forward_values, of_expression, of_function
from millstream.core.model.expressions import Expression
from millstream.core.model.record import Change, Headers
from millstream.core.state.keys import FOREVER
from millstream.core.topology import nodes as n
from millstream.core.topology.stores import LATEST, VersionedSpec


@compile_node.register
def _compile_table_source(node: n.TableSource, compiled: Compiled) -> Call:
    if isinstance(node.store, VersionedSpec):
        return _versioned_source(node, compiled)
    runtime, name, child = compiled.runtime, node.name, compiled.children(node)
    store = runtime.stores[node.store.name]
    fetch, write, key_bytes = store.fetch, store.write, node.store.key.serialize

    def table_source(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if key is None:
            return runtime.drop("null key in a table")
        try:
            stored_key = key_bytes(key)
            entry = fetch(stored_key)
            write(stored_key, None if value is None else (value, timestamp))
        except Exception as error:
            return runtime.on_error("process", name, error)
        return child(key, value, None if entry is None else entry[0], timestamp, headers)

    return table_source


def _versioned_source(node: n.TableSource, compiled: Compiled) -> Call:
    """Compile the source of a versioned table. It sets ``runtime.latest`` per change: False for a change of an older version."""
    runtime, name, child = compiled.runtime, node.name, compiled.children(node)
    store = runtime.stores[node.store.name]
    fetch, insert, key_bytes = store.fetch, store.insert, node.store.key.serialize
    compiled.keep_time(node, lambda times: store.observe(times.keyed))

    def versioned_source(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if key is None:
            return runtime.drop("null key in a table")
        try:
            stored_key = key_bytes(key)
            before = fetch(stored_key, FOREVER)
            valid_to = insert(stored_key, value, timestamp)
        except Exception as error:
            return runtime.on_error("process", name, error)
        if valid_to is None:
            return None
        outer, runtime.latest = runtime.latest, valid_to == LATEST
        child(key, value, None if before is None else before.value, timestamp, headers)
        runtime.latest = outer
        return None

    return versioned_source


@compile_node.register
def _compile_table_filter(node: n.TableFilter, compiled: Compiled) -> Call:
    """Compile a filter, which forwards no deletion of a row that it has not forwarded.

    Behind a versioned table, it forwards every change, as in Kafka Streams: the row may have had an earlier version.
    """
    child, predicate, keep = compiled.children(node), node.predicate, node.keep
    on_error, name, versioned = compiled.runtime.on_error, node.name, compiled.versioned(node.parents[0])

    def filtered_value(key: Any, value: Any) -> Any:
        if value is None:
            return None
        kept = predicate(key, value)
        return value if (kept if kept is True or kept is False else truth_of(kept)) is keep else None

    def table_filter(key: Any, new: Any, old: Any, timestamp: int, headers: Headers) -> None:
        try:
            new, old = filtered_value(key, new), filtered_value(key, old)
        except Exception as error:
            return on_error("process", name, error)
        if versioned or new is not None or old is not None:
            child(key, new, old, timestamp, headers)

    return table_filter


def _mapping(node: n.TableMapValues) -> Callable[[Any, Any], Any]:
    """Return a function from key and value to the new value. A deleted row stays deleted."""
    mapper, with_key = node.mapper, node.with_key

    def mapped(key: Any, value: Any) -> Any:
        if value is None:
            return None
        return mapper(key, value) if with_key else mapper(value)

    return mapped


@compile_node.register
def _compile_table_map_values(node: n.TableMapValues, compiled: Compiled) -> Call:
    child, mapped = compiled.children(node), _mapping(node)
    on_error, name, needs_old = compiled.runtime.on_error, node.name, compiled.needs_old(node)

    def table_map_values(key: Any, new: Any, old: Any, timestamp: int, headers: Headers) -> None:
        try:
            new = mapped(key, new)
            old = mapped(key, old) if needs_old else None
        except Exception as error:
            return on_error("process", name, error)
        child(key, new, old, timestamp, headers)

    return table_map_values


@columns_of.register
def _table_map_values_columns(node: n.TableMapValues, compiled: Compiled) -> Form | None:
    if not isinstance(node.mapper, Expression):
        return of_function(node, compiled, _mapping(node), forward_values)
    form, row, runtime = (
        of_expression(node, compiled, node.mapper, forward_values),
        row_of(node, compiled),
        compiled.runtime,
    )
    if form is None:
        return None
    without_nulls = form.call

    def table_map_values(columns: Columns) -> None:
        if columns.values.any_null():  # deleted rows stay deleted
            return call_per_row(columns, row, runtime)
        return without_nulls(columns)

    return form._replace(call=table_map_values)


@compile_node.register
def _compile_table_store(node: n.TableStore, compiled: Compiled) -> Call:
    runtime, name, child = compiled.runtime, node.name, compiled.children(node)
    store = runtime.stores[node.store.name]
    fetch, write, key_bytes = store.fetch, store.write, node.store.key.serialize

    def table_store(key: Any, new: Any, old: Any, timestamp: int, headers: Headers) -> None:
        try:
            stored_key = key_bytes(key)
            entry = fetch(stored_key)
            write(stored_key, None if new is None else (new, timestamp))
        except Exception as error:
            return runtime.on_error("process", name, error)
        child(key, new, None if entry is None else entry[0], timestamp, headers)

    return table_store


@compile_node.register
def _compile_to_stream(node: n.ToStream, compiled: Compiled) -> Call:
    child = compiled.children(node)

    def to_stream(key: Any, new: Any, old: Any, timestamp: int, headers: Headers) -> None:
        child(key, new, timestamp, headers)

    return to_stream


@columns_of.register
def _to_stream_columns(node: n.ToStream, compiled: Compiled) -> Form | None:
    return form_downstream(node, compiled)


@compile_node.register
def _compile_group_table(node: n.GroupTable, compiled: Compiled) -> Call:
    runtime, child, selector = compiled.runtime, compiled.children(node), node.selector
    on_error, name, versioned = runtime.on_error, node.name, compiled.versioned(node.parents[0])
    key_bytes = node.key.serialize

    def selected(key: Any, value: Any) -> tuple[Any, Any] | None:
        pair = None if value is None else selector(key, value)
        if pair is None:
            return None
        if type(pair) is not tuple or len(pair) != 2:
            pair = pair_of(pair, "group_by", "new key, new value")
        return None if pair[0] is None or pair[1] is None else pair

    def group_table(key: Any, new: Any, old: Any, timestamp: int, headers: Headers) -> None:
        if versioned and not runtime.latest:
            return None  # the latest row is unchanged; Kafka Streams does not count such changes as dropped
        try:
            before, after = selected(key, old), selected(key, new)
            same = before and after and before[0] == after[0] and key_bytes(before[0]) == key_bytes(after[0])
        except Exception as error:
            return on_error("process", name, error)
        if before and after and same:
            return child(after[0], Change(after[1], before[1]), timestamp, headers)
        if before:
            child(before[0], Change(None, before[1]), timestamp, headers)
        if after:
            child(after[0], Change(after[1], None), timestamp, headers)
        return None

    return group_table
