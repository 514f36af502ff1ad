"""Origins: how far topics may be committed whose records went through Spark's shuffle and are finished later.

A record that asynchronous operators finish later holds back the offset of its partition. Behind Spark's shuffle its partition is
that of the repartition, which no group commits. So its offset there says in which micro-batch it was read (:func:`first_offset`), and
stays with it until it is finished: over restarts, moves to other tasks, and from one operator to the next. What was planned says
where each micro-batch *began* in the topics in front of the shuffle. Nothing is committed there beyond the beginning of the
oldest micro-batch that a record is unfinished of.

So the committed offset may lag by the size of a micro-batch, but is never past an unfinished record. To know the exact offset
of each record was rejected: one record may become many, and others, before the shuffle, so each would have to carry it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from millstream.core.model.ids import TopicPartition
from millstream.core.model.positions import Offsets, positions_from_json, positions_to_json
from millstream.core.topology.plan import Plan

_BITS: Final = 30
_LANE_BITS: Final = 20
_MOST: Final = 64
"""So many beginnings are kept; beyond, every other one is forgotten, and what it would have said is said by the one before it."""


class Begun(NamedTuple):
    """Where a micro-batch began.

    Attributes:
        batch: Its number in the checkpoint.
        positions: The offsets from which on it read.
    """

    batch: int
    positions: Offsets


def first_offset(batch: int, lane: int) -> int:
    """Return the first offset of the records that a micro-batch brings through the shuffle.

    Args:
        batch: Its number in the checkpoint.
        lane: The number of the partition that they were read from, so that records of different ones have different offsets.

    Example:
        >>> batch_of(first_offset(7, 3)), batch_of(first_offset(8, 0) - 1)
        (7, 7)
    """
    return (batch << _BITS) + (lane % (1 << (_BITS - _LANE_BITS)) << _LANE_BITS)


def offsets_from(first: int, start: int, count: int) -> list[int]:
    """Return offsets of records of one micro-batch and lane.

    Args:
        first: What :func:`first_offset` gave.
        start: How many records there were before them.
        count: How many they are.
    """
    room = (1 << _BITS) - 1
    begin = first & ~room
    return [begin + ((first + number) & room) for number in range(start, start + count)]


def batch_of(offset: int) -> int:
    """Return the micro-batch in which a record was read that has such an offset."""
    return offset >> _BITS


def origins(plan: Plan) -> Mapping[str, frozenset[str]]:
    """Return the topics in front of each repartition through the shuffle behind which records are finished later."""
    return {
        name: frozenset(plan.subtopologies[topic.upstream].source_topics)
        for name, topic in plan.internal_topics.items()
        if topic.through_shuffle and plan.subtopologies[topic.downstream].finishes_later
    }


def topics_committed_later(plan: Plan) -> frozenset[str]:
    """Return the topics in front of such repartitions: not their readers know how far they may be committed."""
    return frozenset(topic for topics in origins(plan).values() for topic in topics)


def oldest_by_topic(
    unfinished: Mapping[TopicPartition, int], behind: Mapping[str, Collection[str]]
) -> dict[str, int]:
    """Return the oldest micro-batch of which a record is unfinished, per topic in front of the shuffle; without one if there is none.

    Args:
        unfinished: The lowest unfinished offset of partitions of repartitions.
        behind: What :func:`origins` gave.

    Example:
        >>> oldest_by_topic({TopicPartition("again", 0): first_offset(7, 0)}, {"again": {"in"}})
        {'in': 7}
    """
    oldest: dict[str, int] = {}
    for at, offset in unfinished.items():
        for topic in behind.get(at.topic, ()):
            oldest[topic] = min(batch_of(offset), oldest.get(topic, batch_of(offset)))
    return oldest


def committable(positions: Offsets, begun: Sequence[Begun], oldest: Mapping[str, int]) -> Offsets:
    """Return how far topics may be committed.

    Args:
        positions: How far they have been read.
        begun: The micro-batches that records may be unfinished of, in order.
        oldest: What :func:`oldest_by_topic` gave.

    Returns:
        Offsets of the topics; one is left out if nobody knows where the oldest micro-batch began.

    Example:
        >>> committable({"in": {0: 90}}, [Begun(6, {"in": {0: 40}}), Begun(7, {"in": {0: 70}})], {"in": 7})
        {'in': {0: 70}}
    """
    found: Offsets = {}
    for topic, read in positions.items():
        if topic not in oldest:
            found[topic] = dict(read)
        elif (entry := _entry(begun, oldest[topic])) is not None:
            began = entry.positions.get(topic, {})
            found[topic] = {p: min(began[p], at) for p, at in read.items() if p in began}
    return found


def begun_after(begun: Sequence[Begun], batch: Begun, oldest: Mapping[str, int] | None) -> tuple[Begun, ...]:
    """Return the micro-batches that records may be unfinished of when one more is planned.

    Args:
        begun: Those so far.
        batch: The one that is planned.
        oldest: What :func:`oldest_by_topic` gave; None if it is not known.
    """
    kept = list(begun)
    if oldest is not None:
        entry = _entry(begun, min(oldest.values())) if oldest else None
        kept = kept[0 if entry is None else kept.index(entry) :] if oldest else []
    if kept and kept[-1].positions == batch.positions:  # the last one has read nothing
        kept.pop()
    if len(kept) >= _MOST:
        kept = kept[::2]
    return (*kept, batch)


def _entry(begun: Sequence[Begun], batch: int) -> Begun | None:
    """Return the last micro-batch, among those that are known, up to one; None for one of another checkpoint."""
    if not begun or batch > begun[-1].batch:
        return None
    return next((each for each in reversed(begun) if each.batch <= batch), None)


def begun_to_json(begun: Sequence[Begun]) -> list[list[Any]]:
    """Return beginnings as what JSON can say."""
    return [[each.batch, positions_to_json(each.positions)] for each in begun]


def begun_from_json(data: Sequence[Sequence[Any]]) -> tuple[Begun, ...]:
    """Read what :func:`begun_to_json` gave."""
    return tuple(Begun(batch, positions_from_json(positions)) for batch, positions in data)
