"""The source: plans micro-batches in the Spark driver, reads them in the executors.

Planner and reader are different objects in different processes: the planner lives as long as the query, the reader is
unpickled in the workers. What is read depends on nothing but the offsets of a batch, so that a batch can be read again.
"""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import repeat
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from millstream.core.engine.records.merging import merged_by_time
from millstream.core.engine.records.queue import MERGED
from millstream.core.model.ids import TaskId, TopicPartition
from millstream.core.model.positions import Offsets
from millstream.core.model.record import Records
from millstream.core.ports import OffsetRange
from millstream.core.runtime.admission import packed, ranges
from millstream.core.runtime.intake import topics_read_whole
from millstream.core.topology.evolution import newly_gone
from millstream.drivers.spark import wire
from millstream.drivers.spark.clock import Reading
from millstream.drivers.spark.executor.map_stage import Prefix
from millstream.drivers.spark.executor.partitioning import split_by_range
from millstream.drivers.spark.globals import positions_text, with_positions
from millstream.drivers.spark.inputs import InputReader
from millstream.drivers.spark.offsets import batch_id, positions_of
from millstream.drivers.spark.planner.planner import Planner
from millstream.drivers.spark.spec import SourceSpec, TopologySpec
from millstream.drivers.spark.times import times_of

FORMAT = "millstream"


class KafkaSource(DataSource):
    """The data source ``millstream``: chunk rows of the records of a topology's topics."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the schema of chunk rows."""
        return wire.CHUNK_ROWS

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Make the reader."""
        return KafkaStreamReader(self.options["spec"])


@dataclass
class PlannedRead(InputPartition):
    """What one Spark task reads.

    Attributes:
        ranges: Pieces of partitions.
        ticks: Tasks to be woken without records.
        batch: The micro-batch, as it is written in chunk rows.
        clock: Wall clock of the batch.
        begin: What the tasks are told in the first batch of a run, as JSON.
        inputs: Tasks, and what they are told of their inputs, as JSON.
        positions: How far into their topics the global stores go, as text; empty without global stores.
        times: The partition times with which the batch begins, where timestamps are extracted here.
    """

    ranges: list[OffsetRange]
    ticks: list[str]
    batch: str
    clock: Reading
    begin: bytes = b""
    inputs: list[tuple[str, bytes]] = field(default_factory=list)
    positions: bytes = b""
    times: Offsets = field(default_factory=dict)


class KafkaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads. In the planner's process it keeps what it has learned; pickled, it is the option's text alone."""

    def __init__(self, option: str) -> None:
        self._option = option
        self._made: Planner | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return (KafkaStreamReader, (self._option,))

    # Planning, in the Spark driver.

    @cached_property
    def _spec(self) -> SourceSpec:
        return SourceSpec.planning(self._option)

    @cached_property
    def _inputs(self) -> InputReader:
        topology = self._spec.topology
        return InputReader(topology.plan, topology.layout, self._spec.waits)

    @cached_property
    def _whole(self) -> frozenset[str]:
        return topics_read_whole(self._spec.topology.plan)

    @property
    def _planner(self) -> Planner:
        if self._made is None:
            self._made = Planner(self._spec)
            if threading.current_thread() is threading.main_thread():
                # Ctrl-C is the application's, which stops between batches.
                signal.signal(signal.SIGINT, signal.SIG_IGN)
        return self._made

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Decide where a query without a checkpoint begins."""
        with wire.crossing():
            return self._planner.first()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix how far a run to the end goes."""
        with wire.crossing():
            self._planner.fix_end()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Leave admission to the planner, which shares a batch fairly among partitions."""
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Plan the next batch; give ``start`` back if there is nothing to do."""
        with wire.crossing():
            return self._planner.next(start)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the pieces of a planned batch; depends on nothing but its arguments."""
        with wire.crossing():
            planned = self._read_now(ranges(positions_of(start), positions_of(end)))
            batch = wire.batch_text(batch_id(end))
            times = times_of(end)
            clock = Reading(end["now_ms"], end.get("ahead_ms", 0))
            begin = json.dumps(end["begin"]).encode() if end.get("begin") else b""
            reads = [
                PlannedRead(part, [], batch, clock, times=times)
                for part in packed(planned, self._spec.readers, whole=self._whole)
            ]
            tasks = self._ticked(start, end) if end["tick"] != start["tick"] else []
            readers = min(self._spec.readers, len(tasks))
            reads.extend(PlannedRead([], tasks[i::readers], batch, clock, begin) for i in range(readers))
            inputs = list(self._inputs.told(start, end, planned, tasks))
            if inputs and not reads:
                reads.append(PlannedRead([], [], batch, clock))
            positions = positions_text(end, self._spec)
            for number, read in enumerate(reads):
                read.inputs, read.positions = inputs[number :: len(reads)], positions
            return list(reads)

    def _ticked(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[str]:
        """Return the tasks that take part in a batch without records: those that are woken, else all, and those to be removed."""
        tasks = [str(task) for task in (*self._spec.topology.layout.tasks, *newly_gone(start, end))]
        return [task for task in tasks if task in end["woken"]] if "woken" in end else tasks

    def _read_now(self, planned: list[OffsetRange]) -> list[OffsetRange]:
        """Leave out what an edited topology no longer reads, when it runs a micro-batch of its predecessor again."""
        tasks_of = self._spec.topology.layout.tasks_of
        return [r for r in planned if TopicPartition(r.topic, r.partition) in tasks_of]

    # Reading, in the executors.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read planned pieces as chunk rows."""
        assert isinstance(partition, PlannedRead)
        with wire.crossing(), wire.paused_gc():
            spec = SourceSpec.reading(self._option)
            rows = _rows(spec, partition)
            if partition.positions:
                rows = with_positions(rows, spec.topology, partition.positions)
            yield from rows
            if spec.topology.sender is not None:
                spec.topology.sender.flush()


def _rows(spec: SourceSpec, read: PlannedRead) -> Iterator[pa.RecordBatch]:
    if read.ticks:
        spec.fetcher.connect()
    for task in read.ticks:
        yield wire.arrow_rows([_task_row(spec.topology, wire.TICK, task, read, read.begin)])
    for task, told in read.inputs:
        yield wire.arrow_rows([_task_row(spec.topology, wire.INPUTS, task, read, told)])
    for planned in read.ranges:
        yield from _read_range(spec, planned, read)


def _task_row(
    topology: TopologySpec, kind: int, task: str, read: PlannedRead, payload: bytes
) -> tuple[Any, ...]:
    where = ("", 0, "", 0, 0)
    return (topology.groups[TaskId.parse(task)], kind, task, *where, read.batch, *read.clock, payload)


def _read_range(spec: SourceSpec, planned: OffsetRange, read: PlannedRead) -> Iterator[pa.RecordBatch]:
    topology = spec.topology
    tasks = topology.layout.tasks_of[TopicPartition(planned.topic, planned.partition)]
    task = tasks[0]
    sub = topology.plan.subtopologies[task.subtopology]
    merged = planned.topic in topology.plan.repartition_topics
    fetched = spec.fetcher.fetch(planned)
    if merged:
        fetched = merged_by_time(fetched)
    if topology.plan.runs_before_shuffle(sub):
        time_ms = read.times.get(planned.topic, {}).get(planned.partition, -1)
        prefix = Prefix(topology, task, planned, read.batch, read.clock, time_ms)
        for records in fetched:
            yield from prefix.run(records)
        yield from prefix.finish()
        yield from prefix.remember()
        return
    start = planned.start

    def rows(end: int, payloads: Iterable[bytes]) -> pa.RecordBatch:
        where = (planned.topic, planned.partition, MERGED if merged else "", start, end)
        return wire.arrow_rows(
            [
                (topology.groups[each], wire.RECORDS, str(each), *where, read.batch, *read.clock, payload)
                for each, payload in zip(tasks, payloads)
            ]
        )

    for records in fetched:
        end = start + len(records) if merged else records.offsets[-1] + 1
        yield rows(end, _payloads(records, len(tasks)))
        start = end
    if (
        start < planned.end
    ):  # offsets without records at the end of the range: transaction markers, compaction
        yield rows(planned.end, repeat(b""))


def _payloads(records: Records, ranges: int) -> list[bytes]:
    """Return records as they go to the tasks of their key ranges; to one task if there are no ranges."""
    if ranges == 1:
        return [wire.encode(records)]
    return [wire.encode_batch(part) for part in split_by_range(wire.to_arrow(records), ranges)]
