"""How joins are put into the graph; the faces are methods of ``KStream`` and ``KTable``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from millstream.core.dsl.global_table import GlobalKTable
from millstream.core.dsl.graph import Graph
from millstream.core.dsl.join_windows import JoinWindows
from millstream.core.dsl.late import OfLate, with_late
from millstream.core.model import serdes
from millstream.core.model.durations import Duration, millis
from millstream.core.model.errors import TopologyError
from millstream.core.model.serdes import Serde
from millstream.core.topology import joins
from millstream.core.topology.global_nodes import GlobalJoin
from millstream.core.topology.joins import Joiner, JoinKind, JoinTimes
from millstream.core.topology.stores import Kept, StoreOptions, StoreSpec, WindowSpec, key_value, window
from millstream.core.topology.windowed import is_windowed_here

if TYPE_CHECKING:
    from millstream.core.dsl.joinable import JoinableStream
    from millstream.core.dsl.joinable_table import JoinableTable
    from millstream.core.dsl.ktable import KTable


def joiner_of(joiner: Callable[..., Any], *, with_key: bool) -> Joiner:
    """Give a joiner that takes the key, whether the user's does or not."""
    return joiner if with_key else lambda key, left, right: joiner(left, right)


def same_builder(left: Graph, right: Graph) -> None:
    """Refuse to join what belongs to two topologies.

    Raises:
        TopologyError: If it does.
    """
    if left is not right:
        raise TopologyError("the two sides of a join come from different builders; make both with one")


class JoinOptions(NamedTuple):
    """What was given with a join of a stream; None is not given. ``JoinableStream.join`` says what each means."""

    windows: JoinWindows | None = None
    key: Serde[Any] | None = None
    value: Serde[Any] | None = None
    other_value: Serde[Any] | None = None
    grace: Duration | None = None
    store: Kept | None = None
    late: OfLate | None = None
    other_late: OfLate | None = None


_WITH: Final = {
    "a table": {"key", "value", "grace", "store"},
    "a global table": set[str](),
    "another stream": {"windows", "key", "value", "other_value", "store", "late", "other_late"},
}

_HINTS: Final = {
    "grace": " (that of two streams is in windows=ms.JoinWindows(...))",
    "late": " (no record is late for a table)",
    "other_late": " (no record is late for a table)",
}


def check_options(given: JoinOptions, side: str) -> None:
    """Refuse options that mean nothing in a join with a side: "a table", "a global table" or "another stream".

    Raises:
        TopologyError: If one of them was given.
    """
    for option, value in given._asdict().items():
        if value is not None and option not in _WITH[side]:
            raise TopologyError(
                f"{option}=... means nothing in a join of a stream with {side}{_HINTS.get(option, '')}; leave it out"
            )


def join_table(
    stream: JoinableStream[Any, Any],
    table: KTable[Any, Any],
    joiner: Joiner,
    kind: JoinKind,
    given: JoinOptions,
    name: str | None,
) -> str:
    """Add a join of a stream with a table; give its node."""
    graph = stream._graph
    same_builder(graph, table._graph)
    if stream._rekeyed and is_windowed_here(graph.topology.nodes, table._node):
        raise TopologyError(
            "a stream whose keys were changed cannot be joined with a windowed aggregation: its records would go to the "
            "partitions of their windowed keys, but the rows are in those of their keys. Bring the rows there too, with "
            "to_stream().repartition().to_table() behind the aggregation"
        )
    path = graph.path(stream._node, rekeyed=stream._rekeyed)
    called = f"{path}-{graph.path(table._node)}-join"
    key = given.key or stream._key or table._key
    parent = by_key(stream, name, called, key, given.value)
    node = graph.name("KSTREAM-JOIN" if kind == "inner" else "KSTREAM-LEFTJOIN", name)
    if given.grace is not None:
        value = given.value or stream._value or graph.default_value
        given_store = None if given.store is None else graph.given(given.store)
        kept = graph.kept_as(given_store, lambda: f"{node}-Buffer", called, "buffer", name)
        if given_store is not None:
            kept = dataclasses.replace(kept, name=f"{kept.name}-buffer")
        parent = _buffer(graph, parent, table, kept, key or graph.default_key, value, millis(given.grace))
    elif given.store is not None:
        raise TopologyError(
            "a join of a stream with a table keeps nothing without grace=...; leave store=... out"
        )
    stores = joins.stores_of_table(graph.topology.nodes, table._node)
    graph.add(joins.StreamTableJoin(node, (parent,), table._node, stores, joiner, kind))
    graph.begin(node, path, name)
    return node


def join_tables(
    left: JoinableTable[Any, Any],
    right: JoinableTable[Any, Any],
    joiner: Joiner,
    kind: JoinKind,
    value: Serde[Any] | None,
    store: Kept | None,
    name: str | None,
) -> str:
    """Add a join of two tables; give its last node."""
    graph = left._graph
    same_builder(graph, right._graph)
    path = f"{graph.path(left._node)}-{graph.path(right._node)}-join"
    last = graph.name("KTABLE-MERGE", name)
    this = graph.name("KTABLE-JOINTHIS", name and f"{name}-join-this")
    other = graph.name("KTABLE-JOINOTHER", name and f"{name}-join-other")
    sides = ((this, left, right, True), (other, right, left, False))
    for node, mine, others, is_left in sides:
        stores = joins.stores_of_table(graph.topology.nodes, others._node)
        graph.add(joins.TableJoin(node, (mine._node,), others._node, stores, joiner, kind, is_left))
    graph.add(joins.TableMerge(last, (this, other)))
    graph.begin(last, path, name)
    if store is None:
        return last
    kept = graph.given(store)
    key = left._key or right._key or graph.default_key
    copy = graph.add_copy(last, kept, key, value or graph.default_value)
    graph.begin(copy, kept.name)
    return copy


def join_streams(
    left: JoinableStream[Any, Any],
    right: JoinableStream[Any, Any],
    joiner: Joiner,
    kind: JoinKind,
    given: JoinOptions,
    name: str | None,
    *,
    prior: bool = False,
) -> str:
    """Add a join of two streams; give its last node. With ``prior`` a record meets only older ones."""
    if given.windows is None:
        raise TopologyError(
            "a join of two streams needs windows=ms.JoinWindows(before, after, grace): without them every record would "
            "have to be kept for ever"
        )
    graph = left._graph
    same_builder(graph, right._graph)
    key = given.key or left._key or right._key or graph.default_key
    left_value = given.value or left._value or graph.default_value
    right_value = given.other_value or right._value or graph.default_value
    times = dataclasses.replace(given.windows.times, prior=prior)
    whole, kept = _called(left, right, given.store, name)
    topics = (None, None) if whole is None else tuple(graph.names.part(whole, s) for s in _SIDES)
    parents = (
        by_key(left, topics[0], "", key, left_value),
        by_key(right, topics[1], "", key, right_value),
    )
    names = _side_names(graph, kind, name)
    last = graph.name("KSTREAM-MERGE", name)
    stores = _store_names(graph, None if kept is None else kept.name, names)
    options = kept or StoreOptions(last)
    sides = (
        _records(graph, options, stores[0], key, left_value, times),
        _records(graph, options, stores[1], key, right_value, times),
    )
    unmatched = None if kind == "inner" else _unmatched(graph, options, stores[2])
    for node, parent, mine, other in zip(names, parents, sides, reversed(sides)):
        is_left = mine is sides[0]
        graph.add(joins.StreamJoin(node, (parent,), mine, other, unmatched, joiner, kind, times, is_left))
        side = left if is_left else right
        graph.begin(node, graph.path(side._node, rekeyed=side._rekeyed), name)
    graph.add(joins.StreamMerge(last, names))
    graph.begin(last, last if kept is None else kept.name, name)
    for node, value, consumer in zip(names, (left_value, right_value), (given.late, given.other_late)):
        with_late(graph, node, key, value, consumer)
    return last


_SIDES: Final = ("-left", "-right")


def _called(
    left: JoinableStream[Any, Any], right: JoinableStream[Any, Any], store: Kept | None, name: str | None
) -> tuple[str | None, StoreOptions | None]:
    """Give what the topics of a join of two streams are called after, and its stores; None if by numbers."""
    graph = left._graph
    if store is not None:
        kept = graph.given(store)
        return name or (None if graph.names.numbered else kept.name), kept
    if name is not None:
        return name, StoreOptions(name)
    if graph.names.numbered:
        return None, None
    paths = (graph.path(side._node, rekeyed=side._rekeyed) for side in (left, right))
    called = graph.names.kept("", f"{'-'.join(paths)}-join")
    return called, StoreOptions(called)


def _side_names(graph: Graph, kind: JoinKind, name: str | None) -> tuple[str, str]:
    """Give the names of the nodes of both sides of a join of two streams."""
    graph.name("KSTREAM-WINDOWED")  # where Kafka Streams puts the records of a side into its store
    graph.name("KSTREAM-WINDOWED")
    this = "outer-this" if kind == "outer" else "this"
    other = "other" if kind == "inner" else "outer-other"
    kinds = {"this": "JOINTHIS", "outer-this": "OUTERTHIS", "other": "JOINOTHER", "outer-other": "OUTEROTHER"}
    first, second = (
        graph.name(f"KSTREAM-{kinds[side]}", name and f"{name}-{side}-join") for side in (this, other)
    )
    return first, second


def _store_names(graph: Graph, called: str | None, sides: tuple[str, str]) -> tuple[str, str, str]:
    """Give the names of the stores of the left records, of the right ones, and of those without a partner."""
    names = graph.names
    if called is not None:
        left, right = (names.part(called, side) for side in _SIDES)
        return left, right, names.part(called, "-unmatched")
    shared = f"KSTREAM-OUTERSHARED-{sides[0].rpartition('-')[2]}"
    left, right, unmatched = (names.kept(f"{node}-store", "") for node in (*sides, shared))
    return left, right, unmatched


def by_key(
    stream: JoinableStream[Any, Any],
    topic: str | None,
    path: str,
    key: Serde[Any] | None,
    value: Serde[Any] | None,
) -> str:
    """Give the node of a stream where each record is in the partition of its key: behind a repartition if need be.

    Args:
        stream: The stream.
        topic: What the topic is called; None generates it.
        path: What it is then called by its path.
        key: Serde of the keys.
        value: Serde of the values.
    """
    if not stream._rekeyed:
        return stream._node
    graph = stream._graph
    key, value = key or stream._key or graph.default_key, value or stream._value or graph.default_value
    if topic is None:
        topic = graph.names.kept(stream._node, path)
    return graph.repartition(stream._node, topic, key, value, drop_null_keys=True)


def _buffer(
    graph: Graph,
    parent: str,
    table: KTable[Any, Any],
    kept: StoreOptions,
    key: Serde[Any],
    value: Serde[Any],
    grace: int,
) -> str:
    """Add the buffer in front of a join with a versioned table; give its node."""
    versions = joins.versions_of_table(graph.topology.nodes, table._node)
    if versions is None:
        raise TopologyError(
            "grace is for a table with versions, which can tell what a row was at the time of a record; give the table "
            "store=ms.stores.options(name, history_retention=...), and join it as it is, not a result made of it"
        )
    if not 0 <= grace <= versions.retention_ms:
        raise TopologyError(
            f"grace is from 0 to {versions.retention_ms} ms, the history_retention of {versions.name!r}, not {grace}: a "
            "record that waited longer would find no version of its time"
        )
    times, records = (
        dataclasses.replace(serdes.bytes, name=f"{what} {serde.name}")
        for what, serde in (("time and", key), ("held", value))
    )
    spec = key_value(
        kept.name,
        times,
        records,
        **kept.storage,
    )
    graph.topology.add_state_store(spec)
    return graph.add(joins.GraceBuffer(spec.name, (parent,), spec, key, value, grace))


def _records(
    graph: Graph, kept: StoreOptions, name: str, key: Serde[Any], value: Serde[Any], times: JoinTimes
) -> WindowSpec:
    size = times.before + times.after
    spec = window(
        name,
        key,
        value,
        retention=size + times.grace,
        size=size,
        retain_duplicates=True,
        **kept.storage,
    )
    spec = dataclasses.replace(spec, expired="late for a join")
    graph.topology.add_state_store(spec)
    return spec


def _unmatched(graph: Graph, kept: StoreOptions, name: str) -> StoreSpec:
    spec = key_value(name, serdes.bytes, serdes.bytes)
    spec = dataclasses.replace(
        spec,
        **kept.storage,
    )
    graph.topology.add_state_store(spec)
    return spec


def join_global(
    stream: JoinableStream[Any, Any],
    table: GlobalKTable[Any, Any],
    selector: Callable[[Any, Any], Any],
    joiner: Joiner,
    kind: JoinKind,
    *,
    name: str | None,
) -> str:
    """Add the join of a stream with a global table; return its node.

    Args:
        stream: The stream.
        table: The global table.
        selector: Key and value of a record to the key of a row.
        joiner: Key, value and row to the new value.
        kind: inner, or left: records without a row are kept.
        name: Name of the node; None generates one, ``KSTREAM-LEFTJOIN-...`` for both kinds, as Kafka Streams does.

    Raises:
        TopologyError: If the table was made by another builder.
    """
    graph = stream._graph
    if table._graph is not graph:
        raise TopologyError(
            f"the global table {table.store_name!r} belongs to another StreamsBuilder; make stream and table with the same"
        )
    made = graph.name("KSTREAM-LEFTJOIN", name)
    return graph.add(GlobalJoin(made, (stream._node,), table._store, selector, joiner, kind))
