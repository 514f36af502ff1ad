"""Joins: implements the methods of ``KStream`` and ``KTable``, except foreign-key joins."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Final

from millstream.core.dsl.global_table import GlobalKTable
from millstream.core.dsl.graph import Graph, check_no_history, check_no_retention
from millstream.core.dsl.handle import Handle, StreamHandle, TableHandle
from millstream.core.dsl.operators.join_options import JoinOptions
from millstream.core.dsl.operators.store_specs import bytes_store, join_store, named_bytes
from millstream.core.model.durations import millis
from millstream.core.model.errors import TopologyError
from millstream.core.model.serdes import Serde
from millstream.core.topology import join_nodes
from millstream.core.topology.checks import check_with_key
from millstream.core.topology.global_nodes import GlobalJoin
from millstream.core.topology.join_nodes import Joiner, JoinKind, joiner_with_key
from millstream.core.topology.stores import StoreLike, StoreOptions
from millstream.core.topology.window_nodes import is_windowed_here


@dataclasses.dataclass(frozen=True)
class JoinFunction:
    """What a join computes.

    Attributes:
        function: Maps both values to the value of the result; if ``with_key`` is set, it takes the key before them.
        kind: Which records have results without a partner.
    """

    function: Callable[..., Any]
    kind: JoinKind
    name: str | None
    with_key: bool

    def __post_init__(self) -> None:
        check_with_key(self.function, ("value", "other value"), with_key=self.with_key)

    @property
    def joiner(self) -> Joiner:
        """The function, with the key as first argument in any case."""
        return joiner_with_key(self.function, with_key=self.with_key)


_SIDES: Final = ("-left", "-right")
BOTH_SIDES: Final = "the two sides of a join"


def join_global(
    stream: StreamHandle[Any, Any],
    table: GlobalKTable[Any, Any],
    selector: Callable[[Any, Any], Any],
    join: JoinFunction,
) -> str:
    """Add the join of a stream with a global table, and return its node."""
    graph = stream._graph
    graph.check_same(table._graph, f"the stream and the global table {table.store_name!r}")
    node = graph.name("KSTREAM-LEFTJOIN", join.name)  # for both kinds, as in Kafka Streams
    return graph.add(GlobalJoin(node, (stream._node,), table._store, selector, join.joiner, join.kind))


def join_table(
    stream: StreamHandle[Any, Any], table: TableHandle[Any, Any], join: JoinFunction, options: JoinOptions
) -> str:
    """Add the join of a stream with a table, and return its node."""
    graph = stream._graph
    graph.check_same(table._graph, BOTH_SIDES)
    if stream._rekeyed and is_windowed_here(graph.topology.nodes, table._node):
        raise TopologyError(
            "a stream whose keys were changed cannot be joined with a windowed aggregation: its records would go to the "
            "partitions of their windowed keys, but the rows are in the partitions of the keys without windows. "
            "Repartition the rows, too, with to_stream().repartition().to_table() after the aggregation"
        )
    path = stream._path
    join_path = f"{path}-{table._path}-join"
    key = options.key or stream._key or table._key
    parent = _partitioned_by_key(stream, join.name, join_path, key, options.value)
    node = graph.name("KSTREAM-JOIN" if join.kind == "inner" else "KSTREAM-LEFTJOIN", join.name)
    if options.grace is not None:
        named = None if options.store is None else graph.named_store(options.store)
        store = graph.store_options(named, lambda: f"{node}-Buffer", join_path, "buffer", join.name)
        if named is not None:
            check_no_history(named)
            check_no_retention(named)
            store = dataclasses.replace(store, name=f"{store.name}-buffer")
        buffered = key or graph.default_key, options.value or stream._value or graph.default_value
        parent = _buffer(parent, table, store, buffered, millis(options.grace))
    elif options.store is not None:
        raise TopologyError(
            "a join of a stream with a table has no store without grace=...; leave store=... out"
        )
    stores = join_nodes.stores_of_table(graph.topology.nodes, table._node)
    joining = join.function, join.kind, join.with_key
    graph.add(join_nodes.StreamTableJoin(node, (parent,), table._node, stores, *joining))
    graph.begin(node, path, join.name)
    return node


def _buffer(
    parent: str,
    table: TableHandle[Any, Any],
    options: StoreOptions,
    serdes: tuple[Serde[Any], Serde[Any]],
    grace: int,
) -> str:
    """Add the buffer before a join with a versioned table, and return its node."""
    graph, (key, value) = table._graph, serdes
    versions = join_nodes.versions_of_table(graph.topology.nodes, table._node)
    if versions is None:
        raise TopologyError(
            "grace needs a versioned table, which knows the row at the time of a record; create the table with "
            "store=ms.stores.options(name, history_retention=...), and join this table, not one derived from it"
        )
    if not 0 <= grace <= versions.retention_ms:
        raise TopologyError(
            f"grace must be from 0 to {versions.retention_ms} ms, the history_retention of {versions.name!r}, not "
            f"{grace}: a record that waited longer would find no version for its time"
        )
    spec = bytes_store(
        options,
        options.name,
        named_bytes(f"time and {key.name}"),
        named_bytes(f"held {value.name}"),
    )
    return graph.add(join_nodes.GraceBuffer(spec.name, (parent,), spec, key, value, grace))


def join_tables(
    left: TableHandle[Any, Any],
    right: TableHandle[Any, Any],
    join: JoinFunction,
    value: Serde[Any] | None,
    store: StoreLike | None,
) -> str:
    """Add the join of two tables, and return its last node."""
    graph, name = left._graph, join.name
    graph.check_same(right._graph, BOTH_SIDES)
    path = f"{left._path}-{right._path}-join"
    last = graph.name("KTABLE-MERGE", name)
    this = graph.name("KTABLE-JOINTHIS", name and f"{name}-join-this")
    other = graph.name("KTABLE-JOINOTHER", name and f"{name}-join-other")
    for node, side, other_side in ((this, left, right), (other, right, left)):
        stores = join_nodes.stores_of_table(graph.topology.nodes, other_side._node)
        graph.add(
            join_nodes.TableJoin(
                node, (side._node,), other_side._node, stores, join.joiner, join.kind, left=node == this
            )
        )
    graph.add(join_nodes.TableMerge(last, (this, other)))
    graph.begin(last, path, name)
    if store is None:
        return last
    options = graph.named_store(store)
    key = left._key or right._key or graph.default_key
    copy = graph.add_copy(last, options, key, value or graph.default_value)
    graph.begin(copy, options.name)
    return copy


def join_streams(
    left: StreamHandle[Any, Any],
    right: StreamHandle[Any, Any],
    join: JoinFunction,
    options: JoinOptions,
    *,
    prior: bool = False,
) -> str:
    """Add the join of two streams, and return its last node. With ``prior``, a record is joined only with older records."""
    if options.windows is None:
        raise TopologyError(
            "a join of two streams needs windows=ms.JoinWindows(before, after, grace): without windows, all records "
            "would have to be stored forever"
        )
    graph = left._graph
    graph.check_same(right._graph, BOTH_SIDES)
    key = options.key or left._key or right._key or graph.default_key
    left_serdes = key, options.value or left._value or graph.default_value
    right_serdes = key, options.other_value or right._value or graph.default_value
    times = dataclasses.replace(options.windows.times, prior=prior)
    prefix, named = _stream_join_names(left, right, options.store, join.name)
    topics = (None, None) if prefix is None else tuple(graph.names.part(prefix, side) for side in _SIDES)
    parents = (
        _partitioned_by_key(left, topics[0], "", *left_serdes),
        _partitioned_by_key(right, topics[1], "", *right_serdes),
    )
    nodes = _side_nodes(graph, join.kind, join.name)
    last = graph.name("KSTREAM-MERGE", join.name)
    stores = _store_names(graph, None if named is None else named.name, nodes)
    storage = named or StoreOptions(last)
    own = join_store(storage, stores[0], left_serdes, times)
    other = join_store(storage, stores[1], right_serdes, times)
    unmatched = None if join.kind == "inner" else bytes_store(storage, stores[2])
    joining = join.joiner, join.kind, times
    graph.add(join_nodes.StreamJoin(nodes[0], parents[:1], own, other, unmatched, *joining, left=True))
    graph.begin(nodes[0], left._path, join.name)
    graph.add(join_nodes.StreamJoin(nodes[1], parents[1:], other, own, unmatched, *joining, left=False))
    graph.begin(nodes[1], right._path, join.name)
    graph.add(join_nodes.StreamMerge(last, nodes))
    graph.begin(last, last if named is None else named.name, join.name)
    graph.pass_late(nodes[0], left_serdes, options.late)
    graph.pass_late(nodes[1], right_serdes, options.other_late)
    return last


def _stream_join_names(
    left: Handle[Any, Any], right: Handle[Any, Any], store: StoreLike | None, name: str | None
) -> tuple[str | None, StoreOptions | None]:
    """Return the first part of the names of a join's topics, and the options of its stores; None for numbered names."""
    names = left._graph.names
    if store is not None:
        options = left._graph.named_store(store)
        return name or (None if names.numbered else options.name), options
    if name is not None:
        return name, StoreOptions(name)
    if names.numbered:
        return None, None
    path = names.generate("", f"{left._path}-{right._path}-join")
    return path, StoreOptions(path)


def _side_nodes(graph: Graph, kind: JoinKind, name: str | None) -> tuple[str, str]:
    graph.name("KSTREAM-WINDOWED")  # Kafka Streams has separate nodes that write to the window stores
    graph.name("KSTREAM-WINDOWED")
    this = "outer-this" if kind == "outer" else "this"
    other = "other" if kind == "inner" else "outer-other"
    kinds = {"this": "JOINTHIS", "outer-this": "OUTERTHIS", "other": "JOINOTHER", "outer-other": "OUTEROTHER"}
    first, second = (
        graph.name(f"KSTREAM-{kinds[side]}", name and f"{name}-{side}-join") for side in (this, other)
    )
    return first, second


def _store_names(graph: Graph, prefix: str | None, sides: tuple[str, str]) -> tuple[str, str, str]:
    """Return the names of the stores of the left records, the right records, and the records without a partner."""
    names = graph.names
    if prefix is not None:
        left, right = (names.part(prefix, side) for side in _SIDES)
        return left, right, names.part(prefix, "-unmatched")
    shared = f"KSTREAM-OUTERSHARED-{sides[0].rpartition('-')[2]}"
    left, right, unmatched = (names.generate(f"{node}-store", "") for node in (*sides, shared))
    return left, right, unmatched


def _partitioned_by_key(
    stream: StreamHandle[Any, Any],
    topic: str | None,
    path: str,
    key: Serde[Any] | None,
    value: Serde[Any] | None,
) -> str:
    """Return a node whose records are in the partitions of their keys, adding a repartition if necessary."""
    if not stream._rekeyed:
        return stream._node
    graph, serdes = stream._graph, stream._serdes(key, value)
    if topic is None:
        topic = graph.names.generate(stream._node, path)
    return graph.repartition(stream._node, topic, *serdes, drop_null_keys=True)
