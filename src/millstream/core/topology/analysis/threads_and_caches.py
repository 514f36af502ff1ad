"""Threads and caches: decides which nodes of a sub-topology several threads may run, and which tables have a cache.

**Threads** (KIP-408). The *stateless prefix* of a source is the part that a record passes before it reaches a stateful node: the
stateless operators after the source, including sinks. No function in it can observe the effect of another record, so the functions may
be called concurrently for many records. Their *effects* in the engine are applied later, in the order of the records.

The prefix ends where a record reaches a node of another kind, and for everything that follows for the same record in program order: a
function that is called after a stateful operator must also be called after it with a prefix. A record therefore passes its functions in
the same order with any number of threads. Branches are mutually exclusive, so the prefix ends separately in each branch.

**Caches.** See ``millstream.core.engine.caching``. A table has a cache if a store keeps it and it forwards a change with each update.
Exceptions are versioned tables, because all their versions count; aggregations that emit on window close, which emit each result only
once; and joined streams, whose records are not updates of each other. The aggregations of a cogroup share one cache, downstream of
them.

Source: the stores that Kafka Streams wraps in a caching store (``Materialized.withCachingEnabled``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from millstream.core.model.expressions import Expression
from millstream.core.topology import nodes as n
from millstream.core.topology.nodes import Late
from millstream.core.topology.plan import SubTopology
from millstream.core.topology.stores import VersionedSpec


@dataclass(frozen=True)
class Border(n.Node):
    """An end of a prefix. Records that reach it continue at the node of this name, in the main thread of the task."""


_FUNCTIONS: Mapping[type[n.Node], Callable[[Any], tuple[object, ...]]] = {
    n.Filter: lambda node: (node.predicate,),
    n.WithKey: lambda node: (),
    n.Map: lambda node: (node.mapper,),
    n.MapValues: lambda node: (node.mapper,),
    n.SelectKey: lambda node: (node.mapper,),
    n.FlatMap: lambda node: (node.mapper,),
    n.FlatMapValues: lambda node: (node.mapper,),
    n.Peek: lambda node: (node.action,),
    n.Pass: lambda node: (),
    n.Branch: lambda node: node.predicates,
    n.Sink: lambda node: (node.topic, node.partitioner),
}
"""The types of nodes allowed in a prefix, with the functions that each may call."""


def prefix_of(sub: SubTopology, source: n.Source) -> SubTopology | None:
    """Return the prefix of a source, as a separate sub-topology that ends in borders.

    Returns:
        The prefix, or None if it calls no user function, so that threads would bring no benefit.

    Example:
        >>> import millstream as ms
        >>> builder = ms.StreamsBuilder()
        >>> table = builder.stream("in").map_values(str.upper).group_by_key().count()
        >>> (sub,) = builder.build().plan("app").subtopologies
        >>> [type(node).__name__ for node in prefix_of(sub, sub.sources[0]).nodes.values()]
        ['Source', 'MapValues', 'Border']
    """
    borders: frozenset[str] = frozenset()
    while (walk := _Walk(sub, source, borders)).borders != borders:
        borders = walk.borders
    inside = [sub.nodes[name] for name in walk.inside - borders]
    if not any(_calls_functions(node) for node in inside):
        return None
    return SubTopology(sub.id, {name: walk.node(name) for name in sub.nodes if name in walk.known_names}, {})


def calls_in_order(sub: SubTopology) -> bool:
    """Return whether a stateless sub-topology calls user functions, which must see the records of a partition in order.

    A timestamp extractor counts, because it receives the partition time. Expressions see one record at a time, and serdes do not depend
    on the order.

    Example:
        >>> import millstream as ms
        >>> def one_of(change):
        ...     builder = ms.StreamsBuilder()
        ...     change(builder.stream("in")).to("out")
        ...     return builder.build().plan("app").subtopologies[0]
        >>> calls_in_order(one_of(lambda stream: stream.map_values(str.upper)))
        True
        >>> calls_in_order(one_of(lambda stream: stream.filter(ms.col("amount") > 10)))
        False
    """
    return any(source.timestamp is not None for source in sub.sources) or any(
        type(node) not in _FUNCTIONS or _calls_functions(node)
        for node in sub.nodes.values()
        if not isinstance(node, n.Source)
    )


def _calls_functions(node: n.Node) -> bool:
    called = _FUNCTIONS[type(node)](node) if type(node) in _FUNCTIONS else ()
    return any(callable(function) and not isinstance(function, Expression) for function in called)


class _Walk:
    """A traversal of a prefix in program order.

    A node with several parents may be inside the prefix on one path and beyond its end on another. It then becomes a border, and the
    traversal is repeated until no such node is left.
    """

    def __init__(self, sub: SubTopology, source: n.Source, borders: frozenset[str]) -> None:
        self._sub = sub
        self._source = source
        self._known_borders = borders
        self._reached_borders: set[str] = set(borders)
        self.inside: set[str] = set()
        self._children(source)
        self.borders = frozenset(self._reached_borders)

    @property
    def known_names(self) -> set[str]:
        """Names of the source, of the nodes inside the prefix, and of the borders reached."""
        return {self._source.name, *self.inside, *self._reached_borders}

    def node(self, name: str) -> n.Node:
        node = self._sub.nodes[name]
        return Border(name, node.parents) if name in self.borders else node

    def _children(self, node: n.Node) -> bool:
        """Visit the children of a node; return whether the prefix has ended for the nodes that follow in program order."""
        if isinstance(node, n.Branch):
            ends = [self._visit(child, ended=False) for child in self._sub.children(node.name)]
            return any(ends)
        ended = False
        for child in self._sub.children(node.name):
            ended = self._visit(child, ended=ended)
        return ended

    def _visit(self, node: n.Node, *, ended: bool) -> bool:
        if ended or type(node) not in _FUNCTIONS or node.name in self._known_borders:
            self._reached_borders.add(node.name)
            return True
        self.inside.add(node.name)
        return self._children(node)


def cached_tables(sub: SubTopology) -> tuple[n.Materialised, ...]:
    return tuple(
        node for node in sub.nodes.values() if isinstance(node, n.Materialised) and _is_cached(node, sub)
    )


def heights_of(sub: SubTopology, cached: Collection[str]) -> Mapping[str, int]:
    """Return the height of each node: the largest number of cached nodes on a path downstream from it, including the node."""
    heights: dict[str, int] = {}
    for name in reversed(list(sub.nodes)):
        below = max((heights[child.name] for child in sub.children(name)), default=0)
        heights[name] = below + (name in cached)
    return heights


def _is_cached(node: n.Materialised, sub: SubTopology) -> bool:
    emit = getattr(node, "emit", None)
    if not node.store.cache or isinstance(node.store, VersionedSpec) or (emit is not None and emit.at_close):
        return False
    children = [child for child in sub.children(node.name) if not isinstance(child, Late)]
    return bool(children) and not any(isinstance(child, n.Cogroup) for child in children)
