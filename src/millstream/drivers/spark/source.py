"""The source: plans micro-batches in the Spark driver and reads them in the executors.

Planner and reader are different objects in different processes: the planner lives as long as the query, and the workers unpickle the
reader. A read depends only on the offsets of a micro-batch, so that it can be repeated.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import repeat
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from millstream.core.engine.records.merging import merged_by_time
from millstream.core.engine.records.queue import MERGED
from millstream.core.model.ids import TaskId, TopicPartition
from millstream.core.model.record import Records
from millstream.core.ports import OffsetRange
from millstream.core.runtime.batch_plan import BatchPlan
from millstream.core.topology.analysis.ranges import needs_steps
from millstream.drivers.spark import wire
from millstream.drivers.spark.executor.key_hashing import split_by_range
from millstream.drivers.spark.executor.map_stage import MapStage
from millstream.drivers.spark.executor.task_messages import with_global_ends, with_taps
from millstream.drivers.spark.planned_reads import PlannedRead
from millstream.drivers.spark.planner.planner import Planner
from millstream.drivers.spark.planner.reads import ReadPlanner
from millstream.drivers.spark.spec import SourceSpec, TopologySpec

FORMAT = "millstream"


class KafkaSource(DataSource):
    """The data source ``millstream``: chunk rows of the records of a topology's topics."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return wire.CHUNK_ROWS

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return KafkaStreamReader(self.options["spec"])


class KafkaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads. The planner's process keeps one reader for the life of the query. Its pickle is the text of the option."""

    def __init__(self, option: str) -> None:
        self._option = option

    def __reduce__(self) -> tuple[Any, ...]:
        return (KafkaStreamReader, (self._option,))

    # Planning, in the Spark driver.

    @cached_property
    def _spec(self) -> SourceSpec:
        return SourceSpec.planning(self._option)

    @cached_property
    def _reads(self) -> ReadPlanner:
        return ReadPlanner(self._spec)

    @cached_property
    def _planner(self) -> Planner:
        planner = Planner(self._spec, self._reads)
        if threading.current_thread() is threading.main_thread():
            # The application handles Ctrl-C and stops between micro-batches.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        return planner

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        with wire.crossing():
            return self._planner.first()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        with wire.crossing():
            self._planner.fix_end()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Plan a micro-batch. The limit is Spark's default: everything. The planner divides micro-batches fairly among partitions."""
        with wire.crossing():
            return self._planner.next(start)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the reads of a planned micro-batch. They depend only on the arguments."""
        with wire.crossing():
            return list(self._reads.reads(BatchPlan.from_json(start), BatchPlan.from_json(end)))

    # Reading, in the executors.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, PlannedRead)
        with wire.crossing(), wire.paused_gc():
            yield from _read(SourceSpec.reading(self._option), partition)


def _read(spec: SourceSpec, planned: PlannedRead) -> Iterator[pa.RecordBatch]:
    """Yield the chunk rows of a planned read. Ends when everything that the map stage has sent is acknowledged."""
    rows = _rows(spec, planned)
    if planned.global_ends is not None:
        rows = with_global_ends(rows, spec.topology, planned.global_ends)
    if planned.taps:
        rows = with_taps(rows, spec.topology, planned.taps)
    yield from rows
    if spec.topology.sender is not None:
        spec.topology.sender.flush()


def _rows(spec: SourceSpec, planned: PlannedRead) -> Iterator[pa.RecordBatch]:
    if planned.ticks:
        spec.fetcher.connect()
    initialization = b"" if planned.initialization is None else planned.initialization.encode()
    for task in planned.ticks:
        yield wire.arrow_rows([_task_row(spec.topology, wire.TICK, task, planned, initialization)])
    for task, message in planned.inputs:
        yield wire.arrow_rows([_task_row(spec.topology, wire.INPUTS, task, planned, message.encode())])
    for wanted in planned.back:
        yield from _range_rows(spec, wanted, iter(()), planned)
    for wanted, fetched in spec.fetcher.fetch_all(planned.ranges):
        yield from _range_rows(spec, wanted, fetched, planned)


def _task_row(
    topology: TopologySpec, kind: int, task: str, planned: PlannedRead, payload: bytes
) -> tuple[Any, ...]:
    origin = ("", 0, "", 0, 0)
    return (
        topology.groups[TaskId.parse(task)],
        kind,
        task,
        *origin,
        planned.batch,
        *planned.clock,
        payload,
    )


def _range_rows(
    spec: SourceSpec, wanted: OffsetRange, fetched: Iterator[Records], planned: PlannedRead
) -> Iterator[pa.RecordBatch]:
    topology = spec.topology
    tasks = topology.layout.tasks_of[TopicPartition(wanted.topic, wanted.partition)]
    merged = wanted.topic in topology.plan.repartition_topics
    if merged:
        fetched = merged_by_time(fetched)
    sub = topology.plan.subtopologies[tasks[0].subtopology]
    if topology.plan.runs_before_shuffle(sub):
        stage = MapStage(topology, tasks[0], wanted, planned)
        for records in fetched:
            yield from stage.run(records)
        yield from stage.finish()
        yield from stage.remember()
        return
    start, steps = wanted.start, needs_steps(sub)

    def rows(end: int, payloads: Iterable[bytes]) -> pa.RecordBatch:
        origin = (wanted.topic, wanted.partition, MERGED if merged else "", start, end)
        return wire.arrow_rows(
            [
                (
                    topology.groups[task],
                    wire.RECORDS,
                    str(task),
                    *origin,
                    planned.batch,
                    *planned.clock,
                    payload,
                )
                for task, payload in zip(tasks, payloads)
            ]
        )

    for records in fetched:
        end = start + len(records) if merged else records.offsets[-1] + 1
        yield rows(end, _payloads(records, len(tasks), with_steps=steps))
        start = end
    # The range ends with offsets that have no records, because of transaction markers or compaction, or is empty.
    if start < wanted.end or wanted.start == wanted.end:
        yield rows(wanted.end, repeat(b""))


def _payloads(records: Records, ranges: int, *, with_steps: bool) -> list[bytes]:
    if ranges == 1:
        return [wire.encode(records)]
    parts = split_by_range(wire.to_arrow(records), ranges, with_steps=with_steps)
    return [wire.encode_batch(part) for part in parts]
