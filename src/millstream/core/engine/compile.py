"""Compile: turns a sub-topology into closures, once per task.

Each node becomes one function. It takes a record (key, value, timestamp, headers) or a change of a table (key, new value, old value,
timestamp, headers) as plain arguments, and calls its children, depth first. There is no dispatch per record, and a record object is
created only for a user's processor. ``millstream.core.engine.operators`` contains the compilers, which define the semantics of each node
type. Some nodes are compiled a second time, to a columnar form with equal results (``millstream.core.engine.columns``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import singledispatch
from typing import Any, NamedTuple

from millstream.core.engine.caching import Caches
from millstream.core.engine.columns import Columns, ColumnsCall, Entry, Form, by_rows, call_per_row
from millstream.core.engine.context import NodeContext
from millstream.core.engine.key_local import KeyLocalStore
from millstream.core.engine.runtime import Runtime
from millstream.core.model.errors import TopologyError
from millstream.core.model.record import Times
from millstream.core.taps.samples import MAX_RECORDS, TapPoint
from millstream.core.topology import join_nodes as j
from millstream.core.topology import nodes as n
from millstream.core.topology.analysis.combinable import combined_aggregation
from millstream.core.topology.analysis.threads_and_caches import Border
from millstream.core.topology.join_nodes import Subscribe
from millstream.core.topology.nodes import Late
from millstream.core.topology.plan import SubTopology
from millstream.core.topology.processor import KeepStore, ProcessValues, TransformRows
from millstream.core.topology.window_nodes import Suppress, takes_null_values

Call = Callable[..., None]
"""A compiled node: of a stream ``(key, value, timestamp, headers)``, of a table ``(key, new, old, timestamp, headers)``."""
_OF_THE_USER = (n.Process, ProcessValues, TransformRows)
"""Stateful nodes whose records may be retried, because the user knows which effects they had before they failed."""


class DueResults(NamedTuple):
    """Results that any record may make an operator emit, even a record of another key range.

    Attributes:
        node: Name of a node downstream of all inputs of the operator.
        due: Returns the stream time after which a record makes the operator emit results; NEVER if no results wait.
        emit: Emits the results that are due.
    """

    node: str
    due: Callable[[], int]
    emit: Callable[[], object]


class Compiled:
    """The closures of a sub-topology in one task.

    Attributes:
        entries: Per source node, the function that receives its records.
        contexts: The contexts of the processors, in the order of the topology.
        shared: Per node, the object that its function of one record shares with its columnar form.
        clocks: In the task of a key range, by node, the functions that advance the stream time of nodes that keep their own.
        due_results: In the task of a key range, the results that records of other ranges make operators emit.
    """

    def __init__(self, sub: SubTopology, runtime: Runtime, cache_bytes: int = 0) -> None:
        self.entries: dict[str, Call] = {}
        self.contexts: list[NodeContext] = []
        self.shared: dict[str, Any] = {}
        self.clocks: dict[str, Callable[[Times], None]] = {}
        self.due_results: list[DueResults] = []
        self._clocks_behind: dict[str, list[Callable[[Times], None]]] = {}
        self._sources_of: dict[str, frozenset[str]] = {}
        self._sub = sub
        self.runtime = runtime
        self.caches = Caches(sub, runtime, cache_bytes)
        self._own: dict[str, Call] = {}
        self._calls: dict[str, Call] = {}
        """The functions of the nodes, including taps, as called by other nodes."""
        for node in reversed(list(sub.nodes.values())):
            if isinstance(node, n.Source):
                self.entries[node.name] = self._tapped(node, self.children(node))
            else:
                call, repeatable = compile_node(node, self), node.pure or type(node) in _OF_THE_USER
                self._own[node.name] = runtime.watched(node.name, call, repeatable=repeatable)
                self._calls[node.name] = self._tapped(node, self._own[node.name])
        self.contexts.reverse()

    def _tapped(self, node: n.Node, call: Call) -> Call:
        point = self.runtime.taps.get(node.name)
        if point is None or isinstance(node, Border):  # the node in the task's main thread has the tap
            return call
        (sample, note, _), metadata = point, self.runtime.metadata

        def tapped(*args: Any) -> None:
            note(sample(args, metadata))
            call(*args)

        return tapped

    def call(self, node: n.Node) -> Call:
        """Return the function of a node without its tap, for the columnar form, which has the tap instead."""
        return self._own[node.name]

    def call_named(self, name: str) -> Call:
        return self._calls[name]

    def children_of(self, node: n.Node) -> tuple[n.Node, ...]:
        return self._sub.children(node.name)

    def is_stateless(self, node: n.Node) -> bool:
        """Return True if a node and all nodes downstream of it are stateless."""
        return node.pure and all(map(self.is_stateless, self.children_of(node)))

    def children(self, node: n.Node) -> Call:
        """Return the function that receives the output of a node except late records: its cache, or a call of all its children."""
        call, cache = self.fan_out(node), self.caches.of(node)
        if cache is None:
            return call
        cache.child = call
        return cache.put

    def fan_out(self, node: n.Node) -> Call:
        """Return one function that calls all followers of a node."""
        return _fan_out([self._calls[child.name] for child in self.followers(node)], node.table)

    def followers(self, node: n.Node) -> list[n.Node]:
        """Return the children of a node except the stream of its late records, to which the node forwards separately."""
        return [child for child in self.children_of(node) if not isinstance(child, Late)]

    def late(self, node: n.Node) -> Call | None:
        """Return the function that receives the late records of a node; None if the topology does not use them."""
        late = (child for child in self._sub.children(node.name) if isinstance(child, Late))
        return next((self._calls[child.name] for child in late), None)

    def named_children(self, node: n.Node) -> Mapping[str, Call]:
        return {child.name: self._calls[child.name] for child in self._sub.children(node.name)}

    def node(self, name: str) -> n.Node:
        return self._sub.nodes[name]

    def keep_time(self, node: n.Node, clock: Callable[[Times], None]) -> None:
        """In the task of a key range, let the time of the whole partition advance the stream time of a node."""
        if self._sub.ranges > 1:
            waits = any(node.name in self._downstream_of(name) - {name} for name in self.caches.nodes)
            self.clocks[node.name] = self.caches.deferred(clock) if waits else clock

    def keep_stream_time(self, node: n.Node, clock: Callable[[int], None]) -> None:
        """As :meth:`keep_time`, for a node that processes only records with a key, or only those with a key and a value."""
        valued = self._leaves_out_null_values(node)
        self.keep_time(node, lambda times: clock(times.valued if valued else times.keyed))

    def emit_when_due(self, results: DueResults) -> None:
        """In the task of a key range, let records of other ranges make a node emit results."""
        if self._sub.ranges > 1:
            self.due_results.append(results)

    def clocks_behind(self, source: str) -> list[Callable[[Times], None]]:
        """Return the clocks of the nodes downstream of a source, upstream nodes first."""
        clocks = self._clocks_behind.get(source)
        if clocks is None:
            behind = self._downstream_of(source)
            clocks = [clock for name, clock in self.clocks.items() if name in behind][::-1]
            self._clocks_behind[source] = clocks
        return clocks

    def sources_of(self, node: str) -> frozenset[str]:
        sources = self._sources_of.get(node)
        if sources is None:
            sources = frozenset(name for name in self.entries if node in self._downstream_of(name))
            self._sources_of[node] = sources
        return sources

    def has_unfinished(self, node: str) -> bool:
        """Return True if an asynchronous operator upstream of a node has unfinished records."""
        return any(
            operator.unfinished and node in self._downstream_of(operator.name)
            for operator in self.runtime.async_operators
        )

    def _leaves_out_null_values(self, node: n.Node) -> bool:
        """Return True if null values do not reach a node, because the node or an aggregation upstream drops them."""
        parents = (self._sub.nodes[name] for name in node.parents)
        return not takes_null_values(node) or any(map(self._leaves_out_null_values, parents))

    def _downstream_of(self, source: str) -> set[str]:
        behind = {source}
        for node in self._sub.nodes.values():
            if behind.intersection(node.parents):
                behind.add(node.name)
        return behind

    def only_read(self, node: n.Process) -> frozenset[str]:
        """Return the stores of a processor that it may only read, because another node maintains them."""
        others = (other for other in self._sub.nodes.values() if other.name != node.name)
        kept = {store for other in others if isinstance(other, KeepStore) for store in other.stores}
        return frozenset(kept.intersection(node.stores))

    def local(self, node: n.Process) -> Callable[[str, Any], Any] | None:
        """Return a function that makes a processor's store refuse keys of other ranges; None if the task has all keys."""
        key_range, specs = self._sub.key_range(self.runtime.task_id), self._sub.stores
        if key_range is None:
            return None
        raw_key = self.runtime.raw_key
        return lambda name, store: KeyLocalStore(store, specs[name], key_range, node.name, raw_key)

    def versioned(self, table: str) -> bool:
        """Return True if the rows of a table, named by its node, have versions. Derived tables never have versions (KIP-914)."""
        return j.versions_of_table(self._sub.nodes, table) is not None

    def needs_old(self, node: n.Node) -> bool:
        """Return True if a node downstream of a table needs the old values of its rows.

        A filter forwards a deletion only if the old value passed the filter. A join ignores the deletion of a row that did not exist. A
        foreign-key join unsubscribes from the row that the old value referred to. A suppressed table forwards the old value of the first
        update that it holds back.
        """
        return any(
            isinstance(child, (n.GroupTable, n.TableStore, n.TableFilter, j.TableJoin, Subscribe, Suppress))
            or (child.table and self.needs_old(child))
            for child in self._sub.children(node.name)
        )

    def takes_combined(self, node: n.Aggregate) -> bool:
        """Return True if readers may combine the records of a node."""
        return combined_aggregation(self._sub) is node

    def reads_old_again(self, node: n.Materialised) -> bool:
        """Return True if the old value is needed after the aggregator was called, which may have changed it in place."""
        return not node.store.value.immutable and self.needs_old(node)


def _fan_out(calls: list[Call], table: bool) -> Call:
    if not calls:
        return discard
    if len(calls) == 1:
        return calls[0]
    if len(calls) == 2:
        first, second = calls

        def both(*args: Any) -> None:
            first(*args)
            second(*args)

        return both

    def call_all(*args: Any) -> None:
        for call in calls:
            call(*args)

    return call_all


def discard(*args: Any) -> None:
    """Discard the record, because no node follows."""


@singledispatch
def compile_node(node: n.Node, compiled: Compiled) -> Call:
    """Compile a node to its closure. Compilers are registered per node type."""
    raise TopologyError(f"the engine does not support nodes of type {type(node).__name__} ({node.name!r})")


def columnar_entries(sub: SubTopology, compiled: Compiled) -> dict[str, Entry]:
    """Return the columnar entries by source. Sources that are processed record by record are missing."""
    if compiled.contexts:
        return {}
    forms = {source: _only_child(source, compiled) for source in sub.sources if source.timestamp is None}
    return {
        source.name: Entry(_tapped_columns(source, compiled, form.call), source.key, source.value)
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
    if form is None and all(map(compiled.is_stateless, compiled.followers(node))):
        form = by_rows(_as_stream(node, compiled.fan_out(node)), compiled.runtime)
    cache = compiled.caches.of(node)
    if form is None or cache is None:
        return form
    cache.columns = form.call
    return Form(cache.put_columns)


@singledispatch
def columns_of(node: n.Node, compiled: Compiled) -> Form | None:
    """Compile a node to its columnar form, if it has one. Compilers are registered per node type."""
    return None


def row_of(node: n.Node, compiled: Compiled) -> Call:
    """Return a node's function of one record. For a table, the returned function passes None as old value."""
    return _as_stream(node, compiled.call(node))


def _as_stream(node: n.Node, call: Call) -> Call:
    """Adapt a table's function of changes to a function of records; it passes None as old value."""
    if not node.table:
        return call
    return lambda key, value, timestamp, headers: call(key, value, None, timestamp, headers)


def _only_child(node: n.Node, compiled: Compiled) -> Form | None:
    children = compiled.followers(node)
    if not children:
        return Form(discard)
    form = columns_of(children[0], compiled) if len(children) == 1 else None
    return None if form is None else form._replace(call=_tapped_columns(children[0], compiled, form.call))


def _tapped_columns(node: n.Node, compiled: Compiled, call: ColumnsCall) -> ColumnsCall:
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
