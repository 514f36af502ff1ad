"""Inputs: which topics are *co-processed*, because their records meet in one task in the order of their timestamps.

A task with two or more inputs has to choose between them, and how far each was read decides whether the choice is right.
So the partitions that feed such tasks are planned together. An input is a partition of a topic that the sub-topology
reads; one that comes through Spark's shuffle is fed by all partitions of the topics that are re-keyed into it.

The partitions that feed the tasks which write a repartition topic are planned together too: read up to one time, they write nothing
that is older than what they have written before, and what one micro-batch wrote can be merged by time. The topic itself is no
part of that plan: it is read whole, a micro-batch after it was written.

A sub-topology that runs before the shuffle is not meant: it treats each record for itself, wherever it is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from millstream.core.model.ids import TaskId, TopicPartition
from millstream.core.topology.layout import Layout
from millstream.core.topology.plan import Plan


class Input(NamedTuple):
    """An input of a task.

    Attributes:
        partition: The partition the task reads.
        feeders: The partitions on the broker that its records come from.
        origins: The partitions of topics from outside that they come from in the end; without repartition topics the feeders.
    """

    partition: TopicPartition
    feeders: tuple[TopicPartition, ...]
    origins: tuple[TopicPartition, ...]

    @property
    def direct(self) -> bool:
        """Whether it is a partition of a topic from outside, which is planned as such."""
        return self.origins == (self.partition,)

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
        writing: Partitions that feed tasks which write a repartition topic.
    """

    tasks: Mapping[TaskId, tuple[Input, ...]]
    broker_time: bool
    writing: frozenset[TopicPartition] = frozenset()

    @cached_property
    def partitions(self) -> tuple[TopicPartition, ...]:
        """The partitions from outside, in order."""
        return tuple(
            sorted({p for inputs in self.tasks.values() for i in inputs for p in i.origins} | self.writing)
        )


def co_processed(plan: Plan, layout: Layout, *, waits: bool = True) -> tuple[CoProcessed, ...]:
    """Find what is planned together; nothing if every task has one input, and none writes a repartition topic.

    Sub-topologies that are fed by one topic are planned together too.

    Args:
        plan: The topology, split.
        layout: Its tasks.
        waits: Whether tasks wait for empty inputs.
    """
    found: list[CoProcessed] = []
    for topic in sorted(plan.repartition_topics):
        writing = frozenset(_origins(plan, layout, topic))
        if len(writing) > 1 and _has_broker_time(plan, _in_front(plan, topic)):
            found = _joined(found, CoProcessed({}, True, writing))
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
            found = _joined(found, CoProcessed(tasks, _has_broker_time(plan, before)))
    return tuple(found)


def informed(plan: Plan, layout: Layout, *, waits: bool) -> dict[TaskId, tuple[Input, ...]]:
    """Return the tasks that must know whether their inputs have more on the broker, with these inputs.

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


def writers(plan: Plan) -> dict[str, tuple[str, ...]]:
    """Return the topics on the broker that each repartition topic is written from, those of the first ones first.

    A repartition topic that is written from this one in turn, in a circle, is left out.
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
    return tuple(_input(plan, layout, at) for at in sorted(layout.tasks[task]))


def _input(plan: Plan, layout: Layout, at: TopicPartition) -> Input:
    internal = plan.internal_topics.get(at.topic)
    if internal is None:
        return Input(at, (at,), (at,))
    feeders: tuple[TopicPartition, ...] = (at,)
    if internal.through_shuffle:
        feeders = _partitions(layout, _feeding(plan, internal.upstream))
    return Input(at, feeders, _origins(plan, layout, at.topic))


def _feeding(plan: Plan, sub: int) -> set[str]:
    """Return the topics on the broker whose records come to a sub-topology."""
    found: set[str] = set()
    for topic in plan.subtopologies[sub].source_topics:
        internal = plan.internal_topics.get(topic)
        if internal is not None and internal.through_shuffle:  # there is one shuffle only
            found.update(plan.subtopologies[internal.upstream].source_topics)
        else:
            found.add(topic)
    return found


def _in_front(plan: Plan, topic: str) -> set[int]:
    """Return the sub-topologies whose records come to an internal topic, through however many others."""
    found: set[int] = set()
    ahead = [topic]
    while ahead:
        internal = plan.internal_topics.get(ahead.pop())
        if internal is not None and internal.upstream not in found:
            found.add(internal.upstream)
            ahead.extend(plan.subtopologies[internal.upstream].source_topics)
    return found


def _origins(plan: Plan, layout: Layout, topic: str) -> tuple[TopicPartition, ...]:
    """Return the partitions from outside whose records come to an internal topic."""
    topics = (t for sub in _in_front(plan, topic) for t in plan.subtopologies[sub].source_topics)
    return _partitions(layout, {t for t in topics if t not in plan.internal_topics})


def _partitions(layout: Layout, topics: Iterable[str]) -> tuple[TopicPartition, ...]:
    return tuple(
        TopicPartition(topic, p) for topic in sorted(topics) for p in range(layout.partitions[topic])
    )


def _has_broker_time(plan: Plan, subs: Iterable[int]) -> bool:
    return all(source.timestamp is None for sub in subs for source in plan.subtopologies[sub].sources)


def _joined(found: list[CoProcessed], new: CoProcessed) -> list[CoProcessed]:
    """Add what is planned together, joined with what shares partitions with it."""
    apart = [each for each in found if set(each.partitions).isdisjoint(new.partitions)]
    for each in found:
        if each not in apart:
            new = CoProcessed(
                {**each.tasks, **new.tasks},
                each.broker_time and new.broker_time,
                each.writing | new.writing,
            )
    return [*apart, new]
