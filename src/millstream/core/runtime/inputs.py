"""Inputs: determines which topics are *co-processed*, because their records meet in one task in timestamp order.

A task with two or more inputs must choose between them, and the choice is correct only if each input was read far enough. The partitions
that feed such tasks are therefore planned together. An input is a partition of a topic that the sub-topology reads. An input through
Spark's shuffle is fed by all partitions of the topics that are re-keyed into it.

The partitions that feed tasks that write a repartition topic are also planned together, so that the tasks write nothing older than what
they have already written. The repartition topic itself is read completely, one micro-batch after it was written.

Sub-topologies before the shuffle are excluded: they process each record independently.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from millstream.core.model.ids import TaskId, TopicPartition
from millstream.core.topology.layout import Layout
from millstream.core.topology.plan import Plan


@dataclass(frozen=True)
class WaitSettings:
    """How long tasks wait for empty inputs, and how much they buffer in the meantime.

    Attributes:
        idle_ms: How long a task waits for an empty input without lag; -1 does not wait.
    """

    idle_ms: int = 0
    records: int = 50_000
    size: int = 16_000_000


class Input(NamedTuple):
    """An input of a task.

    Attributes:
        feeders: The partitions on the broker from which its records come.
        origins: The partitions of external topics from which its records originally come; without repartition topics, the feeders.
    """

    partition: TopicPartition
    feeders: tuple[TopicPartition, ...]
    origins: tuple[TopicPartition, ...]

    @property
    def direct(self) -> bool:
        """Whether it is a partition of an external topic, which is planned itself."""
        return self.origins == (self.partition,)

    @property
    def shuffled(self) -> bool:
        """Whether it comes through Spark's shuffle."""
        return self.feeders != (self.partition,)


@dataclass(frozen=True)
class CoProcessed:
    """Tasks with several inputs, and the partitions that feed them, which are planned together.

    Attributes:
        tasks: Inputs by task, in the order of their partitions.
        broker_time: Whether all records have the broker's timestamps, so that the time index can be used.
        writing: Partitions that feed tasks that write a repartition topic.
    """

    tasks: Mapping[TaskId, tuple[Input, ...]]
    broker_time: bool
    writing: frozenset[TopicPartition] = frozenset()

    @cached_property
    def partitions(self) -> tuple[TopicPartition, ...]:
        return tuple(
            sorted({p for inputs in self.tasks.values() for i in inputs for p in i.origins} | self.writing)
        )


def co_processed(plan: Plan, layout: Layout, *, waits: bool = True) -> tuple[CoProcessed, ...]:
    """Return the groups to plan together; empty if every task has one input and no task writes a repartition topic.

    Sub-topologies that share an input topic are in one group.
    """
    groups: list[CoProcessed] = []
    for topic in sorted(plan.repartition_topics):
        writing = frozenset(_origins(plan, layout, topic))
        if len(writing) > 1 and _has_broker_time(plan, _in_front(plan, topic)):
            groups = _merged_groups(groups, CoProcessed({}, True, writing))
    for sub in plan.subtopologies if waits else ():
        if len(sub.source_topics) < 2 or plan.runs_before_shuffle(sub):
            continue
        tasks = {
            task: inputs
            for task in layout.tasks
            if task.subtopology == sub.id and len(inputs := _inputs(plan, layout, task)) > 1
        }
        if tasks:
            before = {sub.id}.union(*(_in_front(plan, topic) for topic in sub.source_topics))
            groups = _merged_groups(groups, CoProcessed(tasks, _has_broker_time(plan, before)))
    return tuple(groups)


def informed(plan: Plan, layout: Layout, *, waits: bool) -> dict[TaskId, tuple[Input, ...]]:
    """Return the tasks that must know whether their inputs have more records on the broker, with these inputs.

    Args:
        waits: Whether tasks wait for empty inputs. If so, tasks with several inputs must know. Tasks that close windows while idle
            must always know.
    """
    tasks = {
        task: inputs for group in co_processed(plan, layout) if waits for task, inputs in group.tasks.items()
    }
    for task in layout.tasks:
        sub = plan.subtopologies[task.subtopology]
        if any(node.closes_idle for node in sub.nodes.values()):
            tasks.setdefault(task, _inputs(plan, layout, task))
    return tasks


def writers(plan: Plan) -> dict[str, tuple[str, ...]]:
    """Return the topics on the broker from which each repartition topic is written, upstream repartition topics first.

    In a cycle, a repartition topic that is in turn written from this one is omitted.
    """
    near_first = sorted(plan.repartition_topics, key=lambda topic: (len(_in_front(plan, topic)), topic))
    return {
        topic: tuple(
            feeder
            for feeder in _feeding(plan, plan.internal_topics[topic].upstream)
            if not any(topic in plan.subtopologies[s].source_topics for s in _in_front(plan, feeder))
        )
        for topic in near_first
    }


def _inputs(plan: Plan, layout: Layout, task: TaskId) -> tuple[Input, ...]:
    return tuple(_input(plan, layout, partition) for partition in sorted(layout.tasks[task]))


def _input(plan: Plan, layout: Layout, partition: TopicPartition) -> Input:
    internal = plan.internal_topics.get(partition.topic)
    if internal is None:
        return Input(partition, (partition,), (partition,))
    feeders: tuple[TopicPartition, ...] = (partition,)
    if internal.through_shuffle:
        feeders = _partitions(layout, _feeding(plan, internal.upstream))
    return Input(partition, feeders, _origins(plan, layout, partition.topic))


def _feeding(plan: Plan, sub: int) -> set[str]:
    """Return the topics on the broker whose records reach a sub-topology, directly or through the shuffle."""
    topics: set[str] = set()
    for topic in plan.subtopologies[sub].source_topics:
        internal = plan.internal_topics.get(topic)
        if internal is not None and internal.through_shuffle:  # a query has only one shuffle
            topics.update(plan.subtopologies[internal.upstream].source_topics)
        else:
            topics.add(topic)
    return topics


def _in_front(plan: Plan, topic: str) -> set[int]:
    """Return the sub-topologies upstream of an internal topic, at any distance."""
    subs: set[int] = set()
    ahead = [topic]
    while ahead:
        internal = plan.internal_topics.get(ahead.pop())
        if internal is not None and internal.upstream not in subs:
            subs.add(internal.upstream)
            ahead.extend(plan.subtopologies[internal.upstream].source_topics)
    return subs


def _origins(plan: Plan, layout: Layout, topic: str) -> tuple[TopicPartition, ...]:
    """Return the partitions of external topics whose records reach an internal topic."""
    topics = (t for sub in _in_front(plan, topic) for t in plan.subtopologies[sub].source_topics)
    return _partitions(layout, {t for t in topics if t not in plan.internal_topics})


def _partitions(layout: Layout, topics: Iterable[str]) -> tuple[TopicPartition, ...]:
    return tuple(
        TopicPartition(topic, p) for topic in sorted(topics) for p in range(layout.partitions[topic])
    )


def _has_broker_time(plan: Plan, subs: Iterable[int]) -> bool:
    return all(source.timestamp is None for sub in subs for source in plan.subtopologies[sub].sources)


def _merged_groups(groups: list[CoProcessed], new: CoProcessed) -> list[CoProcessed]:
    """Add a group, merged with the groups that share partitions with it."""
    disjoint = [group for group in groups if set(group.partitions).isdisjoint(new.partitions)]
    for group in groups:
        if group not in disjoint:
            new = CoProcessed(
                {**group.tasks, **new.tasks},
                group.broker_time and new.broker_time,
                group.writing | new.writing,
            )
    return [*disjoint, new]
