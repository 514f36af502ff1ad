"""Split: a topology becomes sub-topologies.

A *sub-topology* is a connected part of the graph, where nodes that share a store count as connected. A repartition is the
border between two of them: it becomes a sink to an internal topic in the one and a source of that topic in the other
(Kafka Streams: ``InternalTopologyBuilder.makeNodeGroups``).

A sub-topology is *stateless* when all its nodes are pure: no store, no processor of the user, no schedule. Such a part may
run where its records are read, before Spark's shuffle, and its repartitions are then Spark's shuffle; the repartitions of
any other part go through a Kafka topic (see docs/decisions/0003-repartition-through-the-shuffle.md).

The parts that fill global stores stand beside the sub-topologies, not among them: they make no tasks, so adding a global
table renumbers nothing (see docs/decisions/0032-global-stores-beside-the-tasks.md).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from penstock.core.model.errors import TopologyError
from penstock.core.topology import describe
from penstock.core.topology.asynchronous import kept_by
from penstock.core.topology.global_nodes import GlobalSource
from penstock.core.topology.internal import changelog_topic, commits_topic, repartition_topic
from penstock.core.topology.nodes import Node, Process, Repartition, Sink, Source, WithKey
from penstock.core.topology.patterns import mark_of
from penstock.core.topology.stores import StoreSpec


@dataclass(frozen=True)
class SubTopology:
    """A connected part of a topology: what one task runs.

    Attributes:
        id: Its number, in the order in which the parts were begun.
        nodes: The nodes by name, parents before children.
        stores: The stores by name.
        global_stores: The global stores that its nodes may read, by name.
    """

    id: int
    nodes: Mapping[str, Node]
    stores: Mapping[str, StoreSpec]
    global_stores: Mapping[str, StoreSpec] = field(default_factory=dict)

    @cached_property
    def sources(self) -> tuple[Source, ...]:
        """The nodes that read topics."""
        return tuple(node for node in self.nodes.values() if isinstance(node, Source))

    @cached_property
    def source_topics(self) -> tuple[str, ...]:
        """The topics read, internal ones included."""
        return tuple(topic for source in self.sources for topic in source.topics)

    @cached_property
    def origins(self) -> tuple[str, ...]:
        """The topics read, and the marks of the patterns that chose them."""
        patterns = (source.pattern for source in self.sources)
        return (*self.source_topics, *(mark_of(pattern) for pattern in patterns if pattern is not None))

    @cached_property
    def stateless(self) -> bool:
        """Whether every node is pure."""
        return all(node.pure for node in self.nodes.values())

    @cached_property
    def finishes_later(self) -> bool:
        """Whether a node finishes records after they were handed to it: it calls the world outside, or acknowledges."""
        return bool(kept_by(self.nodes.values()))

    def children(self, name: str) -> tuple[Node, ...]:
        """Give the nodes that a node hands its output to, in the order in which they were added."""
        return tuple(node for node in self.nodes.values() if name in node.parents)


@dataclass(frozen=True)
class InternalTopic:
    """A repartition topic.

    Attributes:
        name: ``<application id>-<name>-repartition``.
        partitions: The wanted number of partitions, None to take it from the topics around it.
        upstream: Sub-topology that sends to it.
        downstream: Sub-topology that reads it.
        through_shuffle: Whether it exists only as Spark's shuffle, not on the broker.
    """

    name: str
    partitions: int | None
    upstream: int
    downstream: int
    through_shuffle: bool


@dataclass(frozen=True)
class Plan:
    """A checked topology, split into sub-topologies.

    Attributes:
        application_id: What internal topics are named after.
        subtopologies: In the order of their numbers.
        internal_topics: Repartition topics by name.
        global_parts: What fills the global stores, numbered behind the sub-topologies.
    """

    application_id: str
    subtopologies: tuple[SubTopology, ...]
    internal_topics: Mapping[str, InternalTopic]
    global_parts: tuple[SubTopology, ...] = ()

    @cached_property
    def subtopology_of(self) -> Mapping[str, SubTopology]:
        """The sub-topology that reads each topic."""
        return {topic: sub for sub in self.subtopologies for topic in sub.source_topics}

    @cached_property
    def global_part_of(self) -> Mapping[str, SubTopology]:
        """The global part that reads each topic of a global store."""
        return {topic: part for part in self.global_parts for topic in part.source_topics}

    @cached_property
    def external_topics(self) -> tuple[str, ...]:
        """The topics read that must exist before the application starts."""
        return tuple(topic for topic in self.subtopology_of if topic not in self.internal_topics)

    @cached_property
    def has_patterns(self) -> bool:
        """Whether it depends on the cluster which topics are read."""
        return any(source.pattern is not None for sub in self.subtopologies for source in sub.sources)

    @cached_property
    def chosen_topics(self) -> frozenset[str]:
        """The topics that are read because a pattern matches them, not because the program names them."""
        sources = (source for sub in self.subtopologies for source in sub.sources if source.pattern)
        return frozenset(topic for source in sources for topic in source.topics)

    @cached_property
    def keepers(self) -> frozenset[str]:
        """Names of the stores that hold unfinished records of asynchronous operators."""
        return frozenset(
            store for sub in self.subtopologies for store in kept_by(sub.nodes.values()).values()
        )

    @cached_property
    def broker_topics(self) -> tuple[str, ...]:
        """The topics read from the broker, internal ones included."""
        through_shuffle = {topic.name for topic in self.internal_topics.values() if topic.through_shuffle}
        return tuple(topic for topic in self.subtopology_of if topic not in through_shuffle)

    @cached_property
    def repartition_topics(self) -> frozenset[str]:
        """The repartition topics that are on the broker, not in Spark's shuffle."""
        return frozenset(self.broker_topics).intersection(self.internal_topics)

    @cached_property
    def changelogs(self) -> Mapping[str, str]:
        """The changelog topic of each store that has one."""
        return {
            store.name: changelog_topic(self.application_id, store.name)
            for sub in self.subtopologies
            for store in sub.stores.values()
            if store.changelog == "kafka"
        }

    @property
    def purged_topics(self) -> tuple[str, ...]:
        """The internal topics on the broker that are deleted from as far as they have been processed."""
        return tuple(topic.name for topic in self.internal_topics.values() if not topic.through_shuffle)

    @property
    def commits_topic(self) -> str:
        """The internal topic that holds the marks of delivered batches, and the snapshots of tasks with changelogs."""
        return commits_topic(self.application_id)

    @cached_property
    def sink_topics(self) -> tuple[str, ...]:
        """The fixed names of topics that results are sent to, without internal ones."""
        names = (
            node.topic
            for sub in self.subtopologies
            for node in sub.nodes.values()
            if isinstance(node, Sink) and isinstance(node.topic, str)
        )
        return tuple(dict.fromkeys(name for name in names if name not in self.internal_topics))

    @cached_property
    def places_in_any_topic(self) -> bool:
        """Whether a sink chooses partitions of topics that a function names, so that any topic's number of partitions counts."""
        sinks = (node for sub in self.subtopologies for node in sub.nodes.values() if isinstance(node, Sink))
        return any(
            (sink.partitioner is not None or sink.window_bytes) and not isinstance(sink.topic, str)
            for sink in sinks
        )

    def runs_before_shuffle(self, sub: SubTopology) -> bool:
        """Tell whether a sub-topology runs where its records are read."""
        return sub.stateless and not any(
            self.internal_topics[topic].through_shuffle
            for topic in sub.source_topics
            if topic in self.internal_topics
        )

    def store_fingerprints(self) -> dict[str, str]:
        """Give per store what a restart must find unchanged: its sub-topology, kind and serdes."""
        return {
            store.name: f"sub-topology {sub.id}, {store.fingerprint}"
            for sub in self.subtopologies
            for store in sub.stores.values()
        }

    def __str__(self) -> str:
        return describe.plan_text(self)


def split(
    application_id: str,
    nodes: Mapping[str, Node],
    stores: Mapping[str, StoreSpec],
    *,
    through_shuffle: bool = True,
) -> Plan:
    """Split a graph of nodes into sub-topologies.

    Args:
        application_id: What internal topics are named after.
        nodes: Nodes by name, parents before children.
        stores: Stores by name.
        through_shuffle: Whether Spark's shuffle may take the place of repartition topics.

    Raises:
        TopologyError: If two repartitions have one name.
    """
    expanded = _expand_repartitions(application_id, nodes)
    groups: dict[bool, list[list[str]]] = {False: [], True: []}
    for names in _connected(expanded):
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
    return Plan(application_id, subs, internal, global_parts)


def _expand_repartitions(application_id: str, nodes: Mapping[str, Node]) -> dict[str, Node]:
    """Replace each repartition by (filter,) sink and source; children of the repartition follow the source."""
    expanded: dict[str, Node] = {}
    moved: dict[str, str] = {}
    joined = _in_front_of_joins_of_null_keys(nodes)
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
                    f"the name {part.name!r} is needed by repartition {node.name!r}; rename the other"
                )
            expanded[part.name] = part
    return expanded


def _in_front_of_joins_of_null_keys(nodes: Mapping[str, Node]) -> set[str]:
    """Return the names of the nodes behind which a left or outer join of a stream follows, however far (KIP-962)."""
    found: set[str] = set()
    for node in reversed(list(nodes.values())):
        if node.joins_null_keys or node.name in found:
            found.update(node.parents)
    return found


def _connected(nodes: Mapping[str, Node]) -> list[list[str]]:
    """Group the names of connected nodes; groups in the order of their first node (union-find)."""
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
    """Let a sub-topology read the global stores, if it has a node that can: a processor, or a join with one of them."""
    can = any(node.global_store_names or isinstance(node, Process) for node in sub.nodes.values())
    return dataclasses.replace(sub, global_stores=global_stores) if can else sub


def _internal_topics(
    application_id: str, nodes: Mapping[str, Node], subs: tuple[SubTopology, ...], *, allowed: bool
) -> dict[str, InternalTopic]:
    home = {name: sub for sub in subs for name in sub.nodes}
    internal: dict[str, InternalTopic] = {}
    ends = [
        (node, home[node.part_names[1]], home[node.part_names[2]])
        for node in nodes.values()
        if isinstance(node, Repartition)
    ]
    before: set[int] = set()
    behind: set[int] = set()
    for node, upstream, downstream in ends:
        topic = repartition_topic(application_id, node.topic_name)
        if topic in internal:
            raise TopologyError(
                f"two repartitions are called {node.topic_name!r}; give one of them another name=..."
            )
        # A query has one shuffle: what is before it cannot also be behind it.
        through_shuffle = upstream.stateless and upstream.id not in behind and downstream.id not in before
        through_shuffle = allowed and through_shuffle and upstream.id != downstream.id
        if through_shuffle:
            before.add(upstream.id)
            behind.add(downstream.id)
        internal[topic] = InternalTopic(topic, node.partitions, upstream.id, downstream.id, through_shuffle)
    return internal
