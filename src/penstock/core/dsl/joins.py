"""How joins are put into the graph; the faces are methods of ``KStream`` and ``KTable``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.core.dsl.graph import Graph, kept_as
from penstock.core.dsl.join_windows import JoinWindows
from penstock.core.dsl.late import OfLate, with_late
from penstock.core.model import serdes
from penstock.core.model.durations import Duration, millis
from penstock.core.model.errors import TopologyError
from penstock.core.model.serdes import Serde
from penstock.core.plan import joins
from penstock.core.plan.joins import Joiner, JoinKind, JoinTimes
from penstock.core.plan.nodes import TableStore
from penstock.core.plan.stores import Kept, StoreOptions, StoreSpec, WindowSpec, key_value, window

if TYPE_CHECKING:
    from penstock.core.dsl.joinable import JoinableStream
    from penstock.core.dsl.joinable_table import JoinableTable
    from penstock.core.dsl.ktable import KTable


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
    "grace": " (that of two streams is in windows=ps.JoinWindows(...))",
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
    node = graph.name("KSTREAM-JOIN" if kind == "inner" else "KSTREAM-LEFTJOIN", name)
    key = given.key or stream._key or table._key
    parent = by_key(stream, node, key, given.value, keep_null_keys=kind == "left")
    if given.grace is not None:
        value = given.value or stream._value or graph.default_value
        kept = kept_as(given.store, node)
        parent = _buffer(graph, parent, table, kept, key or graph.default_key, value, millis(given.grace))
    elif given.store is not None:
        raise TopologyError(
            "a join of a stream with a table keeps nothing without grace=...; leave store=... out"
        )
    stores = joins.stores_of_table(graph.topology.nodes, table._node)
    return graph.add(joins.StreamTableJoin(node, (parent,), table._node, stores, joiner, kind))


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
    this, other = graph.name("KTABLE-JOINTHIS", None), graph.name("KTABLE-JOINOTHER", None)
    sides = ((this, left, right, True), (other, right, left, False))
    for node, mine, others, is_left in sides:
        stores = joins.stores_of_table(graph.topology.nodes, others._node)
        graph.add(joins.TableJoin(node, (mine._node,), others._node, stores, joiner, kind, is_left))
    last = graph.add(joins.TableMerge(graph.name("KTABLE-MERGE", name), (this, other)))
    if store is None:
        return last
    key = left._key or right._key or graph.default_key
    spec = graph.add_store(store, "", key, value or graph.default_value)
    return graph.add(TableStore(graph.name("KTABLE-STORE", None), (last,), spec))


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
            "a join of two streams needs windows=ps.JoinWindows(before, after, grace): without them every record would "
            "have to be kept for ever"
        )
    graph = left._graph
    same_builder(graph, right._graph)
    last = graph.name("KSTREAM-MERGE", name)
    kept = kept_as(given.store, last)
    key = given.key or left._key or right._key or graph.default_key
    left_value = given.value or left._value or graph.default_value
    right_value = given.other_value or right._value or graph.default_value
    times = dataclasses.replace(given.windows.times, prior=prior)
    sides = (
        _records(graph, kept, "left", key, left_value, times),
        _records(graph, kept, "right", key, right_value, times),
    )
    unmatched = None if kind == "inner" else _unmatched(graph, kept)
    parents = (
        by_key(left, f"{last}-left", key, left_value, keep_null_keys=kind != "inner"),
        by_key(right, f"{last}-right", key, right_value, keep_null_keys=kind == "outer"),
    )
    names = graph.name("KSTREAM-JOINTHIS", None), graph.name("KSTREAM-JOINOTHER", None)
    for node, parent, mine, other in zip(names, parents, sides, reversed(sides)):
        is_left = mine is sides[0]
        graph.add(
            joins.StreamJoin(node, (parent,), last, mine, other, unmatched, joiner, kind, times, is_left)
        )
    graph.add(joins.StreamMerge(last, names))
    for node, value, consumer in zip(names, (left_value, right_value), (given.late, given.other_late)):
        with_late(graph, node, key, value, consumer)
    return last


def by_key(
    stream: JoinableStream[Any, Any],
    topic: str,
    key: Serde[Any] | None,
    value: Serde[Any] | None,
    *,
    keep_null_keys: bool,
) -> str:
    """Give the node of a stream where each record is in the partition of its key: behind a repartition if need be."""
    if not stream._rekeyed:
        return stream._node
    graph = stream._graph
    key, value = key or stream._key or graph.default_key, value or stream._value or graph.default_value
    node = graph.name("KSTREAM-REPARTITION", None)
    return graph.repartition(
        stream._node, topic, key, value, None, drop_null_keys=not keep_null_keys, name=node
    )


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
            "store=ps.stores.options(name, history_retention=...), and join it as it is, not a result made of it"
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
    spec = key_value(f"{kept.name}-buffer", times, records, engine=kept.engine, changelog=kept.changelog)
    graph.topology.add_state_store(spec)
    # The node has the store's name: what it remembers of the store must be found again with it, whatever is edited.
    return graph.add(joins.GraceBuffer(spec.name, (parent,), spec, key, value, grace))


def _records(
    graph: Graph, kept: StoreOptions, side: str, key: Serde[Any], value: Serde[Any], times: JoinTimes
) -> WindowSpec:
    size = times.before + times.after
    spec = window(
        f"{kept.name}-{side}",
        key,
        value,
        retention=size + times.grace,
        size=size,
        retain_duplicates=True,
        engine=kept.engine,
        changelog=kept.changelog,
    )
    graph.topology.add_state_store(spec)
    return spec


def _unmatched(graph: Graph, kept: StoreOptions) -> StoreSpec:
    spec = key_value(f"{kept.name}-unmatched", serdes.bytes, serdes.bytes)
    spec = dataclasses.replace(spec, engine=kept.engine, changelog=kept.changelog)
    graph.topology.add_state_store(spec)
    return spec
