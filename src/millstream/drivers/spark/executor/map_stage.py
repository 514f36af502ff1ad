"""Prefix: a stateless sub-topology that runs where its records are read.

Its sends to a repartition become chunk rows of the task their keys belong to: Spark's shuffle is the repartition. What it sends to
other topics is sent here, or passes through the shuffle untouched, to the sink.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from zlib import crc32

import pyarrow as pa

from millstream.core.engine.outcome import Outcome, Snapshot
from millstream.core.engine.records.queue import QueueId
from millstream.core.engine.task import Task
from millstream.core.engine.threads import added
from millstream.core.metrics.metric import Numbers
from millstream.core.model.ids import TaskId, TopicPartition
from millstream.core.model.positions import nested, positions_to_json
from millstream.core.model.record import Records
from millstream.core.ports import OffsetRange
from millstream.core.runtime.origins import first_offset, offsets_from, origins, topics_committed_later
from millstream.core.state.memory import MemoryStores
from millstream.drivers.spark import wire
from millstream.drivers.spark.clock import Reading
from millstream.drivers.spark.executor.dead_letters import sending_letters
from millstream.drivers.spark.executor.measures import StepFacts, measured
from millstream.drivers.spark.executor.partitioning import split_by_partition, split_by_range
from millstream.drivers.spark.executor.report import Report, report_of
from millstream.drivers.spark.logs import running_task
from millstream.drivers.spark.times import encode_times, timed_topics

if TYPE_CHECKING:
    from millstream.drivers.spark.spec import TopologySpec


class Prefix:
    """Runs one task of a stateless sub-topology over one planned range. Owned by the read."""

    def __init__(
        self,
        topology: TopologySpec,
        task: TaskId,
        planned: OffsetRange,
        batch: str,
        clock: Reading,
        time_ms: int = -1,
    ) -> None:
        sub = topology.plan.subtopologies[task.subtopology]
        self._at = TopicPartition(planned.topic, planned.partition)
        self._timed = planned.topic in timed_topics(sub)
        self._origins = origins(topology.plan)
        self._brought: Counter[str] = Counter()
        self.time_ms = time_ms
        """The partition time, ms since the epoch; -1 if there is none, or no extractor needs it."""
        self._topology = topology
        self._id = task
        running_task(str(task))
        self._planned = planned
        self._batch = batch
        self._clock = clock
        self._lane = f"{planned.topic}-{planned.partition}"
        self._start = planned.start
        self._read = self._read_bytes = 0
        self._began = time.perf_counter()
        self._numbers = Numbers()
        self._reports: list[Report] = []
        self._task = Task(
            sub,
            task,
            application_id=topology.plan.application_id,
            stores=MemoryStores(),
            policies=topology.policies,
            partitions_of=topology.partitions_of,
            most_bytes_of=topology.most_bytes_of,
            threads=topology.threads(task),
            snapshot=Snapshot(partition_times={QueueId(self._at, ""): time_ms}) if self._timed else None,
        )
        self._task.init(clock.now_ms)

    def run(self, records: Records) -> Iterator[pa.RecordBatch]:
        """Process records; give what comes out as chunk rows."""
        # What is merged by time is not in the order of offsets.
        end = max(records.offsets[-1], self._start) + 1
        self._read += len(records)
        self._read_bytes += records.byte_count()
        with sending_letters(self._topology.letters):
            self._task.feed(self._at, records, end)
            outcome = self._task.step(self._clock.now_ms)
        yield from self._rows(outcome, end)
        report = report_of(StepFacts(str(self._id), outcome))
        self._numbers.take(report.measured)
        self._reports.append(report)
        self._start = end

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Close the task; give its report."""
        if self._timed:
            self.time_ms = max(self._task.snapshot().partition_times.values(), default=-1)
        self._task.close()
        read = {self._at.topic: (self._read, self._read_bytes)}
        seconds = time.perf_counter() - self._began
        self._numbers.take(measured(StepFacts(str(self._id), read=read, seconds=seconds)))
        report = Report(
            str(self._id),
            {} if self._is_committed_later() else positions_to_json(nested({self._at: self._planned.end})),
            stream_time_ms=max((r.stream_time_ms for r in self._reports), default=-1),
            measured=self._numbers.rows(),
            first_record_ms=self._clock.now_ms if self._read else None,
            notices=[notice for r in self._reports for notice in r.notices][:5],
            threads=added(r.threads for r in self._reports),
            times=positions_to_json(nested(self._times())),
        )
        yield wire.arrow_rows([self._row(self._id, wire.REPORT, "", 0, self._planned.end, report.encode())])

    def remember(self) -> Iterator[pa.RecordBatch]:
        """Return what is to be kept for the next run, when all records have been processed; most parts keep nothing."""
        if times := self._times():
            payload = encode_times(times)
            yield wire.arrow_rows([self._row(self._id, wire.TIMES, *self._at, self._planned.end, payload)])

    def _times(self) -> dict[TopicPartition, int]:
        return {self._at: self.time_ms} if self._timed and self.time_ms >= 0 else {}

    def _rows(self, outcome: Outcome, end: int) -> Iterator[pa.RecordBatch]:
        plan, layout = self._topology.plan, self._topology.layout
        rows: list[tuple[Any, ...]] = []
        for topic, records in outcome.sends:
            internal = plan.internal_topics.get(topic)
            if internal is None or not internal.through_shuffle:
                records.writer = "" if internal is None else str(self._id)
                if self._topology.sender is not None:
                    self._topology.sender.publish(topic, records)
                    continue
                rows.append(self._row(self._id, wire.SEND, topic, 0, end, wire.encode(records)))
                continue
            records.offsets = self._offsets(topic, len(records))
            for number, part in split_by_partition(wire.to_arrow(records), layout.partitions[topic]):
                tasks = layout.tasks_of[TopicPartition(topic, number)]
                parts = [part] if len(tasks) == 1 else split_by_range(part, len(tasks))
                rows.extend(
                    self._row(task, wire.RECORDS, topic, number, end, wire.encode_batch(each))
                    for task, each in zip(tasks, parts)
                )
        if rows:
            yield wire.arrow_rows(rows)

    def _is_committed_later(self) -> bool:
        """Return whether how far the range may be committed depends on what becomes of its records behind the shuffle."""
        return self._planned.topic in topics_committed_later(self._topology.plan)

    def _offsets(self, repartition: str, count: int) -> list[int]:
        """Return the offsets of records behind a repartition."""
        if repartition not in self._origins:
            return list(range(self._start, self._start + count))
        batch = wire.batch_of(self._batch).number if self._batch else 0
        start = self._planned.start + self._brought[repartition]
        self._brought[repartition] += count
        return offsets_from(first_offset(batch, crc32(self._lane.encode())), start, count)

    def _row(
        self, task: TaskId, kind: int, topic: str, partition: int, end: int, payload: bytes
    ) -> tuple[Any, ...]:
        group = self._topology.groups[task]
        return (
            group,
            kind,
            str(task),
            topic,
            partition,
            self._lane,
            self._start,
            end,
            self._batch,
            *self._clock,
            payload,
        )
