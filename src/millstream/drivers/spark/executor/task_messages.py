"""Messages to tasks: separate rows, each placed before the first row of a task.

There are two kinds: the tapped nodes, and the global ends for tasks that may read a global store. A task without other rows receives no
message, so a message never makes a task take part in a micro-batch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator

import pyarrow as pa

from millstream.core.model.ids import TaskId
from millstream.core.model.positions import Offsets, positions_from_json, positions_to_json
from millstream.drivers.spark import wire
from millstream.drivers.spark.spec import TopologySpec


def with_messages(
    rows: Iterable[pa.RecordBatch], kind: int, message: Callable[[TaskId], bytes]
) -> Iterator[pa.RecordBatch]:
    """Place a message before the first row of each task."""
    seen: set[str] = set()
    for batch in rows:
        for row in batch.select(["group", "task", "batch", "now_ms", "ahead_ms"]).to_pylist():
            if row["task"] not in seen and (payload := message(TaskId.parse(row["task"]))):
                group, clock = row["group"], (row["now_ms"], row["ahead_ms"])
                cells = wire.chunk_row(group, kind, row["task"], payload, batch=row["batch"], clock=clock)
                yield wire.arrow_rows([cells])
            seen.add(row["task"])
        yield batch


def with_taps(
    rows: Iterable[pa.RecordBatch], topology: TopologySpec, taps: Collection[str]
) -> Iterator[pa.RecordBatch]:
    """Send the tapped nodes to the tasks that contain them. Nodes before the shuffle read their taps from the plan."""
    plan = topology.plan

    def message(task: TaskId) -> bytes:
        sub = plan.subtopologies[task.subtopology]
        own = [] if plan.runs_before_shuffle(sub) else [node for node in taps if node in sub.nodes]
        return json.dumps(own).encode() if own else b""

    return with_messages(rows, wire.TAPS, message)


def decode_taps(payload: bytes) -> tuple[str, ...]:
    """Decode the payload of a row created by :func:`with_taps`."""
    return tuple(json.loads(payload))


def with_global_ends(
    rows: Iterable[pa.RecordBatch], topology: TopologySpec, ends: Offsets
) -> Iterator[pa.RecordBatch]:
    """Insert the global ends before the first row of each task that may read a global store."""
    payload = json.dumps(positions_to_json(ends)).encode()
    return with_messages(rows, wire.GLOBAL, lambda task: payload if _reads(topology, task) else b"")


def decode_global_ends(payload: bytes) -> Offsets:
    return positions_from_json(json.loads(payload))


def _reads(topology: TopologySpec, task: TaskId) -> bool:
    return bool(topology.plan.subtopologies[task.subtopology].global_stores)
