"""Explicit names: applications that require names in the program for their state and their internal topics.

A generated name depends on the program, through a path or a number (``millstream.core.dsl.naming``). If an edit changes it, the state
under the old name is not found again. Names in the program, and those derived from them, do not change. Global tables are filled from
their topics, whatever the names of their stores are, so they need none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from millstream.core.model.errors import TopologyError
from millstream.core.topology.global_nodes import GlobalTable
from millstream.core.topology.nodes import Node, Repartition, Source
from millstream.core.topology.topology import Topology


def check_explicit_names(topology: Topology, generated: Collection[str]) -> None:
    """Reject a topology with generated names.

    Args:
        topology: The topology.
        generated: The generated names of stores and of internal topics.

    Raises:
        TopologyError: If a store or an internal topic has such a name. It lists each of them, with its operator and the argument to
            give.
    """
    unnamed = [*_stores(topology.nodes, generated), *_topics(topology.nodes, generated)]
    if unnamed:
        listed = "\n  ".join(unnamed)
        raise TopologyError(
            "build(explicit_names=True) requires explicit names, but these names would be generated, and may change "
            f"when the program is edited:\n  {listed}"
        )


def _stores(nodes: Mapping[str, Node], generated: Collection[str]) -> Iterator[str]:
    seen: set[str] = set()
    for node in nodes.values():
        for store in () if isinstance(node, GlobalTable) else node.store_names:
            if store in generated and store not in seen:
                seen.add(store)
                advice = "give the operator store='...' (a join also takes name='...')"
                yield f"store {store!r} of operator {node.name}, {_behind(nodes, node)}: {advice}"


def _topics(nodes: Mapping[str, Node], generated: Collection[str]) -> Iterator[str]:
    for node in nodes.values():
        if isinstance(node, Repartition) and node.topic_name in generated:
            advice = "give the grouping, the repartition or the join name='...'"
            yield f"internal topic {node.topic_name!r}, {_behind(nodes, node)}: {advice}"


def _behind(nodes: Mapping[str, Node], node: Node) -> str:
    topics = dict.fromkeys(_topics_read(nodes, node))
    return f"downstream of topic{'s' if len(topics) > 1 else ''} {', '.join(map(repr, topics))}"


def _topics_read(nodes: Mapping[str, Node], node: Node) -> Iterator[str]:
    if isinstance(node, Source):
        yield from node.topics if node.pattern is None else [node.pattern.pattern]
    for parent in node.parents:
        yield from _topics_read(nodes, nodes[parent])
