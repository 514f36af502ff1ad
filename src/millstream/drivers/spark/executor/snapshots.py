"""A task's snapshot as JSON, beside its manifest in Spark's state."""

from __future__ import annotations

import base64
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from millstream.core.asynchronous.frontier import Progress
from millstream.core.engine.outcome import Outcome, Snapshot
from millstream.core.engine.records.queue import QueueId
from millstream.core.engine.records.readiness import Reason, Waiting
from millstream.core.model.ids import TopicPartition
from millstream.core.topology.asynchronous import kept_by
from millstream.core.topology.evolution import with_new_names
from millstream.core.topology.plan import SubTopology
from millstream.drivers.spark import wire


def snapshot_to_json(snapshot: Snapshot) -> dict[str, Any]:
    """Return a snapshot as what JSON can say."""
    return {
        "stream_time_ms": snapshot.stream_time_ms,
        "partition_times": [
            [*q.partition, q.lane, time] for q, time in sorted(snapshot.partition_times.items())
        ],
        "schedules": [dict(schedule) for schedule in snapshot.schedules],
        "buffered": [
            [*q.partition, q.lane, snapshot.positions[q], base64.b64encode(wire.encode(records)).decode()]
            for q, records in sorted(snapshot.buffered.items(), key=lambda item: item[0])
        ],
        "stores": {name: dict(memory) for name, memory in snapshot.stores.items()},
        "operators": {name: dict(memory) for name, memory in snapshot.operators.items()},
        **_waits_to_json(snapshot),
        **_progress_to_json(snapshot),
    }


def _waits_to_json(snapshot: Snapshot) -> dict[str, Any]:
    """Return what a task that waits for its inputs remembers; most tasks have nothing to remember."""
    data: dict[str, Any] = {}
    if snapshot.deadlines:
        data["deadlines"] = [[*at, deadline] for at, deadline in sorted(snapshot.deadlines.items())]
    if snapshot.waiting is not None:
        data["waiting"] = [*snapshot.waiting.partition, snapshot.waiting.reason, snapshot.waiting.since_ms]
    return data


def _progress_to_json(snapshot: Snapshot) -> dict[str, Any]:
    """Return what a task remembers that has finished records beyond unfinished ones; others have nothing to remember."""
    if not snapshot.progress:
        return {}
    return {"progress": [[*at, *progress] for at, progress in sorted(snapshot.progress.items())]}


def snapshot_from_json(
    data: Mapping[str, Any] | None, renamed_stores: Mapping[str, str] = MappingProxyType({})
) -> Snapshot | None:
    """Read what :func:`snapshot_to_json` gave, now or before stores and operators remembered anything.

    Args:
        data: What it gave; None is the beginning of a task.
        renamed_stores: New name per old name of a store.
    """
    if data is None:
        return None
    return Snapshot(
        data["stream_time_ms"],
        {_queue(topic, partition, lane): time for topic, partition, lane, time in data["partition_times"]},
        tuple(data["schedules"]),
        {
            _queue(topic, partition, lane): wire.decode(base64.b64decode(payload))
            for topic, partition, lane, _, payload in data["buffered"]
        },
        {
            _queue(topic, partition, lane): position
            for topic, partition, lane, position, _ in data["buffered"]
        },
        with_new_names(data.get("stores", {}), renamed_stores),
        with_new_names(data.get("operators", {}), renamed_stores),
        {TopicPartition(topic, partition): at for topic, partition, at in data.get("deadlines", ())},
        _waiting(*data["waiting"]) if "waiting" in data else None,
        {
            TopicPartition(topic, partition): Progress(position, tuple(map(tuple, unfinished)))
            for topic, partition, position, unfinished in data.get("progress", ())
        },
    )


def _waiting(topic: str, partition: int, reason: Reason, since_ms: int) -> Waiting:
    return Waiting(TopicPartition(topic, partition), reason, since_ms)


def _queue(topic: str, partition: int, lane: str) -> QueueId:
    return QueueId(TopicPartition(topic, partition), lane)


def unfinished_by_store(sub: SubTopology, outcome: Outcome) -> dict[str, Any]:
    """Return what a task remembers of unfinished records, in case the topology loses the operator: their number by its store."""
    if not outcome.calls:
        return {}
    stores = kept_by(sub.nodes.values())
    return {"unfinished": {stores[name]: figures.unfinished for name, figures in outcome.calls.items()}}


def without_operator(unfinished: Mapping[str, int], kept: Collection[str]) -> dict[str, int]:
    """Return the numbers of unfinished records, by store, whose operator the topology no longer has."""
    return {store: count for store, count in unfinished.items() if count and store not in kept}
