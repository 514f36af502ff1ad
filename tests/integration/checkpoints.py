"""The stores of a stopped application, read from its checkpoint.

A task's store is restored from the log in Spark's state, as on a host without local copies: it lacks everything that the log lacks.
The log of a global store is its topic, so its local copy on this host is read.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from millstream.core.model.ids import TaskId
from millstream.core.state.opening import open_store
from millstream.core.state.segments.log import decode_manifest
from millstream.core.topology.plan import Plan
from millstream.core.topology.stores import StoreSpec
from millstream.drivers.lmdb import open_local_copy
from millstream.drivers.memory.memory_copy import MemoryCopy
from millstream.drivers.spark.driver.placement import grouping_keys
from millstream.drivers.spark.executor.copies import directory_of_global
from millstream.drivers.spark.executor.snapshots import snapshot_from_json
from millstream.drivers.spark.executor.statelog import StateLog
from unit.drivers.state import MapState


class LeftBehind:
    """The stores of an application whose topics have one partition each.

    Args:
        spark: The session; no query may run on the checkpoint.
        checkpoint: Where the checkpoint is.
        local_state: The directory of the local copies, in LMDB.
        plan: The plan of the application.
    """

    def __init__(self, spark: SparkSession, checkpoint: str, local_state: Path, plan: Plan) -> None:
        self._plan = plan
        self._local_state = local_state
        heads, segments = (_state(spark, checkpoint, variable) for variable in ("head", "log"))
        self._heads = {row.key.group: bytes(row.value.manifest) for row in heads.collect()}
        self._segments: dict[int, dict[tuple[int], tuple[bytes]]] = defaultdict(dict)
        for row in segments.collect():
            key = (row.user_map_key.sequence,)
            self._segments[row.key.group][key] = (bytes(row.user_map_value.segment),)

    def store(self, name: str) -> Any:
        """Open a store."""
        for part in self._plan.global_parts:
            if name in part.stores:
                return open_store(
                    part.stores[name],
                    open_local_copy(str(self._local_state / directory_of_global(name) / "lmdb")).open_view(),
                )
        sub = next(sub for sub in self._plan.subtopologies if name in sub.stores)
        return self._restored(TaskId(sub.id, 0), sub.stores[name])

    def _restored(self, task: TaskId, spec: StoreSpec) -> Any:
        group = grouping_keys([task])[task]
        manifest, remembered = decode_manifest(self._heads[group])
        snapshot = snapshot_from_json(remembered["task"])
        assert snapshot is not None
        copy = MemoryCopy("nothing is parked")
        StateLog(MapState(self._segments[group]), task).restore(manifest.only([spec.name]), copy)
        return open_store(spec, copy.open_view(), memory=snapshot.stores.get(spec.name, {}))


def _state(spark: SparkSession, checkpoint: str, variable: str) -> DataFrame:
    return spark.read.format("statestore").option("stateVarName", variable).load(checkpoint)
