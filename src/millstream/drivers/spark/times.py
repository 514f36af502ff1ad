"""Partition times of what runs where its records are read.

A timestamp extractor is given the *partition time*: the largest timestamp that its partition has had. A task remembers it. A
reader, which runs a stateless sub-topology in front of Spark's shuffle, is made anew for each micro-batch, so it is told:

* The reader reports the time it came to, and sends it to the task host, which keeps it in Spark's state.
* The application hands what was reported to the planner, which writes it into the offset of the next micro-batch. A micro-batch
  that is run again finds the same times there.
* The first micro-batch of a run reads nothing and wakes every task: the host reports what it has kept, as of the last
  micro-batch that is complete.

All this is done for sources with an extractor only. To keep the times in the metadata of the group's offsets, as Kafka Streams
does, was rejected: those offsets may expire or be set by others, and may be ahead of the checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from millstream.core.model.ids import TopicPartition
from millstream.core.model.positions import Offsets, flat, nested, positions_from_json, positions_to_json
from millstream.core.topology.plan import Plan, SubTopology

PartitionTimes = Mapping[TopicPartition, int]


def timed_topics(sub: SubTopology) -> frozenset[str]:
    """Return the topics of a sub-topology whose timestamps are extracted."""
    return frozenset(
        topic for source in sub.sources if source.timestamp is not None for topic in source.topics
    )


def topics_timed_by_readers(plan: Plan) -> frozenset[str]:
    """Return the topics whose timestamps are extracted by readers."""
    subs = (sub for sub in plan.subtopologies if plan.runs_before_shuffle(sub))
    return frozenset(topic for sub in subs for topic in timed_topics(sub))


def latest(*known: PartitionTimes) -> dict[TopicPartition, int]:
    """Return the largest time of each partition, which never goes back.

    Example:
        >>> at = TopicPartition("in", 0)
        >>> latest({at: 7}, {at: 5}) == {at: 7}
        True
    """
    found: dict[TopicPartition, int] = {}
    for times in known:
        for at, ms in times.items():
            found[at] = max(ms, found.get(at, ms))
    return found


def encode_times(times: PartitionTimes) -> bytes:
    """Return times as the payload of a row."""
    return json.dumps(positions_to_json(nested(times))).encode()


def decode_times(payload: bytes) -> PartitionTimes:
    """Read what :func:`encode_times` gave."""
    return flat(positions_from_json(json.loads(payload)))


def times_after(start: Mapping[str, Any], reported: Offsets, topics: Iterable[str]) -> dict[str, Any]:
    """Return what the offset behind ``start`` says of partition times; nothing if no reader needs them.

    Args:
        start: The offset of the last micro-batch.
        reported: What the application has heard of readers and tasks.
        topics: The topics whose timestamps readers extract.
    """
    wanted = set(topics)
    if not wanted:
        return {}
    known = latest(flat(times_of(start)), flat(reported))
    return {"times": positions_to_json(nested({at: ms for at, ms in known.items() if at.topic in wanted}))}


def times_of(offset: Mapping[str, Any]) -> Offsets:
    """Return the partition times with which a micro-batch begins."""
    return positions_from_json(offset.get("times", {}))
