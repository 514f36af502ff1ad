"""A task's snapshot and its other memory as JSON, stored beside the manifest in Spark's state."""

from __future__ import annotations

import base64
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from millstream.core.asynchronous.committable_offset import Progress
from millstream.core.engine.records.queue import QueueId
from millstream.core.engine.records.readiness import Reason, Waiting
from millstream.core.engine.step_outcome import Outcome, Snapshot
from millstream.core.model.ids import TopicPartition
from millstream.core.topology.async_nodes import unfinished_stores
from millstream.core.topology.evolution import with_new_names
from millstream.core.topology.plan import SubTopology
from millstream.core.topology.routing import Routing
from millstream.drivers.spark import wire


def snapshot_to_json(snapshot: Snapshot) -> dict[str, Any]:
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
    """Return the part of the snapshot about waiting for inputs. It is usually empty."""
    data: dict[str, Any] = {}
    if snapshot.deadlines:
        data["deadlines"] = [
            [*partition, deadline] for partition, deadline in sorted(snapshot.deadlines.items())
        ]
    if snapshot.waiting is not None:
        data["waiting"] = [*snapshot.waiting.partition, snapshot.waiting.reason, snapshot.waiting.since_ms]
    return data


def _progress_to_json(snapshot: Snapshot) -> dict[str, Any]:
    """Return the part of the snapshot about records that finished out of order or are read again. It is usually empty."""
    data: dict[str, Any] = {}
    if snapshot.progress:
        data["progress"] = [
            [*partition, *progress] for partition, progress in sorted(snapshot.progress.items())
        ]
    if snapshot.taken:
        data["taken"] = [[*queue.partition, queue.lane, end] for queue, end in sorted(snapshot.taken.items())]
    return data


def snapshot_from_json(
    data: Mapping[str, Any] | None, renamed_stores: Mapping[str, str] = MappingProxyType({})
) -> Snapshot | None:
    """Read a snapshot. Accepts the format of older versions."""
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
        {
            TopicPartition(topic, partition): deadline
            for topic, partition, deadline in data.get("deadlines", ())
        },
        _waiting_from_json(*data["waiting"]) if "waiting" in data else None,
        {
            TopicPartition(topic, partition): Progress(position, tuple(map(tuple, unfinished)))
            for topic, partition, position, unfinished in data.get("progress", ())
        },
        {_queue(topic, partition, lane): end for topic, partition, lane, end in data.get("taken", ())},
    )


def _waiting_from_json(topic: str, partition: int, reason: Reason, since_ms: int) -> Waiting:
    return Waiting(TopicPartition(topic, partition), reason, since_ms)


def _queue(topic: str, partition: int, lane: str) -> QueueId:
    return QueueId(TopicPartition(topic, partition), lane)


@dataclass(frozen=True)
class TaskMemory:
    """The memory of a task besides the content of its stores. It is kept in Spark's state and published with changes.

    Attributes:
        snapshot: None for a new task.
        stores: Fingerprints of the stores, by name.
        published: Stores whose whole content is in their changelog topics.
        unfinished: In-flight records by store, needed if an edit removes the operator.
        routing: How records reach the task, for a rebuild without the checkpoint. None if the task publishes nothing.
    """

    snapshot: Snapshot | None = None
    stores: Mapping[str, str] = field(default_factory=dict)
    engines: Mapping[str, str] = field(default_factory=dict)
    published: tuple[str, ...] = ()
    unfinished: Mapping[str, int] | None = None
    routing: Routing | None = None

    def to_json(self) -> dict[str, Any]:
        assert self.snapshot is not None
        data: dict[str, Any] = {
            "task": snapshot_to_json(self.snapshot),
            "stores": dict(self.stores),
            "engines": dict(self.engines),
            "published": list(self.published),
        }
        if self.unfinished is not None:
            data["unfinished"] = dict(self.unfinished)
        if self.routing is not None:
            data["routing"] = self.routing.to_json()
        return data

    @staticmethod
    def from_json(
        data: Mapping[str, Any], renamed_stores: Mapping[str, str] = MappingProxyType({})
    ) -> TaskMemory:
        """Decode the result of :meth:`to_json`, also of older versions. Empty data is a new task."""
        return TaskMemory(
            snapshot_from_json(data.get("task"), renamed_stores),
            with_new_names(data.get("stores", {}), renamed_stores),
            with_new_names(data.get("engines", {}), renamed_stores),
            tuple(data.get("published", ())),
            with_new_names(data["unfinished"], renamed_stores) if "unfinished" in data else None,
            Routing.from_json(data["routing"]) if "routing" in data else None,
        )

    def store_memories(self) -> Mapping[str, Mapping[str, Any]]:
        return {} if self.snapshot is None else self.snapshot.stores

    def without_operator(self, kept: Collection[str]) -> dict[str, int]:
        """Return the in-flight records of removed operators, by store."""
        return {
            store: count for store, count in (self.unfinished or {}).items() if count and store not in kept
        }


def unfinished_by_store(sub: SubTopology, outcome: Outcome) -> dict[str, int] | None:
    if not outcome.calls:
        return None
    stores = unfinished_stores(sub.nodes.values())
    return {stores[name]: figures.unfinished for name, figures in outcome.calls.items()}
