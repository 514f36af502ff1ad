"""Split: divide a topology into sub-topologies.

A *sub-topology* is a connected part of the graph, where nodes that share a store count as connected. A repartition is the border between
two sub-topologies: it becomes a sink to an internal topic in one and a source of that topic in the other (Kafka Streams:
``InternalTopologyBuilder.makeNodeGroups``).

A sub-topology is *stateless* if all its nodes are pure: no store, no user-defined processor, no schedule. A stateless sub-topology may
run where its records are read, before Spark's shuffle; its repartitions then become Spark's shuffle. The repartitions of any other
sub-topology use a Kafka topic (see docs/decisions/0003-repartition-through-the-shuffle.md).

The parts that fill global stores are separate from the sub-topologies. They form no tasks, so adding a global table renumbers nothing
(see docs/decisions/0032-global-stores-are-not-part-of-tasks.md).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from millstream.core.model.errors import TopologyError
from millstream.core.topology.global_nodes import GlobalSource
from millstream.core.topology.internal import repartition_topic
from millstream.core.topology.nodes import Node, Process, Repartition, Sink, Source, WithKey
from millstream.core.topology.plan import InternalTopic, Plan, SubTopology
from millstream.core.topology.stores import StoreSpec


def split(
    application_id: str,
    nodes: Mapping[str, Node],
    stores: Mapping[str, StoreSpec],
    *,
    through_shuffle: bool = True,
) -> Plan:
    """Split a graph of nodes into sub-topologies.

    Raises:
        TopologyError: If two repartitions have the same name.
    """
    expanded = _expand_repartitions(application_id, nodes)
    groups: dict[bool, list[list[str]]] = {False: [], True: []}
    for names in _connected_groups(expanded):
        groups[isinstance(expanded[names[0]], GlobalSource)].append(names)
    first = len(groups[False])
    global_parts = tuple(
        _subtopology(i, names, expanded, stores) for i, names in enumerate(groups[True], first)
    )
    readable = {name: spec for part in global_parts for name, spec in part.stores.items()}
    subs = tuple(
        _reading(_subtopology(i, names, expanded, stores), readable) for i, names in enumerate(groups[False])
    )
    internal = _internal_topics(application_id, nodes, subs, allowed=through_shuffle)
    return Plan(application_id, _with_reader(subs, readable), internal, global_parts)


def _expand_repartitions(application_id: str, nodes: Mapping[str, Node]) -> dict[str, Node]:
    """Replace each repartition by an optional filter, a sink and a source. Its children become children of the source."""
    expanded: dict[str, Node] = {}
    moved: dict[str, str] = {}
    joined = _upstream_of_null_key_joins(nodes)
    for node in nodes.values():
        parents = tuple(moved.get(parent, parent) for parent in node.parents)
        if not isinstance(node, Repartition):
            expanded[node.name] = dataclasses.replace(node, parents=parents)
            continue
        topic = repartition_topic(application_id, node.topic_name)
        parts: list[Node] = []
        dropping, sink, source = node.part_names
        if node.drop_null_keys and node.name not in joined:
            parts.append(WithKey(dropping, parents, node.count_null_keys))
            parents = (dropping,)
        parts.append(Sink(sink, parents, topic, node.key, node.value, node.partitioner))
        parts.append(Source(source, (), (topic,), node.key, node.value))
        moved[node.name] = parts[-1].name
        for part in parts:
            if part.name in nodes or part.name in expanded:
                raise TopologyError(
                    f"repartition {node.name!r} needs the name {part.name!r}, which another node has; rename that node"
                )
            expanded[part.name] = part
    return expanded


def _upstream_of_null_key_joins(nodes: Mapping[str, Node]) -> set[str]:
    """Return the names of the nodes with a left or outer join of a stream anywhere downstream (KIP-962)."""
    upstream: set[str] = set()
    for node in reversed(list(nodes.values())):
        if node.joins_null_keys or node.name in upstream:
            upstream.update(node.parents)
    return upstream


def _connected_groups(nodes: Mapping[str, Node]) -> list[list[str]]:
    """Group the names of connected nodes, in the order of the first node of each group (union-find)."""
    root: dict[str, str] = {}

    def find(name: str) -> str:
        while root.setdefault(name, name) != name:
            root[name] = root[root[name]]
            name = root[name]
        return name

    for node in nodes.values():
        find(node.name)
        for other in (*node.parents, *(f"store:{store}" for store in node.store_names)):
            root[find(other)] = find(node.name)
    groups: dict[str, list[str]] = {}
    for name in nodes:
        groups.setdefault(find(name), []).append(name)
    return list(groups.values())


def _subtopology(
    number: int, names: Iterable[str], nodes: Mapping[str, Node], stores: Mapping[str, StoreSpec]
) -> SubTopology:
    members = {name: nodes[name] for name in names}
    used = dict.fromkeys(store for node in members.values() for store in node.store_names)
    return SubTopology(number, members, {store: stores[store] for store in used})


def _reading(sub: SubTopology, global_stores: Mapping[str, StoreSpec]) -> SubTopology:
    """Add the global stores to a sub-topology if a node can read them: a processor, or a join with a global table."""
    can = any(node.global_store_names or isinstance(node, Process) for node in sub.nodes.values())
    return dataclasses.replace(sub, global_stores=global_stores) if can else sub


def _with_reader(
    subs: tuple[SubTopology, ...], global_stores: Mapping[str, StoreSpec]
) -> tuple[SubTopology, ...]:
    """Add global stores that no node reads to the first sub-topology with state, so that its tasks keep copies for queries.

    A stateless sub-topology gets none, because it could then not run before Spark's shuffle.
    """
    if any(sub.global_stores for sub in subs):
        return subs
    first = next((sub.id for sub in subs if not sub.stateless), None)
    return tuple(
        dataclasses.replace(sub, global_stores=global_stores) if sub.id == first else sub for sub in subs
    )


def _internal_topics(
    application_id: str, nodes: Mapping[str, Node], subs: tuple[SubTopology, ...], *, allowed: bool
) -> dict[str, InternalTopic]:
    sub_of = {name: sub for sub in subs for name in sub.nodes}
    internal: dict[str, InternalTopic] = {}
    ends = [
        (node, sub_of[node.part_names[1]], sub_of[node.part_names[2]])
        for node in nodes.values()
        if isinstance(node, Repartition)
    ]
    before_shuffle: set[int] = set()
    after_shuffle: set[int] = set()
    for node, upstream, downstream in ends:
        topic = repartition_topic(application_id, node.topic_name)
        if topic in internal:
            raise TopologyError(
                f"two repartitions have the name {node.topic_name!r}; set another name=... on one of them"
            )
        # A query has one shuffle: a part before it cannot also be after it.
        through_shuffle = (
            upstream.stateless and upstream.id not in after_shuffle and downstream.id not in before_shuffle
        )
        through_shuffle = allowed and through_shuffle and upstream.id != downstream.id
        if through_shuffle:
            before_shuffle.add(upstream.id)
            after_shuffle.add(downstream.id)
        internal[topic] = InternalTopic(topic, node.partitions, upstream.id, downstream.id, through_shuffle)
    return internal
