"""Naming: which names of state and of internal topics were generated, for applications that insist on names of their own.

A generated name holds the number of its operator in the program (``KSTREAM-COUNT-0000000002``), so it becomes another one
when an operator is inserted in front, and what was kept under it is not found again. Names that are made from the name of a
topic (``orders-table``), or from a name that was given, are not generated: they stay.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from penstock.core.model.errors import TopologyError
from penstock.core.plan.nodes import Node, Repartition, Source
from penstock.core.plan.topology import Topology


def demand_explicit_names(topology: Topology, generated: Collection[str]) -> None:
    """Refuse a topology that would keep something under a generated name.

    Args:
        topology: The topology.
        generated: The names of nodes that were generated.

    Raises:
        TopologyError: If a store or an internal topic has a name that begins with one of these. It names each of them, with its
            operator and what to give it.
    """
    found = [*_stores(topology.nodes, generated), *_topics(topology.nodes, generated)]
    if found:
        listed = "\n  ".join(found)
        raise TopologyError(
            "build(explicit_names=True) insists on names of your own, but these would be generated, and would become others "
            f"when an operator is inserted in front of them:\n  {listed}"
        )


def _stores(nodes: Mapping[str, Node], generated: Collection[str]) -> Iterator[str]:
    told: set[str] = set()
    for node in nodes.values():
        for store in node.store_names:
            operator = _generated_in(store, generated)
            if operator is not None and store not in told:
                told.add(store)
                advice = "give the operator store='...' (a join also takes name='...')"
                yield f"store {store!r} of operator {operator}, {_behind(nodes, node)}: {advice}"


def _topics(nodes: Mapping[str, Node], generated: Collection[str]) -> Iterator[str]:
    for node in nodes.values():
        if isinstance(node, Repartition):
            operator = _generated_in(node.topic_name, generated)
            if operator is not None:
                advice = "give the grouping, the repartition or the join name='...'"
                yield f"internal topic {node.topic_name!r} of operator {operator}, {_behind(nodes, node)}: {advice}"


def _generated_in(name: str, generated: Collection[str]) -> str | None:
    return next((node for node in generated if name == node or name.startswith(f"{node}-")), None)


def _behind(nodes: Mapping[str, Node], node: Node) -> str:
    topics = dict.fromkeys(_topics_read(nodes, node))
    return f"behind topic{'s' if len(topics) > 1 else ''} {', '.join(map(repr, topics))}"


def _topics_read(nodes: Mapping[str, Node], node: Node) -> Iterator[str]:
    if isinstance(node, Source):
        yield from node.topics if node.pattern is None else [node.pattern.pattern]
    for parent in node.parents:
        yield from _topics_read(nodes, nodes[parent])
