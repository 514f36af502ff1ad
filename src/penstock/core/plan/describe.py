"""Pictures of a plan: text as Kafka Streams writes it, Mermaid, DOT, and HTML for notebooks."""

from __future__ import annotations

import html as _html
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.core.plan.internal import COMMITS_CONFIG, REPARTITION_CONFIG, changelog_config
from penstock.core.plan.nodes import Node, Sink, Source

if TYPE_CHECKING:
    from penstock.core.plan.layout import Layout
    from penstock.core.plan.specs import StoreSpec
    from penstock.core.plan.split import Plan, SubTopology


def text(plan: Plan) -> str:
    """Describe a plan in the words of ``TopologyDescription.toString``."""
    lines = ["Topologies:"]
    for sub in _present(plan):
        lines.extend(["", f"  Sub-topology: {sub.id}"] if sub.id else [f"   Sub-topology: {sub.id}"])
        for node in sub.nodes.values():
            lines.extend(_node_lines(sub, node))
    for part in plan.global_parts:
        lines.extend(["", f"  Sub-topology: {part.id} for global store (will not generate tasks)"])
        for node in part.nodes.values():
            lines.extend(_node_lines(part, node))
    return "\n".join(lines)


def _node_lines(sub: SubTopology, node: Node) -> list[str]:
    after = ", ".join(child.name for child in sub.children(node.name)) or "none"
    before = ", ".join(node.parents) or "none"
    if isinstance(node, Source):
        return [f"    Source: {node.name} (topics: [{', '.join(node.topics)}])", f"      --> {after}"]
    if isinstance(node, Sink):
        topic = f"topic: {node.topic}" if isinstance(node.topic, str) else "extractor class: function"
        return [f"    Sink: {node.name} ({topic})", f"      <-- {before}"]
    stores = ", ".join(node.store_names)
    return [f"    Processor: {node.name} (stores: [{stores}])", f"      --> {after}", f"      <-- {before}"]


def plan_text(plan: Plan) -> str:
    """Say what an application will read, keep and write."""
    return "\n".join([f"Application {plan.application_id}", *_plan_lines(plan, {})])


def started_text(plan: Plan, layout: Layout, group: str, commits: int = 0) -> str:
    """Say what an application that is about to start reads, keeps and writes, in how many tasks and partitions.

    Args:
        plan: The plan.
        layout: Its tasks and numbers of partitions.
        group: The consumer group.
        commits: Partitions of the topic of commits, 0 if there is none.
    """
    tasks = Counter(task.subtopology for task in layout.tasks)
    notes = {sub.id: f", {_counted(tasks[sub.id], 'task')}" for sub in plan.subtopologies}
    lines = [f"Application {plan.application_id} (consumer group {group})", *_plan_lines(plan, notes, layout)]
    for topic in plan.internal_topics.values():
        if not topic.through_shuffle:
            lines.append(_internal(topic.name, layout.partitions[topic.name], REPARTITION_CONFIG))
    for sub in plan.subtopologies:
        for store in sub.stores.values():
            if store.name in plan.changelogs:
                lines.append(_internal(plan.changelogs[store.name], tasks[sub.id], changelog_config(store)))
    if commits:
        lines.append(_internal(plan.commits_topic, commits, COMMITS_CONFIG))
    return "\n".join(lines)


def _internal(topic: str, partitions: int, config: Mapping[str, str]) -> str:
    told = ", ".join(f"{name}={value}" for name, value in config.items())
    return f"  internal topic {topic} ({_counted(partitions, 'partition')}, {told})"


def _plan_lines(plan: Plan, notes: Mapping[int, str], layout: Layout | None = None) -> list[str]:
    lines: list[str] = []
    for sub in _present(plan):
        where = "before the shuffle" if plan.runs_before_shuffle(sub) else "one task per partition group"
        lines.append(f"  sub-topology {sub.id} ({where}{notes.get(sub.id, '')})")
        lines.extend(f"    reads  {topic}{_how(plan, topic, layout)}" for topic in sub.source_topics)
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


def _present(plan: Plan) -> list[SubTopology]:
    """Give the sub-topologies but those that only keep the number of a part that is gone."""
    return [sub for sub in plan.subtopologies if sub.nodes]


def mermaid(plan: Plan) -> str:
    """Draw a plan as a Mermaid flow chart."""
    lines = ["flowchart TB"]
    ids: dict[str, str] = {}

    def id_of(name: str) -> str:
        return ids.setdefault(name, f"n{len(ids)}")

    for sub in (*_present(plan), *plan.global_parts):
        lines.append(f"  subgraph sub{sub.id}[Sub-topology {sub.id}]")
        lines.extend(f'    {id_of(node.name)}["{node.name}"]' for node in sub.nodes.values())
        lines.extend(f'    {id_of("store:" + store)}[("{store}")]' for store in sub.stores)
        lines.append("  end")
    lines.extend(f"  {id_of(a)} {'-.-' if dashed else '-->'} {id_of(b)}" for a, b, dashed in _edges(plan))
    return "\n".join(lines)


def dot(plan: Plan) -> str:
    """Draw a plan in Graphviz' DOT language."""
    lines = ["digraph topology {", "  node [shape=box];"]
    for sub in (*_present(plan), *plan.global_parts):
        lines.append(f'  subgraph cluster_{sub.id} {{ label="Sub-topology {sub.id}";')
        lines.extend(f'    "{node.name}";' for node in sub.nodes.values())
        lines.extend(f'    "store:{store}" [shape=cylinder, label="{store}"];' for store in sub.stores)
        lines.append("  }")
    lines.extend(f'  "{a}" -> "{b}"{" [style=dashed]" if dashed else ""};' for a, b, dashed in _edges(plan))
    return "\n".join([*lines, "}"])


def html(plan: Plan) -> str:
    """Show a plan in a notebook."""
    return f"<pre>{_html.escape(text(plan))}</pre>"


def _edges(plan: Plan) -> list[tuple[str, str, bool]]:
    edges: list[tuple[str, str, bool]] = []
    readers = {
        topic: source.name
        for sub in (*plan.subtopologies, *plan.global_parts)
        for source in sub.sources
        for topic in source.topics
    }
    for sub in (*_present(plan), *plan.global_parts):
        for node in sub.nodes.values():
            edges.extend((parent, node.name, False) for parent in node.parents)
            edges.extend((node.name, f"store:{store}", True) for store in node.store_names)
            edges.extend((f"store:{store}", node.name, True) for store in node.global_store_names)
            if isinstance(node, Sink) and isinstance(node.topic, str) and node.topic in readers:
                edges.append((node.name, readers[node.topic], False))
    return edges
