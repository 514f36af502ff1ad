"""Origins: which topics feed a sub-topology, how they may be read, and how far they are committed.

The partitions that a sub-topology reads from the broker are known. Behind Spark's shuffle they are not: a record of any upstream
partition may go to any task, so all topics upstream of the shuffle count. A sub-topology that finishes records later reads only as many as
it has room for unfinished records.

An unfinished record of an asynchronous operator holds back the committed offset of its partition. After Spark's shuffle, its partition
belongs to the repartition, which no consumer group commits. The offset of the record there therefore encodes the micro-batch in which it
was read (:func:`first_offset`), until the record is finished. The plans record the positions at which each micro-batch *began* in the
topics before the shuffle. These topics are never committed beyond the beginning of the oldest micro-batch with an unfinished record.

Rejected: to track the exact offset of each record. Before the shuffle, one record may become many different ones, and each would have to
carry the offset.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from millstream.core.model.ids import TopicPartition
from millstream.core.model.positions import Offsets, positions_from_json, positions_to_json
from millstream.core.topology.analysis.threads_and_caches import calls_in_order
from millstream.core.topology.plan import Plan

_BITS: Final = 30
_LANE_BITS: Final = 20
_MOST: Final = 64
"""Maximum number of recorded beginnings. Above it, every other one is dropped, and the preceding one is used in its place."""


class Begun(NamedTuple):
    """The beginning of a micro-batch."""

    batch: int
    positions: Offsets


def first_offset(batch: int, lane: int) -> int:
    """Return the first offset for the records that a micro-batch sends through the shuffle.

    Args:
        lane: Number of the partition from which they were read, so that records of different partitions have different offsets.

    Example:
        >>> batch_of(first_offset(7, 3)), batch_of(first_offset(8, 0) - 1)
        (7, 7)
    """
    return (batch << _BITS) + (lane % (1 << (_BITS - _LANE_BITS)) << _LANE_BITS)


def offsets_from(first: int, start: int, count: int) -> list[int]:
    """Return offsets for records of one micro-batch and lane.

    A lane has a million offsets. Then they begin again, because further ones belong to other lanes.

    Args:
        start: Number of records before them.
    """
    room = (1 << _LANE_BITS) - 1
    return [first + (number & room) for number in range(start, start + count)]


def batch_of(offset: int) -> int:
    """Return the micro-batch in which a record with such an offset was read."""
    return offset >> _BITS


def origins(plan: Plan) -> Mapping[str, frozenset[str]]:
    """Return, for each repartition through the shuffle whose records are finished later, the topics before it."""
    return {
        name: frozenset(plan.subtopologies[topic.upstream].source_topics)
        for name, topic in plan.internal_topics.items()
        if topic.through_shuffle and plan.subtopologies[topic.downstream].finishes_later
    }


def topics_committed_later(plan: Plan) -> frozenset[str]:
    """Return the topics before such repartitions. Their readers do not know how far to commit them."""
    return frozenset(topic for topics in origins(plan).values() for topic in topics)


def topics_finished_later(plan: Plan) -> frozenset[str]:
    """Return the topics whose records reach nodes that finish them later, directly or through Spark's shuffle."""
    direct = (topic for sub in plan.subtopologies if sub.finishes_later for topic in sub.source_topics)
    return topics_committed_later(plan).union(direct)


def topics_in_front(plan: Plan) -> Mapping[int, frozenset[str]]:
    """Return the topics on the broker whose records reach a sub-topology through Spark's shuffle."""
    in_front: dict[int, frozenset[str]] = {}
    for topic in plan.internal_topics.values():
        if topic.through_shuffle:  # all input before the only shuffle is read from the broker
            known = in_front.get(topic.downstream, frozenset())
            in_front[topic.downstream] = known.union(plan.subtopologies[topic.upstream].source_topics)
    return in_front


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


def oldest_by_topic(
    unfinished: Mapping[TopicPartition, int], behind: Mapping[str, Collection[str]]
) -> dict[str, int]:
    """Return the oldest micro-batch with an unfinished record, by topic before the shuffle. Topics without one are omitted.

    Args:
        unfinished: The lowest unfinished offset, by partition of repartitions.

    Example:
        >>> oldest_by_topic({TopicPartition("again", 0): first_offset(7, 0)}, {"again": {"in"}})
        {'in': 7}
    """
    oldest: dict[str, int] = {}
    for partition, offset in unfinished.items():
        for topic in behind.get(partition.topic, ()):
            oldest[topic] = min(batch_of(offset), oldest.get(topic, batch_of(offset)))
    return oldest


def committable(positions: Offsets, begun: Sequence[Begun], oldest: Mapping[str, int]) -> Offsets:
    """Return the committable offsets of topics.

    Returns:
        Offsets of the topics. A topic is omitted if the beginning of its oldest micro-batch is unknown.

    Example:
        >>> committable({"in": {0: 90}}, [Begun(6, {"in": {0: 40}}), Begun(7, {"in": {0: 70}})], {"in": 7})
        {'in': {0: 70}}
    """
    offsets: Offsets = {}
    for topic, read in positions.items():
        if topic not in oldest:
            offsets[topic] = dict(read)
        elif (entry := _entry(begun, oldest[topic])) is not None:
            began = entry.positions.get(topic, {})
            offsets[topic] = {p: min(began[p], offset) for p, offset in read.items() if p in began}
    return offsets


def begun_after(begun: Sequence[Begun], batch: Begun, oldest: Mapping[str, int] | None) -> tuple[Begun, ...]:
    """Return the micro-batches that may have unfinished records, including a newly planned one.

    Args:
        oldest: The result of :func:`oldest_by_topic`; None if unknown.
    """
    kept = list(begun)
    if oldest is not None:
        entry = _entry(begun, min(oldest.values())) if oldest else None
        kept = kept[0 if entry is None else kept.index(entry) :] if oldest else []
    if kept and kept[-1].positions == batch.positions:  # the last micro-batch has read no records
        kept.pop()
    if len(kept) >= _MOST:
        kept = kept[::2]
    return (*kept, batch)


def _entry(begun: Sequence[Begun], batch: int) -> Begun | None:
    """Return the last known micro-batch up to the given number, or None if the number is from another checkpoint."""
    if not begun or batch > begun[-1].batch:
        return None
    return next((each for each in reversed(begun) if each.batch <= batch), None)


def begun_to_json(begun: Sequence[Begun]) -> list[list[Any]]:
    return [[each.batch, positions_to_json(each.positions)] for each in begun]


def begun_from_json(data: Sequence[Sequence[Any]]) -> tuple[Begun, ...]:
    return tuple(Begun(batch, positions_from_json(positions)) for batch, positions in data)
