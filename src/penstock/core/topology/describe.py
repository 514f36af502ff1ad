"""A plan as text: as Kafka Streams writes it, and what an application reads, keeps and writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from penstock.core.topology.internal import COMMITS_CONFIG, changelog_config, repartition_config
from penstock.core.topology.nodes import Sink
from penstock.core.topology.walk import Shape, parts_of

if TYPE_CHECKING:
    from penstock.core.topology.layout import Layout
    from penstock.core.topology.specs import StoreSpec
    from penstock.core.topology.split import Plan, SubTopology


def text(plan: Plan) -> str:
    """Describe a plan in the words of ``TopologyDescription.toString``; expressions, which it does not know, have their own."""
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
    """Sort nodes as Kafka Streams does (``InternalTopologyBuilder.NODE_COMPARATOR``): by how much is behind them, then by name."""
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


def plan_text(plan: Plan) -> str:
    """Say what an application will read, keep and write."""
    return "\n".join([f"Application {plan.application_id}", *_plan_lines(plan, {})])


def short_lines(plan: Plan, layout: Layout) -> list[str]:
    """Say in one line per sub-topology what an application reads, keeps and writes.

    Args:
        plan: The plan.
        layout: Its tasks.
    """
    tasks = Counter(task.subtopology for task in layout.tasks)
    return [
        f"sub-topology {sub.id} ({_counted(tasks[sub.id], 'task') if tasks[sub.id] else 'before the shuffle'}): "
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
    """Say what an application that is about to start reads, keeps and writes, in how many tasks and partitions.

    Args:
        plan: The plan.
        layout: Its tasks and numbers of partitions.
        group: The consumer group.
        commits: Partitions of the topic of commits, 0 if there is none.
        given: What the user adds to the configuration of internal topics.
    """
    given = given or {}
    tasks = Counter(task.subtopology for task in layout.tasks)
    notes = {sub.id: f", {_counted(tasks[sub.id], 'task')}" for sub in plan.subtopologies}
    lines = [f"Application {plan.application_id} (consumer group {group})", *_plan_lines(plan, notes, layout)]
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
    told = ", ".join(f"{name}={value}" for name, value in config.items())
    return f"  internal topic {topic} ({_counted(partitions, 'partition')}, {told})"


def _plan_lines(plan: Plan, notes: Mapping[int, str], layout: Layout | None = None) -> list[str]:
    lines: list[str] = []
    for sub in (sub for sub in plan.subtopologies if sub.nodes):
        where = "before the shuffle" if plan.runs_before_shuffle(sub) else "one task per partition group"
        lines.append(f"  sub-topology {sub.id} ({where}{notes.get(sub.id, '')})")
        lines.extend(f"    reads  {topic}{_how(plan, topic, layout)}" for topic in sub.source_topics)
        patterns = (source.pattern for source in sub.sources if source.pattern is not None)
        lines.extend(f"    reads  topics that match {pattern.pattern}" for pattern in patterns)
        lines.extend(f"    keeps  {store.name} ({_kept(plan, store)})" for store in sub.stores.values())
        for node in sub.nodes.values():
            if isinstance(node, Sink):
                topic = node.topic if isinstance(node.topic, str) else "topics chosen per record"
                lines.append(f"    writes {topic}{_how(plan, topic, None)}")
    for part in plan.global_parts:
        lines.append(f"  sub-topology {part.id} (for a global store, read by every task)")
        lines.extend(f"    reads  {topic}" for topic in part.source_topics)
        lines.extend(f"    keeps  {store.name} ({_kept(plan, store)})" for store in part.stores.values())
    return lines


def _kept(plan: Plan, store: StoreSpec) -> str:
    notes = [store.fingerprint]
    if store.engine is not None:
        notes.append(f"engine {store.engine}")
    if store.name in plan.changelogs:
        notes.append(f"changelog {plan.changelogs[store.name]}")
    return ", ".join(notes)


def _how(plan: Plan, topic: str, layout: Layout | None) -> str:
    internal = plan.internal_topics.get(topic)
    notes = [] if internal is None else ["Spark's shuffle" if internal.through_shuffle else "internal topic"]
    if layout is not None:
        notes.append(_counted(layout.partitions[topic], "partition"))
    return f" ({', '.join(notes)})" if notes else ""


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"
