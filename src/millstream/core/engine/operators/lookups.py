"""Lookups: find the current row of a key in a table or, in a versioned table, the row at a time.

A table with a store reads the row from the store. A derived table without a store computes the row from its parent tables, so that a join
needs no second copy of their rows (Kafka Streams: ``KTableValueGetter``). A row of a windowed table is identified by key and window. It
does not exist any more when its window has expired from the store.

A row that waits in a cache (``millstream.core.engine.caching``) has two values: the *newest* value, in the store, and the last *forwarded*
value. A join of a stream uses the newest value. An operator that derives changes of one table from rows of another uses the forwarded
value, because the other table's change is still to come. Each result then replaces exactly the previous result. Kafka Streams uses the
newest value here, too, and may retract results that it never emitted. The timestamp of a forwarded row is no longer known and is
returned as -1; the result of the pending change has the correct timestamp.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch
from typing import Any

from millstream.core.engine.compile import Compiled
from millstream.core.engine.operators.suppress import Buffer
from millstream.core.model.errors import ProcessingError, StoreError
from millstream.core.model.windowed import Windowed
from millstream.core.state.keys import FOREVER
from millstream.core.topology import join_nodes as j
from millstream.core.topology import nodes as n
from millstream.core.topology.stores import SessionSpec, StoreSpec, VersionedSpec, WindowSpec
from millstream.core.topology.window_nodes import Suppress

Lookup = Callable[[Any, int], "tuple[Any, int] | None"]
"""Maps key and time to value and timestamp; None if there is no row. A table without versions ignores the time."""


def lookup(table: str, compiled: Compiled, *, forwarded: bool = False) -> Lookup:
    """Return a function that looks up rows of a table.

    Args:
        forwarded: True for the last forwarded rows, False for the newest rows.
    """
    return _lookup(compiled.node(table), compiled, forwarded)


@singledispatch
def _lookup(node: n.Node, compiled: Compiled, forwarded: bool) -> Lookup:
    raise StoreError(
        f"node {node.name!r} is a {type(node).__name__}, which has no rows to look up; this is a bug"
    )


@_lookup.register
def _materialised_lookup(node: n.Materialised, compiled: Compiled, forwarded: bool) -> Lookup:
    newest, cache = (
        _store_lookup(node.store, compiled.runtime.stores[node.store.name]),
        compiled.caches.of(node),
    )
    if cache is None or not forwarded:
        return newest
    before = cache.forwarded

    def as_forwarded(key: Any, time: int) -> tuple[Any, int] | None:
        waiting = before(key)
        if waiting is None:
            return newest(key, time)
        (value,) = waiting
        return None if value is None else (value, -1)

    return as_forwarded


@singledispatch
def _store_lookup(spec: StoreSpec, store: Any) -> Lookup:
    fetch, key_bytes = store.fetch, spec.key.serialize
    return lambda key, time: fetch(key_bytes(key))


@_store_lookup.register
def _kept_versioned_spec(spec: VersionedSpec, store: Any) -> Lookup:
    fetch, key_bytes = store.fetch, spec.key.serialize

    def row(key: Any, time: int) -> tuple[Any, int] | None:
        version = fetch(key_bytes(key), time)
        return None if version is None else (version.value, version.timestamp)

    return row


@_store_lookup.register
def _kept_window_spec(spec: WindowSpec, store: Any) -> Lookup:
    fetch = store.fetch

    def in_window(key: Any, time: int) -> tuple[Any, int] | None:
        windowed = _checked(spec, key)
        row: tuple[Any, int] | None = fetch(windowed.key, windowed.start)
        return row

    return in_window


@_store_lookup.register
def _kept_session_spec(spec: SessionSpec, store: Any) -> Lookup:
    fetch = store.fetch_session

    def in_session(key: Any, time: int) -> tuple[Any, int] | None:
        value = fetch(*_checked(spec, key))
        return None if value is None else (value, key.end)  # the timestamp of a session is its end

    return in_session


def _checked(spec: StoreSpec, key: Any) -> Windowed[Any]:
    if isinstance(key, Windowed):
        return key
    raise ProcessingError(
        f"the table in store {spec.name!r} has windowed keys, but a row was looked up for {key!r}; look it up with a "
        "Windowed(key, start, end), as to_stream() of a windowed aggregation returns it"
    )


@_lookup.register
def _table_filter_lookup(node: n.TableFilter, compiled: Compiled, forwarded: bool) -> Lookup:
    row_of = lookup(node.parents[0], compiled, forwarded=forwarded)
    predicate, keep = node.predicate, node.keep

    def filtered(key: Any, time: int) -> tuple[Any, int] | None:
        row = row_of(key, time)
        return row if row is not None and bool(predicate(key, row[0])) is keep else None

    return filtered


@_lookup.register
def _table_map_values_lookup(node: n.TableMapValues, compiled: Compiled, forwarded: bool) -> Lookup:
    row_of = lookup(node.parents[0], compiled, forwarded=forwarded)
    mapper, with_key = node.mapper, node.with_key

    def mapped(key: Any, time: int) -> tuple[Any, int] | None:
        row = row_of(key, time)
        if row is None:
            return None
        value = mapper(key, row[0]) if with_key else mapper(row[0])
        return None if value is None else (value, row[1])

    return mapped


@_lookup.register
def _suppress_lookup(node: Suppress, compiled: Compiled, forwarded: bool) -> Lookup:
    # Updates in an upstream cache have not reached the buffer, so even lookups of the newest row must not see them.
    row_of, buffer = lookup(node.parents[0], compiled, forwarded=True), Buffer(node, compiled)

    def as_given(key: Any, time: int) -> tuple[Any, int] | None:
        buffered = buffer.find(key)
        if buffered is None:
            return row_of(key, time)
        return None if buffered.old is None else (buffered.old, -1)

    return as_given


@_lookup.register
def _table_merge_lookup(node: j.TableMerge, compiled: Compiled, forwarded: bool) -> Lookup:
    side: Any = compiled.node(node.parents[0])
    left_of, right_of = (
        lookup(table, compiled, forwarded=forwarded) for table in (side.parents[0], side.other)
    )
    joiner, alone = side.joiner, {"inner": (False, False), "left": (True, False), "outer": (True, True)}
    left_alone, right_alone = alone[side.kind]

    def joined_row(key: Any, time: int) -> tuple[Any, int] | None:
        left, right = left_of(key, FOREVER), right_of(key, FOREVER)  # results have no versions
        if left is None and (right is None or not right_alone):
            return None
        if right is None and not left_alone:
            return None
        (left_value, left_time), (right_value, right_time) = left or (None, -1), right or (None, -1)
        value = joiner(key, left_value, right_value)
        return None if value is None else (value, max(left_time, right_time))

    return joined_row
