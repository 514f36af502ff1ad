"""Combinable: decides whether the records of a key may be combined before they reach the task.

A reader may send a task one record for all records of a key that it has read together, if the task computes nothing from them but a
built-in aggregation, and forwards only the last result of each key. See ``millstream.core.engine.records.combining``.
"""

from __future__ import annotations

from millstream.core.topology import nodes as n
from millstream.core.topology.analysis.threads_and_caches import cached_tables
from millstream.core.topology.plan import SubTopology


def combined_aggregation(sub: SubTopology) -> n.Aggregate | None:
    """Return the aggregation whose records readers may combine, if the application has caches; None if there is none.

    This is a count, sum, minimum, maximum or mean directly downstream of the only source. All other nodes are stateless, so they see only
    the results that the cache forwards. The source reads one topic, and its records have their own timestamps. The store has no changelog
    topic, because a task that is rebuilt from one may begin in the middle of a piece.

    Example:
        >>> import millstream as ms
        >>> def combined(aggregate):
        ...     builder = ms.StreamsBuilder()
        ...     aggregate(builder.stream("in").group_by_key()).to_stream().to("out")
        ...     (sub,) = builder.build().plan("app").subtopologies
        ...     return combined_aggregation(sub) is not None
        >>> combined(lambda grouped: grouped.count())
        True
        >>> combined(lambda grouped: grouped.reduce(max))
        False
    """
    if len(sub.sources) != 1 or not _reads_plainly(sub.sources[0]):
        return None
    keepers = tuple(node for node in sub.nodes.values() if not node.pure)
    if len(keepers) != 1 or sub.children(sub.sources[0].name) != keepers:
        return None
    (node,) = keepers
    if not isinstance(node, n.Aggregate) or node.fold is None or node.store.changelog == "kafka":
        return None
    return node if node in cached_tables(sub) else None


def _reads_plainly(source: n.Source) -> bool:
    return (
        len(source.topics) == 1
        and source.pattern is None
        and source.timestamp is None
        and not (source.key.contextual or source.value.contextual)
    )
