"""The part of a topology in front of the shuffle, as a reader runs it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

import millstream as ms
from millstream.core.model.ids import TaskId, TopicPartition
from millstream.core.ports import OffsetRange
from millstream.core.runtime.batch_plan import WallClock
from millstream.core.runtime.origins import batch_of
from millstream.core.runtime.partition_times import decode_times
from millstream.core.runtime.task_report import TaskReport
from millstream.core.topology.layout import lay_out
from millstream.drivers.spark import wire
from millstream.drivers.spark.driver.placement import grouping_keys
from millstream.drivers.spark.source import MapStage
from millstream.drivers.spark.spec import PlannedRead, TopologySpec
from millstream.drivers.threads import ThreadsOfTasks
from unit.helpers import Meeting, records

TASK = TaskId(0, 0)


def run_stage(mapper: Any, threads: int) -> tuple[list[Any], TaskReport]:
    """Run two chunks of records of one range, and return the output rows and the report."""
    builder = ms.StreamsBuilder()
    builder.stream("in").map_values(mapper).group_by(lambda key, value: value[0]).count()
    plan = builder.build().plan("app")
    layout = lay_out(plan, {"in": 1})
    counts = dict.fromkeys(layout.tasks, threads)
    spec = TopologySpec(
        plan, layout, grouping_keys(layout.tasks), ms.ErrorPolicies(), {}, threads=ThreadsOfTasks(counts)
    )
    stage = MapStage(spec, TASK, OffsetRange("in", 0, 0, 8), PlannedRead("5f3a:4:c41d", WallClock(0)))
    rows: list[Any] = []
    for start in (0, 4):
        chunk = records([(None, letter, timestamp) for timestamp, letter in enumerate("abcd")], start)
        rows.extend(row for batch in stage.run(chunk) for row in batch.to_pylist())
    (report_row,) = [row for batch in stage.finish() for row in batch.to_pylist()]
    assert report_row["kind"] == wire.REPORT
    return rows, TaskReport.decode(report_row["payload"])


@pytest.mark.parametrize("count", [2, 4])
def test_threads_call_a_function_concurrently_and_yield_the_rows_of_one_thread(count: int) -> None:
    alone, _ = run_stage(lambda value: f"{value}!", 1)
    together, report = run_stage(Meeting(count), count)
    assert together == alone
    assert report.threads is not None
    assert (len(report.threads.executed), sum(report.threads.executed)) == (count, 8)
    assert min(report.threads.executed) > 0


def event_time(record: Any, partition_time: int) -> int:
    """Extract timestamps like the example in ``docs/concepts/time.md``."""
    return int(record.value.split(":")[0]) if ":" in record.value else partition_time


def extracted(cuts: list[int]) -> list[int]:
    """Return the timestamps of records that several micro-batches read; each starts with the state that the previous one left."""
    values = ["50:a", "20:b", "c", "d", "70:e", "f", "60:g", "h"]
    builder = ms.StreamsBuilder()
    builder.stream("in", timestamp=event_time).to("out")
    plan = builder.build().plan("app")
    layout = lay_out(plan, {"in": 1})
    spec = TopologySpec(plan, layout, grouping_keys(layout.tasks), ms.ErrorPolicies(), {"out": 1})
    found: list[int] = []
    times = {TopicPartition("in", 0): -1}
    bounds = [0, *cuts, len(values)]
    for number, (start, end) in enumerate(pairwise(bounds)):
        known = times[TopicPartition("in", 0)]
        read = PlannedRead(f"5f3a:{number}", WallClock(0), times={"in": {0: known}})
        stage = MapStage(spec, TASK, OffsetRange("in", 0, start, end), read)
        chunk = records([("k", value, 7) for value in values[start:end]], start)
        for batch in [*stage.run(chunk), *stage.finish(), *stage.remember()]:
            for row in batch.to_pylist():
                if row["kind"] == wire.SEND:
                    found.extend(wire.decode(row["payload"]).timestamps)
                if row["kind"] == wire.TIMES:
                    times = dict(decode_times(row["payload"]))
                if row["kind"] == wire.REPORT:
                    assert TaskReport.decode(row["payload"]).times == {TopicPartition("in", 0): stage.time_ms}
    return found


@pytest.mark.parametrize("cuts", [[], [1], [2], [3, 5], [1, 2, 3, 4, 5, 6, 7]])
def test_partition_time_continues_across_micro_batches(cuts: list[int]) -> None:
    assert extracted(cuts) == [50, 20, 50, 50, 70, 70, 60, 70]


def test_a_stage_without_a_timestamp_extractor_reports_no_partition_times() -> None:
    _, report = run_stage(lambda value: f"{value}!", 1)
    assert report.times == {}


def test_offsets_in_front_of_async_operators_contain_the_micro_batch_and_are_not_committed() -> None:
    builder = ms.StreamsBuilder()
    doubled = builder.stream("in").flat_map_values(lambda value: [value, value])
    doubled.repartition(name="again", partitions=1).map_values_async(str.upper).to("out")
    plan = builder.build().plan("app")
    layout = lay_out(plan, {"in": 1})
    spec = TopologySpec(plan, layout, grouping_keys(layout.tasks), ms.ErrorPolicies(), {"out": 1})
    stage = MapStage(spec, TASK, OffsetRange("in", 0, 10, 14), PlannedRead("5f3a:4:c41d", WallClock(0)))
    rows = [
        row
        for start in (10, 12)
        for batch in stage.run(records([("k", "v", 7)] * 2, start))
        for row in batch.to_pylist()
    ]
    offsets = [offset for row in rows for offset in wire.decode(row["payload"]).offsets]
    assert {batch_of(offset) for offset in offsets} == {4}
    assert len(set(offsets)) == 8
    (report_row,) = [row for batch in stage.finish() for row in batch.to_pylist()]
    assert TaskReport.decode(report_row["payload"]).offsets == {}


def test_taps_sample_before_the_shuffle_up_to_the_limit_of_the_task() -> None:
    builder = ms.StreamsBuilder()
    builder.stream("in", name="read").group_by(lambda key, value: value).count(name="counted")
    plan = builder.build().plan("app")
    layout = lay_out(plan, {"in": 1})
    spec = TopologySpec(plan, layout, grouping_keys(layout.tasks), ms.ErrorPolicies(), {})
    read = PlannedRead("5f3a:4:c41d", WallClock(9), taps=("read", "counted"))
    stage = MapStage(spec, TASK, OffsetRange("in", 0, 0, 120), read)
    for start in (0, 60):
        list(stage.run(records([("k", "v", 7)] * 60, start)))
    (report_row,) = [row for batch in stage.finish() for row in batch.to_pylist()]
    taps = TaskReport.decode(report_row["payload"]).taps
    assert [(tap.node, tap.now_ms, tap.passed, len(tap.samples)) for tap in taps] == [
        ("read", 9, 60, 60),
        ("read", 9, 60, 40),
    ]
    assert [sample.offset for tap in taps for sample in tap.samples] == list(range(100))
