"""Intake: which topics bring records to a sub-topology, and how they may be read.

A sub-topology that finishes records later has them read only as far as it has room for unfinished ones.

What a sub-topology reads from the broker is known by its partitions. What comes to it through Spark's shuffle is not: a record of
any partition in front may go to any of its tasks. So all topics that are read in front of the shuffle count.
"""

from __future__ import annotations

from collections.abc import Mapping

from millstream.core.topology.analysis import calls_in_order
from millstream.core.topology.plan import Plan


def topics_in_front(plan: Plan) -> Mapping[int, frozenset[str]]:
    """Return the topics read from the broker whose records come to a sub-topology through Spark's shuffle.

    Args:
        plan: The topology.

    Returns:
        The topics by number of the sub-topology, for those that the shuffle brings anything.
    """
    in_front: dict[int, frozenset[str]] = {}
    for topic in plan.internal_topics.values():
        if topic.through_shuffle:  # what is in front of a shuffle is read from the broker: there is one only
            known = in_front.get(topic.downstream, frozenset())
            in_front[topic.downstream] = known.union(plan.subtopologies[topic.upstream].source_topics)
    return in_front


def topics_finished_later(plan: Plan) -> frozenset[str]:
    """Return the topics whose records come to what finishes them later, straight or through Spark's shuffle."""
    in_front = topics_in_front(plan)
    return frozenset(
        topic
        for sub in plan.subtopologies
        if sub.finishes_later
        for topic in (*sub.source_topics, *in_front.get(sub.id, ()))
    )


def topics_read_whole(plan: Plan) -> frozenset[str]:
    """Return the topics of which one reader takes all that a micro-batch reads of a partition.

    They are those whose readers call functions of the user: the functions see the records of a partition in their order, as
    in Kafka Streams. So are repartition topics, which are merged by time over the tasks that wrote them. A range of any other
    topic may be cut among readers: nobody sees in which order they read.
    """
    return plan.repartition_topics.union(
        topic
        for sub in plan.subtopologies
        if plan.runs_before_shuffle(sub) and calls_in_order(sub)
        for topic in sub.source_topics
    )
