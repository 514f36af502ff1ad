"""Which tables of a sub-topology have a cache, and which of them are flushed before which.

What a cache is, is said in ``penstock.core.engine.caching``. A table has one if it is kept in a store and forwards a change
with each update. Versioned tables have none, since all their versions count; nor have aggregations that give results at the
close of windows, which give each once anyway; nor have streams that are joined, whose records are no updates of each other.
The aggregations of a cogroup have one in common, behind them.

Source: the stores that Kafka Streams wraps in a caching store (``Materialized.withCachingEnabled``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from penstock.core.topology import nodes as n
from penstock.core.topology.late import Late
from penstock.core.topology.specs import VersionedSpec

if TYPE_CHECKING:
    from penstock.core.topology.split import SubTopology


def cached_tables(sub: SubTopology) -> tuple[n.Materialised, ...]:
    """Give the nodes whose updates may wait in a cache.

    Args:
        sub: The sub-topology.
    """
    return tuple(
        node for node in sub.nodes.values() if isinstance(node, n.Materialised) and _is_cached(node, sub)
    )


def heights_of(sub: SubTopology, cached: Collection[str]) -> Mapping[str, int]:
    """Give the height of each node: the most cached ones that follow one another behind it, itself included.

    Args:
        sub: The sub-topology.
        cached: The names of the nodes that have a cache.
    """
    heights: dict[str, int] = {}
    for name in reversed(list(sub.nodes)):
        behind = max((heights[child.name] for child in sub.children(name)), default=0)
        heights[name] = behind + (name in cached)
    return heights


def _is_cached(node: n.Materialised, sub: SubTopology) -> bool:
    emit = getattr(node, "emit", None)
    if not node.store.cache or isinstance(node.store, VersionedSpec) or (emit is not None and emit.at_close):
        return False
    children = [child for child in sub.children(node.name) if not isinstance(child, Late)]
    return bool(children) and not any(isinstance(child, n.Cogroup) for child in children)
