"""Inputs: which topics are *co-processed*, because their records meet in one task in the order of their timestamps.

A task with two or more inputs has to choose between them, and how far each was read decides whether the choice is right.
So the partitions that feed such tasks are planned together. An input is a partition of a topic that the sub-topology
reads; one that comes through Spark's shuffle is fed by all partitions of the topics that are re-keyed into it.

A sub-topology that runs before the shuffle is not meant: it treats each record for itself, wherever it is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from penstock.core.model.ids import TaskId, TopicPartition
from penstock.core.plan.layout import Layout
from penstock.core.plan.split import Plan, SubTopology


class Input(NamedTuple):
    """An input of a task.

    Attributes:
        partition: The partition the task reads.
        feeders: The partitions on the broker that its records come from.
    """

    partition: TopicPartition
    feeders: tuple[TopicPartition, ...]

    @property
    def shuffled(self) -> bool:
        """Whether it comes through Spark's shuffle."""
        return self.feeders != (self.partition,)


@dataclass(frozen=True)
class CoProcessed:
    """Tasks with several inputs, and the partitions that feed them: what is planned together.

    Attributes:
        tasks: The inputs of each task, in the order of their partitions.
        broker_time: Whether all their records have the broker's timestamps, so that its time index tells how far to read.
    """

    tasks: Mapping[TaskId, tuple[Input, ...]]
    broker_time: bool

    @cached_property
    def partitions(self) -> tuple[TopicPartition, ...]:
        """The partitions on the broker, in order."""
        return tuple(sorted({p for inputs in self.tasks.values() for i in inputs for p in i.feeders}))


def co_processed(plan: Plan, layout: Layout) -> tuple[CoProcessed, ...]:
    """Find what is planned together; nothing if every task has one input.

    Sub-topologies that are fed by one topic are planned together too.
    """
    found: list[CoProcessed] = []
    for sub in plan.subtopologies:
        if len(sub.source_topics) < 2 or plan.runs_before_shuffle(sub):
            continue
        tasks = {
            task: inputs
            for task in layout.tasks
            if task.subtopology == sub.id and len(inputs := _inputs(plan, layout, task)) > 1
        }
        if tasks:
            found = _joined(found, CoProcessed(tasks, _has_broker_time(plan, sub)))
    return tuple(found)


def informed(plan: Plan, layout: Layout, *, waits: bool) -> dict[TaskId, tuple[Input, ...]]:
    """Give the tasks that must know whether their inputs have more on the broker, with these inputs.

    Args:
        plan: The topology, split.
        layout: Its tasks.
        waits: Whether tasks wait for empty inputs; then those with several inputs must know. Those that close something when
            they are idle must know in any case.
    """
    found = {
        task: inputs for group in co_processed(plan, layout) if waits for task, inputs in group.tasks.items()
    }
    for task in layout.tasks:
        sub = plan.subtopologies[task.subtopology]
        if any(node.closes_idle for node in sub.nodes.values()):
            found.setdefault(task, _inputs(plan, layout, task))
    return found


def _inputs(plan: Plan, layout: Layout, task: TaskId) -> tuple[Input, ...]:
    return tuple(Input(at, _feeders(plan, layout, at)) for at in sorted(layout.tasks[task]))


def _feeders(plan: Plan, layout: Layout, at: TopicPartition) -> tuple[TopicPartition, ...]:
    internal = plan.internal_topics.get(at.topic)
    if internal is None or not internal.through_shuffle:
        return (at,)
    topics = plan.subtopologies[internal.upstream].source_topics
    return tuple(
        TopicPartition(topic, p) for topic in sorted(topics) for p in range(layout.partitions[topic])
    )


def _has_broker_time(plan: Plan, sub: SubTopology) -> bool:
    internal = (plan.internal_topics.get(topic) for topic in sub.source_topics)
    before = [plan.subtopologies[t.upstream] for t in internal if t is not None and t.through_shuffle]
    return all(source.timestamp is None for part in (sub, *before) for source in part.sources)


def _joined(found: list[CoProcessed], new: CoProcessed) -> list[CoProcessed]:
    """Add what is planned together, joined with what shares partitions with it."""
    apart = [each for each in found if set(each.partitions).isdisjoint(new.partitions)]
    for each in found:
        if each not in apart:
            new = CoProcessed({**each.tasks, **new.tasks}, each.broker_time and new.broker_time)
    return [*apart, new]
