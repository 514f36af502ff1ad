"""Layout: a plan laid out over the partitions of its topics.

The *default grouper* puts the same partition number of all topics of a sub-topology into one *partition group* (KIP-28,
"Partition Distribution"). A partition group and a sub-topology form a task. Topics whose records reach the same store must be
*co-partitioned*: with different numbers of partitions, the state of a key would be split between two tasks. The partitions of a fan-out
topic are in the task of the partition that was split.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from millstream.core.model.errors import CoPartitioningError, TopicNotFoundError, TopologyError
from millstream.core.model.ids import TaskId, TopicPartition
from millstream.core.ports import PartitionGrouper
from millstream.core.topology.nodes import Source
from millstream.core.topology.plan import Plan, SubTopology


@dataclass(frozen=True)
class Layout:
    """Partition counts and tasks of a plan.

    Attributes:
        partitions: Number of partitions of each topic that is read, including internal topics.
        tasks: Partitions by task. A divided sub-topology has one task for each key range of a partition group, numbered group by group.
    """

    partitions: Mapping[str, int]
    tasks: Mapping[TaskId, frozenset[TopicPartition]]

    @cached_property
    def tasks_of(self) -> Mapping[TopicPartition, tuple[TaskId, ...]]:
        """The tasks that process each partition: one, or one per key range, in order of the ranges."""
        tasks: dict[TopicPartition, tuple[TaskId, ...]] = {}
        for task, group in sorted(self.tasks.items()):
            for partition in group:
                tasks[partition] = (*tasks.get(partition, ()), task)
        return tasks


def default_grouper(partitions: Mapping[str, int]) -> Sequence[frozenset[TopicPartition]]:
    """Group partitions by their number (KIP-28's default; Kafka Streams: ``PartitionGrouper``).

    Returns:
        One group per partition number. The index of a group is the number of its task.

    Example:
        >>> [sorted(map(str, group)) for group in default_grouper({"a": 2, "b": 1})]
        [['a-0', 'b-0'], ['a-1']]
    """
    return [
        frozenset(TopicPartition(topic, number) for topic, count in partitions.items() if number < count)
        for number in range(max(partitions.values(), default=0))
    ]


def lay_out(
    plan: Plan,
    external: Mapping[str, int],
    grouper: PartitionGrouper = default_grouper,
    previous: Mapping[str, int] | None = None,
) -> Layout:
    """Decide the partition counts of internal topics, check co-partitioning, and form the tasks.

    Args:
        previous: Previous numbers of partitions of repartition topics. A topic without an explicit number keeps its previous number, even
            if partitions have since been added to its upstream topics, because the state of its keys is in as many tasks.

    Raises:
        TopicNotFoundError: If an external topic is missing, or no topic determines the partition count of a repartition.
        CoPartitioningError: If topics that reach the same store have different counts.
        TopologyError: If the grouper omits or repeats a partition.
    """
    missing = [topic for topic in plan.external_topics if topic not in external]
    if missing:
        raise missing_topics(missing)
    counts = {topic: external[topic] for topic in plan.external_topics}
    _count_internal_topics(plan, counts, previous or {})
    for sub in plan.subtopologies:
        _check_copartitioning(sub, counts)
    tasks: dict[TaskId, frozenset[TopicPartition]] = {}
    for sub in plan.subtopologies:
        for number, group in enumerate(_checked_groups(sub, counts, grouper)):
            tasks |= dict.fromkeys(tasks_of_group(sub, number), frozenset(group))
    return Layout(counts, tasks)


def tasks_of_group(sub: SubTopology, group: int) -> tuple[TaskId, ...]:
    """Return the tasks of a partition group: one, or one per key range."""
    return tuple(TaskId(sub.id, group * sub.ranges + number) for number in range(sub.ranges))


def missing_topics(topics: Sequence[str]) -> TopicNotFoundError:
    names = ", ".join(repr(topic) for topic in topics)
    return TopicNotFoundError(
        f"the topology reads topics that do not exist on the broker: {names}. Source topics are never created "
        "automatically, because only you know their number of partitions: create them first, for example with "
        f"kafka-topics --create --topic {topics[0]} --partitions 4, or correct the name. Topics that this user may not describe "
        "(DESCRIBE) look as if they did not exist"
    )


def _count_internal_topics(plan: Plan, counts: dict[str, int], previous: Mapping[str, int]) -> None:
    """Add the counts of the internal topics, each as soon as the counts on which it depends are known."""
    waiting = dict(plan.internal_topics)
    for topic in list(waiting.values()):
        wanted = topic.partitions or previous.get(topic.name)
        if wanted is not None:
            counts[topic.name] = wanted
            del waiting[topic.name]
    while waiting:
        complete = [name for name in waiting if not any(t in waiting for t in _upstream_topics(plan, name))]
        if not complete:  # a cycle of parts: begin with one that also reads a topic with a known count
            complete = [name for name in waiting if any(t in counts for t in _upstream_topics(plan, name))][
                :1
            ]
        if not complete:
            raise TopologyError(
                f"the repartitions {', '.join(sorted(waiting))} derive their numbers of partitions from each other; set "
                "repartition(partitions=...) on one of them"
            )
        for name in complete:
            counts[name] = _inherited_count(plan, name, counts)
            del waiting[name]


def _upstream_topics(plan: Plan, topic: str) -> list[str]:
    upstream = plan.subtopologies[plan.internal_topics[topic].upstream]
    return [source for source in upstream.grouped_topics if source != topic]


def _inherited_count(plan: Plan, topic: str, counts: Mapping[str, int]) -> int:
    """Return the count of the topics that reach the same store as this one, otherwise the largest count upstream of all of them."""
    alike = [topic]
    for meeting in _meetings(plan.subtopology_of[topic]):
        if topic in meeting:
            known = [counts[other] for other in meeting if other in counts]
            if known:
                return known[0]
            alike.extend(meeting)
    upstream = (source for name in alike for source in _upstream_topics(plan, name))
    known_counts = [counts[source] for source in upstream if source in counts]
    if not known_counts:
        raise TopicNotFoundError(
            f"no topic matches the pattern upstream of repartition {topic!r} yet, so its number of partitions is unknown. Create a "
            "matching topic first, correct the pattern, or set the number with repartition(partitions=...)"
        )
    return max(known_counts)


def sources_of_stores(sub: SubTopology) -> dict[str, tuple[Source, ...]]:
    reach: dict[str, dict[str, Source]] = {}
    per_store: dict[str, dict[str, Source]] = {}
    for node in sub.nodes.values():
        own = reach[node.name] = {node.name: node} if isinstance(node, Source) else {}
        for parent in node.parents:
            own.update(reach[parent])
        for store in node.store_names:
            per_store.setdefault(store, {}).update(own)
    return {store: tuple(sources.values()) for store, sources in per_store.items()}


def _meetings(sub: SubTopology) -> list[tuple[str, ...]]:
    """Return the sets of source topics whose records reach the same store."""
    per_store = (
        {topic for source in sources for topic in source.topics if topic not in sub.fan_outs}
        for sources in sources_of_stores(sub).values()
    )
    return [tuple(sorted(topics)) for topics in per_store if len(topics) > 1]


def _check_copartitioning(sub: SubTopology, counts: Mapping[str, int]) -> None:
    for meeting in _meetings(sub):
        if len({counts[topic] for topic in meeting}) > 1:
            shown = ", ".join(f"{topic!r} has {counts[topic]}" for topic in meeting)
            raise CoPartitioningError(
                f"records of these topics use the same store of sub-topology {sub.id}, so the topics need equal numbers of partitions, but "
                f"{shown}. Add repartition(partitions=...) to one of the streams, or give the topics equal numbers "
                "of partitions: otherwise the records of one key could be in two tasks, and its results would be wrong"
            )


def _checked_groups(
    sub: SubTopology, counts: Mapping[str, int], grouper: PartitionGrouper
) -> Sequence[frozenset[TopicPartition]]:
    sources = {topic: counts[topic] for topic in sub.grouped_topics}
    if not sources:
        return []  # a removed part
    groups = grouper(sources)
    wanted = sorted(
        TopicPartition(topic, number) for topic, count in sources.items() for number in range(count)
    )
    if sorted(partition for group in groups for partition in group) != wanted:
        raise TopologyError(
            f"the partition grouper must put each partition of sub-topology {sub.id} into exactly one group; "
            f"it received {sources} and returned {[sorted(map(str, group)) for group in groups]}"
        )
    return [group.union(_logs_of(group, sub, counts)) for group in groups]


def _logs_of(
    group: frozenset[TopicPartition], sub: SubTopology, counts: Mapping[str, int]
) -> Iterator[TopicPartition]:
    """Yield the partitions of the fan-out topics that have records of a group's partitions."""
    for topic, split in sub.fan_outs.items():
        if split in group:
            yield from (TopicPartition(topic, number) for number in range(counts[topic]))
