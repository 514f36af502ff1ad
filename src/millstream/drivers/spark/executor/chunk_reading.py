"""Reading: fetches planned ranges and makes chunk rows of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any

import pyarrow as pa

from millstream.core.engine.records.merging import merged_by_time
from millstream.core.engine.records.queue import MERGED
from millstream.core.model.ids import TaskId, TopicPartition
from millstream.core.model.record import Records
from millstream.core.ports import OffsetRange
from millstream.core.topology.analysis.ranges import needs_steps
from millstream.drivers.spark import wire
from millstream.drivers.spark.executor.global_end_rows import with_global_ends
from millstream.drivers.spark.executor.key_hashing import split_by_range
from millstream.drivers.spark.executor.map_stage import MapStage
from millstream.drivers.spark.executor.task_messages import with_taps
from millstream.drivers.spark.planned_reads import PlannedRead
from millstream.drivers.spark.spec import SourceSpec, TopologySpec


def read(spec: SourceSpec, planned: PlannedRead) -> Iterator[pa.RecordBatch]:
    """Read a planned read as chunk rows; returns after what the map stage has sent is acknowledged."""
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
    # Offsets without records at the end of the range: transaction markers, compaction.
    if start < wanted.end:
        yield rows(wanted.end, repeat(b""))


def _payloads(records: Records, ranges: int, *, with_steps: bool) -> list[bytes]:
    """Return records as payloads, one per key range."""
    if ranges == 1:
        return [wire.encode(records)]
    parts = split_by_range(wire.to_arrow(records), ranges, with_steps=with_steps)
    return [wire.encode_batch(part) for part in parts]
