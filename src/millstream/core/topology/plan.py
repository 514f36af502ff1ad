"""The plan: a checked topology, split into sub-topologies, and its description."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from millstream.core.fanout.epochs import primary_of
from millstream.core.model.answers import DeadLetter
from millstream.core.model.calls import Calls
from millstream.core.model.ids import TaskId, TopicPartition
from millstream.core.model.partitioning import KeyRange
from millstream.core.topology.async_nodes import (
    Asynchronous,
    IssuingProcess,
    kinds_of_unfinished,
    unfinished_stores,
)
from millstream.core.topology.internal import changelog_topic, commits_topic
from millstream.core.topology.nodes import Node, Sink, Source
from millstream.core.topology.patterns import mark_of
from millstream.core.topology.stores import StoreSpec


@dataclass(frozen=True)
class SubTopology:
    """A connected part of a topology, which one task runs.

    Attributes:
        global_stores: The global stores that its nodes may read, by name.
        ranges: Number of key ranges into which each of its partition groups is divided. Each range is a task.
    """

    id: int
    nodes: Mapping[str, Node]
    stores: Mapping[str, StoreSpec]
    global_stores: Mapping[str, StoreSpec] = field(default_factory=dict)
    ranges: int = 1

    @cached_property
    def sources(self) -> tuple[Source, ...]:
        return tuple(node for node in self.nodes.values() if isinstance(node, Source))

    @cached_property
    def source_topics(self) -> tuple[str, ...]:
        return tuple(topic for source in self.sources for topic in source.topics)

    @cached_property
    def fan_outs(self) -> Mapping[str, TopicPartition]:
        """The split partition whose records are in each fan-out topic that it reads."""
        named = {
            topic: primary_of(topic) for source in self.sources if source.fan_out for topic in source.topics
        }
        return {topic: split for topic, split in named.items() if split is not None and split.topic in named}

    @cached_property
    def grouped_topics(self) -> tuple[str, ...]:
        """The topics whose partitions form its tasks. Fan-out topics belong to the task of the partition that was split."""
        return tuple(topic for topic in self.source_topics if topic not in self.fan_outs)

    @cached_property
    def origins(self) -> tuple[str, ...]:
        """The topics that it reads, and the marks of the patterns that match them."""
        patterns = (source.pattern for source in self.sources)
        return (*self.source_topics, *(mark_of(pattern) for pattern in patterns if pattern is not None))

    @cached_property
    def stateless(self) -> bool:
        return all(node.pure for node in self.nodes.values())

    @cached_property
    def finishes_later(self) -> bool:
        """Whether a node may finish records later than it receives them, because it makes calls or acknowledges records."""
        return bool(unfinished_stores(self.nodes.values()))

    @cached_property
    def changelogs(self) -> tuple[str, ...]:
        return tuple(name for name, store in self.stores.items() if store.changelog == "kafka")

    def key_range(self, task: TaskId) -> KeyRange | None:
        """Return the key range of one of its tasks, or None if it is not divided."""
        return None if self.ranges == 1 else KeyRange(task.partition % self.ranges, self.ranges)

    def children(self, name: str) -> tuple[Node, ...]:
        """Return the children of a node, in the order in which they were added."""
        return tuple(node for node in self.nodes.values() if name in node.parents)


@dataclass(frozen=True)
class InternalTopic:
    """A repartition topic.

    Attributes:
        name: ``<application id>-<name>-repartition``.
        partitions: The requested number of partitions; None derives it from other topics.
        through_shuffle: Whether the topic exists only as Spark's shuffle, not on the broker.
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
        global_parts: The parts that fill global stores, numbered after the sub-topologies.
    """

    application_id: str
    subtopologies: tuple[SubTopology, ...]
    internal_topics: Mapping[str, InternalTopic]
    global_parts: tuple[SubTopology, ...] = ()

    @cached_property
    def subtopology_of(self) -> Mapping[str, SubTopology]:
        return {topic: sub for sub in self.subtopologies for topic in sub.source_topics}

    @cached_property
    def global_part_of(self) -> Mapping[str, SubTopology]:
        return {topic: part for part in self.global_parts for topic in part.source_topics}

    @cached_property
    def external_topics(self) -> tuple[str, ...]:
        """The input topics that must exist before the application starts."""
        return tuple(topic for topic in self.subtopology_of if topic not in self.internal_topics)

    @cached_property
    def has_patterns(self) -> bool:
        """Whether a source reads all topics that match a pattern."""
        return any(source.pattern is not None for sub in self.subtopologies for source in sub.sources)

    @cached_property
    def topics_vary(self) -> bool:
        """Whether the set of input topics depends on the cluster: it has patterns, or reads topics with fan-out."""
        return self.has_patterns or bool(self.split_topics)

    @cached_property
    def split_topics(self) -> tuple[str, ...]:
        """The topics that are read with their fan-out topics."""
        sources = (source for sub in self.subtopologies for source in sub.sources if source.fan_out)
        return tuple(topic for source in sources for topic in source.topics if topic not in self.fan_outs)

    @cached_property
    def fan_outs(self) -> Mapping[str, TopicPartition]:
        """The split partition whose records are in each fan-out topic that is read."""
        return {topic: split for sub in self.subtopologies for topic, split in sub.fan_outs.items()}

    def stream_of(self, topic: str) -> str:
        """Return the topic under which the program knows the records of a topic: for a fan-out topic, the topic that was split."""
        split = self.fan_outs.get(topic)
        return topic if split is None else split.topic

    @cached_property
    def chosen_topics(self) -> frozenset[str]:
        """The topics that are read because they match a pattern or belong to a split partition, not because the program names them."""
        sources = (source for sub in self.subtopologies for source in sub.sources if source.pattern)
        return frozenset(topic for source in sources for topic in source.topics).union(self.fan_outs)

    @cached_property
    def is_divided(self) -> bool:
        return any(sub.ranges > 1 for sub in self.subtopologies)

    @cached_property
    def committed_by_transactions(self) -> frozenset[str]:
        """The topics whose offsets transactions commit, exactly once. Excludes topics whose key ranges send in separate transactions."""
        divided = (topic for sub in self.subtopologies if sub.ranges > 1 for topic in sub.source_topics)
        return frozenset(self.broker_topics).difference(divided)

    @cached_property
    def keepers(self) -> Mapping[str, str]:
        """The kind of the asynchronous operator by name of the store of its unfinished records."""
        return kinds_of_unfinished(node for sub in self.subtopologies for node in sub.nodes.values())

    @property
    def makes_calls(self) -> bool:
        """Whether it has asynchronous operators, or processors that issue calls."""
        return any(
            isinstance(node, Asynchronous | IssuingProcess)
            for sub in self.subtopologies
            for node in sub.nodes.values()
        )

    @cached_property
    def broker_topics(self) -> tuple[str, ...]:
        """The topics that are read from the broker, including internal topics."""
        return tuple(topic for topic in self.subtopology_of if topic not in self.shuffled_topics)

    @cached_property
    def repartition_topics(self) -> frozenset[str]:
        """The repartition topics that are on the broker, not in Spark's shuffle. Their processed records are deleted."""
        return frozenset(self.broker_topics).intersection(self.internal_topics)

    @cached_property
    def changelogs(self) -> Mapping[str, str]:
        return {
            store: changelog_topic(self.application_id, store)
            for sub in self.subtopologies
            for store in sub.changelogs
        }

    @cached_property
    def shuffled_topics(self) -> tuple[str, ...]:
        """The internal topics that exist only as Spark's shuffle."""
        return tuple(topic.name for topic in self.internal_topics.values() if topic.through_shuffle)

    @property
    def commits_topic(self) -> str:
        """The internal topic with the marks of delivered micro-batches and the snapshots of tasks with changelogs."""
        return commits_topic(self.application_id)

    @cached_property
    def sink_topics(self) -> tuple[str, ...]:
        """The fixed topics to which results are sent, without internal topics."""
        names = (sink.topic for sink in self._sinks if isinstance(sink.topic, str))
        return tuple(dict.fromkeys(name for name in names if name not in self.internal_topics))

    @cached_property
    def fan_out_sinks(self) -> frozenset[str]:
        """The topics to which a sink sends by key range."""
        return frozenset(sink.topic for sink in self._sinks if sink.fan_out and isinstance(sink.topic, str))

    @cached_property
    def plain_sinks(self) -> frozenset[str]:
        """The topics to which a sink sends without fan-out."""
        return frozenset(
            sink.topic for sink in self._sinks if not sink.fan_out and isinstance(sink.topic, str)
        )

    @property
    def _sinks(self) -> Iterator[Sink]:
        return (node for sub in self.subtopologies for node in sub.nodes.values() if isinstance(node, Sink))

    @cached_property
    def failure_topics(self) -> frozenset[str]:
        """The dead-letter topics that asynchronous operators name (``on_failure``)."""
        calls = (getattr(node, "calls", None) for sub in self.subtopologies for node in sub.nodes.values())
        policies = (each.on_failure for each in calls if isinstance(each, Calls))
        return frozenset(policy.text for policy in policies if isinstance(policy, DeadLetter))

    @cached_property
    def places_in_any_topic(self) -> bool:
        """Whether a sink chooses partitions of topics that a function returns, so that the partition count of any topic may be needed."""
        return any(
            (sink.partitioner is not None or sink.window_bytes) and not isinstance(sink.topic, str)
            for sink in self._sinks
        )

    def runs_before_shuffle(self, sub: SubTopology) -> bool:
        return sub.stateless and not any(
            self.internal_topics[topic].through_shuffle
            for topic in sub.source_topics
            if topic in self.internal_topics
        )

    @property
    def has_prefix(self) -> bool:
        return any(map(self.runs_before_shuffle, self.subtopologies))

    def store_fingerprints(self) -> dict[str, str]:
        """Return what must be unchanged after a restart, by store: sub-topology, kind and serdes."""
        return {
            store.name: f"sub-topology {sub.id}, {store.fingerprint}"
            for sub in self.subtopologies
            for store in sub.stores.values()
        }

    def __str__(self) -> str:
        return "\n".join([f"Application {self.application_id}", *plan_lines(self, {})])


def plan_lines(
    plan: Plan, notes: Mapping[int, str], partitions: Mapping[str, int] | None = None
) -> list[str]:
    """Describe what an application will read, keep and write, as lines.

    Args:
        partitions: Partition counts by topic; None if unknown.
    """
    lines: list[str] = []
    for sub in (sub for sub in plan.subtopologies if sub.nodes):
        where = "before the shuffle" if plan.runs_before_shuffle(sub) else _tasks_of(sub)
        lines.append(f"  sub-topology {sub.id} ({where}{notes.get(sub.id, '')})")
        lines.extend(
            f"    reads  {topic}{_topic_notes(plan, topic, partitions)}" for topic in sub.source_topics
        )
        patterns = (source.pattern for source in sub.sources if source.pattern is not None)
        lines.extend(f"    reads  topics that match {pattern.pattern}" for pattern in patterns)
        lines.extend(
            f"    keeps  {store.name} ({_store_notes(plan, store)})" for store in sub.stores.values()
        )
        for node in sub.nodes.values():
            if isinstance(node, Sink):
                topic = node.topic if isinstance(node.topic, str) else "topics chosen per record"
                lines.append(f"    writes {topic}{_topic_notes(plan, topic, None)}")
    for part in plan.global_parts:
        lines.append(f"  sub-topology {part.id} (for a global store, read by every task)")
        lines.extend(f"    reads  {topic}" for topic in part.source_topics)
        lines.extend(
            f"    keeps  {store.name} ({_store_notes(plan, store)})" for store in part.stores.values()
        )
    return lines


def _tasks_of(sub: SubTopology) -> str:
    return (
        "one task per partition group" if sub.ranges == 1 else f"{sub.ranges} key ranges per partition group"
    )


def _store_notes(plan: Plan, store: StoreSpec) -> str:
    notes = [store.fingerprint]
    if store.engine is not None:
        notes.append(f"engine {store.engine}")
    if store.name in plan.changelogs:
        notes.append(f"changelog {plan.changelogs[store.name]}")
    return ", ".join(notes)


def _topic_notes(plan: Plan, topic: str, partitions: Mapping[str, int] | None) -> str:
    internal = plan.internal_topics.get(topic)
    notes = [] if internal is None else ["Spark's shuffle" if internal.through_shuffle else "internal topic"]
    if partitions is not None:
        notes.append(counted(partitions[topic], "partition"))
    return f" ({', '.join(notes)})" if notes else ""


def counted(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"
