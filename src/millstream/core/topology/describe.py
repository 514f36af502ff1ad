"""A plan as text, in the format of Kafka Streams, and the *parts* and *shapes* that the text and the drawings share.

A *shape* is a node in a picture: its kind, the topics it reads or writes, its stores, parents and children. A *part* is a
sub-topology, or the nodes that fill a global store. Text, Mermaid, DOT and SVG are all derived from the same parts, so they agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from millstream.core.model.expressions import Expression
from millstream.core.topology.internal import COMMITS_CONFIG, changelog_config, repartition_config
from millstream.core.topology.layout import Layout
from millstream.core.topology.nodes import Cogroup, Node, Sink, Source
from millstream.core.topology.plan import Plan, SubTopology, counted, plan_lines


def text(plan: Plan) -> str:
    """Describe a plan in the format of ``TopologyDescription.toString``, with additional lines for expressions."""
    lines = ["Topologies:"]
    for part in parts_of(plan):
        note = " for global store (will not generate tasks)" if part.fills_global_store else ""
        lines.extend(
            ["", f"  Sub-topology: {part.number}{note}"] if part.number else [f"   Sub-topology: 0{note}"]
        )
        for shape in _larger_first(part.shapes):
            lines.extend(_shape_lines(shape))
    return "\n".join(lines)


def _larger_first(shapes: tuple[Shape, ...]) -> list[Shape]:
    """Sort nodes as Kafka Streams does (``InternalTopologyBuilder.NODE_COMPARATOR``): by number of descendants, then by name."""
    sizes: dict[str, int] = {}
    for shape in reversed(shapes):
        sizes[shape.name] = 1 + sum(sizes[child] for child in shape.after)
    return sorted(shapes, key=lambda shape: (-sizes[shape.name], shape.name))


def _shape_lines(shape: Shape) -> list[str]:
    after = f"      --> {', '.join(shape.after) or 'none'}"
    before = f"      <-- {', '.join(shape.before) or 'none'}"
    if shape.kind == "Source":
        topics = shape.topics[0] if shape.pattern else f"[{', '.join(shape.topics)}]"
        return [f"    Source: {shape.name} (topics: {topics})", after]
    if shape.kind == "Sink":
        topic = f"topic: {shape.topics[0]}" if shape.topics else "extractor class: function"
        return [f"    Sink: {shape.name} ({topic})", before]
    computes = [f"      computes {shape.expression}"] if shape.expression else []
    stores = ", ".join(shape.stores)
    return [f"    Processor: {shape.name} (stores: [{stores}])", *computes, after, before]


def short_lines(plan: Plan, layout: Layout) -> list[str]:
    """Return one line per sub-topology with the topics and stores that an application reads, keeps and writes."""
    tasks = Counter(task.subtopology for task in layout.tasks)
    return [
        f"sub-topology {sub.id} ({counted(tasks[sub.id], 'task') if tasks[sub.id] else 'before the shuffle'}): "
        + "; ".join(_brief(plan, sub))
        for sub in plan.subtopologies
        if sub.nodes
    ]


def _brief(plan: Plan, sub: SubTopology) -> Iterator[str]:
    yield "reads " + ", ".join(
        [*sub.source_topics, *(f"/{s.pattern.pattern}/" for s in sub.sources if s.pattern is not None)]
    )
    if sub.stores:
        yield "keeps " + ", ".join(sub.stores)
    sinks = [node for node in sub.nodes.values() if isinstance(node, Sink)]
    written = dict.fromkeys(
        n.topic if isinstance(n.topic, str) else "topics chosen per record" for n in sinks
    )
    if written:
        yield "writes " + ", ".join(written)


def started_text(
    plan: Plan, layout: Layout, group: str, commits: int = 0, given: Mapping[str, str] | None = None
) -> str:
    """Describe what an application reads, keeps and writes as it starts, with the numbers of tasks and partitions.

    Args:
        commits: Number of partitions of the commits topic; 0 if there is none.
    """
    given = given or {}
    tasks = Counter(task.subtopology for task in layout.tasks)
    notes = {sub.id: f", {counted(tasks[sub.id], 'task')}" for sub in plan.subtopologies}
    lines = [
        f"Application {plan.application_id} (consumer group {group})",
        *plan_lines(plan, notes, layout.partitions),
    ]
    for topic in plan.internal_topics.values():
        if not topic.through_shuffle:
            lines.append(_internal(topic.name, layout.partitions[topic.name], repartition_config(given)))
    for sub in plan.subtopologies:
        for store in sub.stores.values():
            if store.name in plan.changelogs:
                lines.append(
                    _internal(plan.changelogs[store.name], tasks[sub.id], changelog_config(store, given))
                )
    if commits:
        lines.append(_internal(plan.commits_topic, commits, {**COMMITS_CONFIG, **given}))
    return "\n".join(lines)


def _internal(topic: str, partitions: int, config: Mapping[str, str]) -> str:
    entries = ", ".join(f"{name}={value}" for name, value in config.items())
    return f"  internal topic {topic} ({counted(partitions, 'partition')}, {entries})"


Kind = Literal["Source", "Processor", "Sink"]


@dataclass(frozen=True)
class Shape:
    """A node as text and drawings show it.

    Attributes:
        kind: The kind of node in Kafka Streams.
        topics: Topics that a source reads or a sink writes; empty if a function chooses the topic of each record.
        pattern: Whether ``topics`` consists of a single unresolved pattern.
        stores: Stores that the node keeps. The store of a cogroup is shown at its aggregations.
        reads: Global stores that the node reads.
        expression: The expression that the node computes, or empty.
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
    """A sub-topology, or the nodes that fill a global store.

    Attributes:
        fills_global_store: Whether the part fills a global store, so that no task runs it.
    """

    number: int
    fills_global_store: bool
    shapes: tuple[Shape, ...]
    stores: tuple[str, ...]


@dataclass(frozen=True)
class Line:
    """A line between two elements of a picture, each identified by kind and name.

    Attributes:
        start: ``("node", name)``, ``("store", name)`` or ``("topic", name)``.
        carries_records: Whether records pass along the line. If not, the line shows the use of a store.
    """

    start: tuple[str, str]
    end: tuple[str, str]
    carries_records: bool


def parts_of(plan: Plan) -> tuple[Part, ...]:
    """Return the parts of a plan, without those that only reserve the number of a removed sub-topology."""
    present = [(sub, False) for sub in plan.subtopologies if sub.nodes]
    filling = [(part, True) for part in plan.global_parts]
    return tuple(
        Part(sub.id, fills, tuple(_shape(sub, node) for node in sub.nodes.values()), tuple(sub.stores))
        for sub, fills in (*present, *filling)
    )


def topics_of(parts: tuple[Part, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(topic for part in parts for shape in part.shapes for topic in shape.topics))


def lines_of(parts: tuple[Part, ...]) -> Iterator[Line]:
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
