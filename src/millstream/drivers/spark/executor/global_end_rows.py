"""Global ends on their way to tasks: a row of its own in front of the first row of each task that may read a global store.

Other tasks, and topologies without such stores, get none.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import pyarrow as pa

from millstream.core.model.ids import TaskId
from millstream.core.model.positions import Offsets, positions_from_json, positions_to_json
from millstream.drivers.spark import wire
from millstream.drivers.spark.executor.task_messages import with_messages
from millstream.drivers.spark.spec import TopologySpec


def with_global_ends(
    rows: Iterable[pa.RecordBatch], topology: TopologySpec, ends: Offsets
) -> Iterator[pa.RecordBatch]:
    """Insert the global ends before the first row of each task that may read a global store.

    Args:
        ends: The offsets of the topics of global stores that the micro-batch sees.
    """
    payload = json.dumps(positions_to_json(ends)).encode()
    return with_messages(rows, wire.GLOBAL, lambda task: payload if _reads(topology, task) else b"")


def decode_global_ends(payload: bytes) -> Offsets:
    return positions_from_json(json.loads(payload))


def _reads(topology: TopologySpec, task: TaskId) -> bool:
    return bool(topology.plan.subtopologies[task.subtopology].global_stores)
