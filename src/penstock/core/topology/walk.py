"""The walk over a plan that every picture of it is made from.

A *shape* is a node as a picture shows it: its kind, the topics it reads or writes, its stores, what comes before and after it. A
*part* is a sub-topology, or what fills a global store. Text, Mermaid, DOT and SVG are four ways to write the same parts,
so none of them can show what the others leave out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from penstock.core.model.expressions import Expression
from penstock.core.topology.nodes import Cogroup, Node, Sink, Source

if TYPE_CHECKING:
    from penstock.core.topology.split import Plan, SubTopology

Kind = Literal["Source", "Processor", "Sink"]


@dataclass(frozen=True)
class Shape:
    """A node.

    Attributes:
        name: Its name.
        kind: What Kafka Streams calls it.
        topics: What a source reads; what a sink writes, nothing if a function chooses per record.
        pattern: What the names of the topics of a source match, if it has a pattern that was not resolved; it is its only topic.
        stores: The stores it keeps; that of a cogroup is shown at its aggregations.
        reads: The global stores it asks.
        before: Names of its parents.
        after: Names of its children.
        expression: What it computes, if that is an expression; else nothing.
    """

    name: str
    kind: Kind
    topics: tuple[str, ...]
    stores: tuple[str, ...]
    reads: tuple[str, ...]
    before: tuple[str, ...]
    after: tuple[str, ...]
    expression: str = ""
    pattern: bool = False


@dataclass(frozen=True)
class Part:
    """A sub-topology, or what fills a global store.

    Attributes:
        number: Its number.
        fills_global_store: Whether no task runs it.
        shapes: Its nodes, parents before children.
        stores: The stores it keeps.
    """

    number: int
    fills_global_store: bool
    shapes: tuple[Shape, ...]
    stores: tuple[str, ...]


@dataclass(frozen=True)
class Line:
    """A line between two things of a picture, each given by kind and name.

    Attributes:
        start: Where it begins: ``("node", name)``, ``("store", name)`` or ``("topic", name)``.
        end: Where it ends.
        carries_records: Whether records go along it; else it says who uses a store.
    """

    start: tuple[str, str]
    end: tuple[str, str]
    carries_records: bool


def parts_of(plan: Plan) -> tuple[Part, ...]:
    """Give the parts of a plan but those that only keep the number of one that is gone."""
    present = [(sub, False) for sub in plan.subtopologies if sub.nodes]
    filling = [(part, True) for part in plan.global_parts]
    return tuple(
        Part(sub.id, fills, tuple(_shape(sub, node) for node in sub.nodes.values()), tuple(sub.stores))
        for sub, fills in (*present, *filling)
    )


def topics_of(parts: tuple[Part, ...]) -> tuple[str, ...]:
    """Give every topic that is read or written, once."""
    return tuple(dict.fromkeys(topic for part in parts for shape in part.shapes for topic in shape.topics))


def lines_of(parts: tuple[Part, ...]) -> Iterator[Line]:
    """Give the lines between nodes, stores and topics."""
    for part in parts:
        for shape in part.shapes:
            node = ("node", shape.name)
            if shape.kind == "Source":
                yield from (Line(("topic", topic), node, True) for topic in shape.topics)
            yield from (Line(("node", parent), node, True) for parent in shape.before)
            yield from (Line(node, ("store", store), False) for store in shape.stores)
            yield from (Line(("store", store), node, False) for store in shape.reads)
            if shape.kind == "Sink":
                yield from (Line(node, ("topic", topic), True) for topic in shape.topics)


def _shape(sub: SubTopology, node: Node) -> Shape:
    kind: Kind = "Processor"
    topics: tuple[str, ...] = ()
    pattern = False
    if isinstance(node, Source):
        kind, topics = "Source", node.topics
        if node.pattern is not None and not topics:
            topics, pattern = (node.pattern.pattern,), True
    elif isinstance(node, Sink):
        kind, topics = "Sink", (node.topic,) if isinstance(node.topic, str) else ()
    after = tuple(child.name for child in sub.children(node.name))
    return Shape(
        node.name,
        kind,
        topics,
        () if isinstance(node, Cogroup) else tuple(node.store_names),
        tuple(node.global_store_names),
        node.parents,
        after,
        _expression(node),
        pattern,
    )


def _expression(node: Node) -> str:
    function = getattr(node, "predicate", getattr(node, "mapper", None))
    return repr(function) if isinstance(function, Expression) else ""
