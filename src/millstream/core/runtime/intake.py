"""Intake: determines which topics feed a sub-topology, and how they may be read.

A sub-topology that finishes records later reads only as many as it has room for unfinished records.

The partitions that a sub-topology reads from the broker are known. Behind Spark's shuffle they are not: a record of any upstream
partition may go to any task, so all topics upstream of the shuffle count.
"""

from __future__ import annotations

from collections.abc import Mapping

from millstream.core.topology.analysis.threads_and_caches import calls_in_order
from millstream.core.topology.plan import Plan


def topics_in_front(plan: Plan) -> Mapping[int, frozenset[str]]:
    """Return the topics on the broker whose records reach a sub-topology through Spark's shuffle."""
    in_front: dict[int, frozenset[str]] = {}
    for topic in plan.internal_topics.values():
        if topic.through_shuffle:  # all input before the only shuffle is read from the broker
            known = in_front.get(topic.downstream, frozenset())
            in_front[topic.downstream] = known.union(plan.subtopologies[topic.upstream].source_topics)
    return in_front


def topics_finished_later(plan: Plan) -> frozenset[str]:
    """Return the topics whose records reach nodes that finish them later, directly or through Spark's shuffle."""
    in_front = topics_in_front(plan)
    return frozenset(
        topic
        for sub in plan.subtopologies
        if sub.finishes_later
        for topic in (*sub.source_topics, *in_front.get(sub.id, ()))
    )


def topics_read_whole(plan: Plan) -> frozenset[str]:
    """Return the topics of which a single reader reads all records of a partition in a micro-batch.

    These are topics whose readers call user functions, because the functions must see the records of a partition in order, as in Kafka
    Streams, and repartition topics, which are merged by time over the tasks that wrote them. A range of any other topic may be divided
    among readers, because the order of reading has no effect.
    """
    return plan.repartition_topics.union(
        topic
        for sub in plan.subtopologies
        if plan.runs_before_shuffle(sub) and calls_in_order(sub)
        for topic in sub.source_topics
    )
