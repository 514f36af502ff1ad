"""A task's snapshot, and what else it stores beside its manifest in Spark's state, as JSON."""

from __future__ import annotations

import base64
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from millstream.core.asynchronous.committable_offset import Progress
from millstream.core.engine.outcome import Outcome, Snapshot
from millstream.core.engine.records.queue import QueueId
from millstream.core.engine.records.readiness import Reason, Waiting
from millstream.core.model.ids import TopicPartition
from millstream.core.topology.asynchronous import unfinished_stores
from millstream.core.topology.evolution import with_new_names
from millstream.core.topology.plan import SubTopology
from millstream.core.topology.routing import Routing
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


@dataclass(frozen=True)
class TaskMemory:
    """What a task stores beside the content of its stores: in Spark's state, and with the changes that it publishes.

    Attributes:
        snapshot: Its snapshot; None at the beginning of a task.
        stores: The fingerprints of its stores.
        engines: The engines of the local copies of its stores.
        published: The stores whose changelog topics have their content.
        unfinished: Numbers of unfinished records by store, in case the topology loses the operator.
        routing: How records reach the task, for those who have lost the checkpoint; None if it publishes nothing.
    """

    snapshot: Snapshot | None = None
    stores: Mapping[str, str] = field(default_factory=dict)
    engines: Mapping[str, str] = field(default_factory=dict)
    published: tuple[str, ...] = ()
    unfinished: Mapping[str, int] | None = None
    routing: Routing | None = None

    def to_json(self) -> dict[str, Any]:
        """Return what is stored, as JSON-compatible data."""
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
        """Decode the result of :meth:`to_json`, also of an older version.

        Args:
            data: What is stored; empty at the beginning of a task.
            renamed_stores: New name per old name of a store.
        """
        return TaskMemory(
            snapshot_from_json(data.get("task"), renamed_stores),
            with_new_names(data.get("stores", {}), renamed_stores),
            with_new_names(data.get("engines", {}), renamed_stores),
            tuple(data.get("published", ())),
            with_new_names(data["unfinished"], renamed_stores) if "unfinished" in data else None,
            Routing.from_json(data["routing"]) if "routing" in data else None,
        )

    def store_memories(self) -> dict[str, dict[str, Any]]:
        """Return what the stores remember besides their content, by name."""
        return (
            {} if self.snapshot is None else {name: dict(own) for name, own in self.snapshot.stores.items()}
        )

    def without_operator(self, kept: Collection[str]) -> dict[str, int]:
        """Return the numbers of unfinished records, by store, whose operator the topology no longer has."""
        return {
            store: count for store, count in (self.unfinished or {}).items() if count and store not in kept
        }


def unfinished_by_store(sub: SubTopology, outcome: Outcome) -> dict[str, int] | None:
    """Return the numbers of unfinished records by store; None if the task has no asynchronous operator."""
    if not outcome.calls:
        return None
    stores = unfinished_stores(sub.nodes.values())
    return {stores[name]: figures.unfinished for name, figures in outcome.calls.items()}
