"""The task host: one streaming operator that runs every task of an application.

Spark loads the committed version of a task's state and discards what failed attempts wrote. A repeated micro-batch therefore begins
exactly like its first attempt, and the host needs no rollback.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from millstream.core.model.record import Records
from millstream.drivers.spark import wire
from millstream.drivers.spark.executor.host_spec import HostSpec
from millstream.drivers.spark.executor.task_run import TaskRun
from millstream.drivers.spark.logs import WorkerLogs

_HEAD = StructType([StructField("manifest", BinaryType(), nullable=False)])
_SEQUENCE = StructType([StructField("sequence", LongType(), nullable=False)])
_SEGMENT = StructType([StructField("segment", BinaryType(), nullable=False)])

_SPECS: dict[bytes, HostSpec] = {}


class TaskHost(StatefulProcessor):
    """Runs the tasks whose rows Spark passes to it. Spark creates one host per Spark task; caches are in the module."""

    def __init__(self, spec: HostSpec) -> None:
        self._pickled, self._logs = cloudpickle.dumps(spec), WorkerLogs.of_this_process()
        self._snapshots: list[tuple[str, Records]] = []

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state: the manifest, and the segments by number."""
        self._head = handle.getValueState("head", _HEAD)
        self._segments = handle.getMapState("log", _SEQUENCE, _SEGMENT)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        with wire.crossing(), wire.paused_gc():
            ordered = sorted(rows, key=lambda r: (r.kind, r.topic, r.partition, r.lane, r.start))
            for row in ordered:
                if row.kind in (wire.SEND, wire.REPORT):
                    yield Row(kind=row.kind, topic=row.topic, batch=row.batch, payload=bytes(row.payload))
            work = [row for row in ordered if row.kind not in (wire.SEND, wire.REPORT)]
            if work:
                yield from TaskRun(self._spec, work, self._head, self._segments, self._snapshots).run()

    @cached_property
    def _spec(self) -> HostSpec:
        # Once per Spark task, not once per call: the spec grows with the partitions, and Spark calls the host for each partition.
        self._logs.apply()
        return _spec(self._pickled)

    def close(self) -> None:
        """Wait for the acknowledgements of everything the tasks have sent. Spark commits their state afterwards.

        The snapshots for a rebuild are sent last: without the results and changes before them, a rebuilt task would take records for
        processed, or for late, that nobody has.
        """
        has_run = "_spec" in vars(self)
        if has_run and (sender := self._spec.topology.sender) is not None:
            with wire.crossing():
                sender.flush()
                if self._snapshots:
                    for topic, records in self._snapshots:
                        sender.publish(topic, records)
                    sender.flush()


def _spec(pickled: bytes) -> HostSpec:
    identity = hashlib.sha256(pickled).digest()
    if identity not in _SPECS:
        _SPECS.clear()
        _SPECS[identity] = cloudpickle.loads(pickled)
    return _SPECS[identity]
