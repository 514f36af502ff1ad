"""The source: plans micro-batches in the Spark driver and reads them in the executors.

Planner and reader are different objects in different processes: the planner lives as long as the query, and the workers unpickle the
reader. A read depends only on the offsets of a micro-batch, so that it can be repeated.

A stateless sub-topology runs where its records are read, before Spark's shuffle: this is the *map stage*. Records sent to a repartition
become chunk rows of the task that owns their key: Spark's shuffle is the repartition. Records sent to other topics are sent here, or pass
through the shuffle unchanged to the sink.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cached_property, partial
from itertools import repeat
from typing import Any
from zlib import crc32

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from millstream.core.engine.records.combining import Combiner
from millstream.core.engine.records.merging import merged_by_time
from millstream.core.engine.records.queue import MERGED, QueueId
from millstream.core.engine.step_outcome import Outcome, Snapshot
from millstream.core.engine.task import Task
from millstream.core.engine.threaded_nodes import added
from millstream.core.metrics.metric import Numbers
from millstream.core.model.ids import TaskId, TopicPartition
from millstream.core.model.record import Records
from millstream.core.ports import OffsetRange
from millstream.core.runtime.origins import first_offset, offsets_from, origins, topics_committed_later
from millstream.core.runtime.partition_times import encode_times, timed_topics
from millstream.core.runtime.task_report import TaskReport
from millstream.core.state.memory import MemoryStores
from millstream.core.topology.analysis.ranges import needs_steps
from millstream.core.topology.plan import SubTopology
from millstream.drivers.spark import wire
from millstream.drivers.spark.crossing import crossing, paused_gc
from millstream.drivers.spark.executor.dead_letters import sending_dead_letters
from millstream.drivers.spark.executor.measures import StepFacts, measured
from millstream.drivers.spark.executor.report_building import report_of
from millstream.drivers.spark.executor.task_messages import with_global_ends, with_taps
from millstream.drivers.spark.logs import running_task
from millstream.drivers.spark.planner.planner import Planner
from millstream.drivers.spark.spec import PlannedRead, SourceSpec, TopologySpec

FORMAT = "millstream"
_NOTICES = 5


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
    def _planner(self) -> Planner:
        planner = Planner(self._spec)
        if threading.current_thread() is threading.main_thread():
            # The application handles Ctrl-C and stops between micro-batches.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        return planner

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        with crossing():
            return self._planner.first()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        with crossing():
            self._planner.fix_end()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Plan a micro-batch. The limit is Spark's default: everything. The planner divides micro-batches fairly among partitions."""
        with crossing():
            return self._planner.next(start)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        with crossing():
            return list(self._planner.reads(start, end))

    # Reading, in the executors.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, PlannedRead)
        with crossing(), paused_gc():
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
    def row(kind: int, task: str, payload: bytes) -> pa.RecordBatch:
        group = spec.topology.groups[TaskId.parse(task)]
        chunk_row = wire.chunk_row(group, kind, task, payload, batch=planned.batch, clock=planned.clock)
        return wire.arrow_rows([chunk_row])

    if planned.ticks:
        spec.fetcher.connect()
    initialization = b"" if planned.initialization is None else planned.initialization.encode()
    for task in planned.ticks:
        yield row(wire.TICK, task, initialization)
    for task, message in planned.inputs:
        yield row(wire.INPUTS, task, message.encode())
    for wanted in planned.back:
        yield from _range_rows(spec, wanted, iter(()), planned)
    for wanted, fetched in spec.fetcher.fetch_all(planned.ranges):
        yield from _range_rows(spec, wanted, fetched, planned)


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
    # The parts of a merged lane count its records, and samples of a tapped source must show them.
    combiner = None if merged or planned.taps else topology.combiner(sub)

    def rows(end: int, payloads: Iterable[bytes]) -> pa.RecordBatch:
        origin = (wanted.topic, wanted.partition, MERGED if merged else "", start, end)
        row = partial(wire.chunk_row, batch=planned.batch, clock=planned.clock, origin=origin)
        return wire.arrow_rows(
            [row(topology.groups[task], wire.RECORDS, task, each) for task, each in zip(tasks, payloads)]
        )

    for records in fetched:
        end = start + len(records) if merged else records.offsets[-1] + 1
        records = records if combiner is None else combiner.combined(records)
        yield rows(end, _payloads(records, len(tasks), with_steps=steps))
        start = end
    # The range ends with offsets that have no records, because of transaction markers or compaction, or is empty.
    if start < wanted.end or wanted.start == wanted.end:
        yield rows(wanted.end, repeat(b""))


def _payloads(records: Records, ranges: int, *, with_steps: bool) -> list[bytes]:
    if ranges == 1:
        return [wire.encode(records)]
    parts = wire.split_by_range(wire.to_arrow(records), ranges, with_steps=with_steps)
    return [wire.encode_batch(part) for part in parts]


class MapStage:
    """Runs one task of a stateless sub-topology over one offset range. Owned by the read.

    Attributes:
        time_ms: The partition time, in ms since the epoch. It is -1 if there is none or no extractor needs it.
    """

    def __init__(self, topology: TopologySpec, task: TaskId, wanted: OffsetRange, read: PlannedRead) -> None:
        sub = topology.plan.subtopologies[task.subtopology]
        self.time_ms = read.times.get(wanted.topic, {}).get(wanted.partition, -1)
        self._partition = TopicPartition(wanted.topic, wanted.partition)
        self._timed = wanted.topic in timed_topics(sub)
        self._origins = origins(topology.plan)
        self._sent: Counter[str] = Counter()
        """Number of records so far, for each repartition whose offsets contain the micro-batch."""
        self._topology = topology
        self._id = task
        running_task(str(task))
        self._wanted = wanted
        self._batch = read.batch
        self._clock = read.clock
        self._lane = f"{wanted.topic}-{wanted.partition}"
        self._start = wanted.start
        self._count = self._size = 0
        self._began = time.perf_counter()
        self._numbers = Numbers()
        self._reports: list[TaskReport] = []
        self._taps = read.taps
        self._combiners: dict[str, Combiner | None] = {}
        """What combines the records of each repartition."""
        self._task = self._started(sub)

    def _started(self, sub: SubTopology) -> Task:
        times = {QueueId(self._partition, ""): self.time_ms}
        task = Task(
            sub,
            self._id,
            application_id=self._topology.plan.application_id,
            stores=MemoryStores(),
            policies=self._topology.policies,
            taps=self._taps,
            partitions_of=self._topology.partitions_of,
            most_bytes_of=self._topology.most_bytes_of,
            threads=self._topology.threads(self._id),
            snapshot=Snapshot(partition_times=times) if self._timed else None,
        )
        task.init(self._clock.now_ms)
        return task

    def run(self, records: Records) -> Iterator[pa.RecordBatch]:
        # Records merged by time are not in offset order.
        end = max(records.offsets[-1], self._start) + 1
        self._count += len(records)
        self._size += records.byte_count()
        with sending_dead_letters(self._topology.dead_letters):
            self._task.feed(self._partition, records, end)
            outcome = self._task.step(self._clock.now_ms)
        yield from self._rows(outcome, end)
        report = report_of(StepFacts(str(self._id), outcome))
        self._numbers.take(report.measured)
        self._reports.append(report)
        self._start = end

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Close the task and return its report."""
        if self._timed:
            self.time_ms = max(self._task.snapshot().partition_times.values(), default=-1)
        self._task.close()
        read = {self._partition.topic: (self._count, self._size)}
        seconds = time.perf_counter() - self._began
        self._numbers.take(measured(StepFacts(str(self._id), read=read, seconds=seconds)))
        report = TaskReport(
            str(self._id),
            {} if self._is_committed_later() else {self._partition: self._wanted.end},
            stream_time_ms=max((r.stream_time_ms for r in self._reports), default=-1),
            measured=tuple(self._numbers.rows()),
            first_record_ms=self._clock.now_ms if self._count else None,
            notices=tuple(notice for r in self._reports for notice in r.notices)[:_NOTICES],
            threads=added(r.threads for r in self._reports),
            times=self._times(),
            taps=tuple(tap for r in self._reports for tap in r.taps),
        )
        yield wire.arrow_rows([self._own_row(wire.REPORT, TopicPartition("", 0), report.encode())])

    def remember(self) -> Iterator[pa.RecordBatch]:
        """Return rows with the partition times for the next run, or none if no extractor needs them."""
        if times := self._times():
            yield wire.arrow_rows([self._own_row(wire.TIMES, self._partition, encode_times(times))])

    def _times(self) -> dict[TopicPartition, int]:
        return {self._partition: self.time_ms} if self._timed and self.time_ms >= 0 else {}

    def _rows(self, outcome: Outcome, end: int) -> Iterator[pa.RecordBatch]:
        plan, sender = self._topology.plan, self._topology.sender
        rows: list[tuple[Any, ...]] = []
        for topic, records in outcome.sends:
            internal = plan.internal_topics.get(topic)
            if internal is not None and internal.through_shuffle:
                rows.extend(self._repartitioned(topic, records, end))
                continue
            records.writer = "" if internal is None else str(self._id)
            if sender is not None:
                sender.publish(topic, records)
            else:
                partition = TopicPartition(topic, 0)
                rows.append(self._row(wire.SEND, self._id, partition, end, wire.encode(records)))
        if rows:
            yield wire.arrow_rows(rows)

    def _repartitioned(self, topic: str, records: Records, end: int) -> Iterator[tuple[Any, ...]]:
        layout = self._topology.layout
        records.offsets = self._offsets(topic, len(records))
        records = self._combined(topic, records)
        for number, part in wire.split_by_partition(wire.to_arrow(records), layout.partitions[topic]):
            partition = TopicPartition(topic, number)
            tasks = layout.tasks_of[partition]
            parts = [part]
            if len(tasks) > 1:
                sub = self._topology.plan.subtopologies[tasks[0].subtopology]
                parts = wire.split_by_range(part, len(tasks), with_steps=needs_steps(sub))
            for task, each in zip(tasks, parts):
                yield self._row(wire.RECORDS, task, partition, end, wire.encode_batch(each))

    def _combined(self, topic: str, records: Records) -> Records:
        if topic not in self._combiners:
            plan = self._topology.plan
            sub = plan.subtopologies[plan.internal_topics[topic].downstream]
            self._combiners[topic] = None if self._taps else self._topology.combiner(sub)
        combiner = self._combiners[topic]
        return records if combiner is None else combiner.combined(records)

    def _is_committed_later(self) -> bool:
        """Return whether the committable offset depends on records after the shuffle."""
        return self._wanted.topic in topics_committed_later(self._topology.plan)

    def _offsets(self, repartition: str, count: int) -> list[int]:
        if repartition not in self._origins:
            return list(range(self._start, self._start + count))
        batch = wire.batch_of(self._batch).number if self._batch else 0
        start = self._wanted.start + self._sent[repartition]
        self._sent[repartition] += count
        return offsets_from(first_offset(batch, crc32(self._lane.encode())), start, count)

    def _own_row(self, kind: int, partition: TopicPartition, payload: bytes) -> tuple[Any, ...]:
        return self._row(kind, self._id, partition, self._wanted.end, payload)

    def _row(
        self, kind: int, task: TaskId, partition: TopicPartition, end: int, payload: bytes
    ) -> tuple[Any, ...]:
        group, origin = self._topology.groups[task], (*partition, self._lane, self._start, end)
        return wire.chunk_row(group, kind, task, payload, batch=self._batch, clock=self._clock, origin=origin)
