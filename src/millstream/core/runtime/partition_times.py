"""Partition times for sub-topologies that run where their records are read.

A timestamp extractor receives the *partition time*: the largest timestamp of its partition so far. A task keeps the partition time. A
reader, which runs a stateless sub-topology before Spark's shuffle, is recreated for each micro-batch and must receive it:

* The reader sends the time that it has reached to the task host, which keeps it in Spark's state.
* The application passes the reported times to the planner, which writes them into the plan of the next micro-batch. A micro-batch that is
  run again finds the same times there.
* The first micro-batch of a run reads nothing and wakes every task: the host reports the times that it has kept, as of the last complete
  micro-batch.

This applies only to sources with an extractor. Keeping the times in the metadata of the consumer group's offsets, as Kafka Streams does,
was rejected: those offsets may expire, may be set by other programs, and may be ahead of the checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from millstream.core.model.ids import TopicPartition
from millstream.core.model.positions import flat, nested, positions_from_json, positions_to_json
from millstream.core.topology.plan import Plan, SubTopology

PartitionTimes = Mapping[TopicPartition, int]


def timed_topics(sub: SubTopology) -> frozenset[str]:
    """Return the topics of a sub-topology whose timestamps are extracted."""
    return frozenset(
        topic for source in sub.sources if source.timestamp is not None for topic in source.topics
    )


def topics_timed_by_readers(plan: Plan) -> frozenset[str]:
    subs = (sub for sub in plan.subtopologies if plan.runs_before_shuffle(sub))
    return frozenset(topic for sub in subs for topic in timed_topics(sub))


def latest(*known: PartitionTimes) -> dict[TopicPartition, int]:
    """Return the largest time of each partition. Partition time never decreases."""
    largest: dict[TopicPartition, int] = {}
    for times in known:
        for partition, ms in times.items():
            largest[partition] = max(ms, largest.get(partition, ms))
    return largest


def encode_times(times: PartitionTimes) -> bytes:
    return json.dumps(positions_to_json(nested(times))).encode()


def decode_times(payload: bytes) -> PartitionTimes:
    return flat(positions_from_json(json.loads(payload)))
