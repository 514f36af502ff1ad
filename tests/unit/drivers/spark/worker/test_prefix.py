"""The part in front of a shuffle, as a reader runs it."""

from __future__ import annotations

from typing import Any

import pytest

import penstock as ps
from penstock.core.model.ids import TaskId
from penstock.core.plan.layout import lay_out
from penstock.core.ports import OffsetRange
from penstock.drivers.spark import wire
from penstock.drivers.spark.spec import TopologySpec
from penstock.drivers.spark.submit.placement import grouping_keys
from penstock.drivers.spark.worker.prefix import Prefix
from penstock.drivers.spark.worker.report import Report
from penstock.drivers.threads import ThreadsOfTasks
from unit.helpers import Meeting, records

TASK = TaskId(0, 0)


def ran(mapper: Any, threads: int) -> tuple[list[Any], Report]:
    """Run two chunks of records of one range; give the rows that come out, and the report."""
    builder = ps.StreamsBuilder()
    builder.stream("in").map_values(mapper).group_by(lambda key, value: value[0]).count()
    plan = builder.build().plan("app")
    layout = lay_out(plan, {"in": 1})
    counts = dict.fromkeys(layout.tasks, threads)
    spec = TopologySpec(
        plan, layout, grouping_keys(layout.tasks), ps.ErrorPolicies(), {}, threads=ThreadsOfTasks(counts)
    )
    prefix = Prefix(spec, TASK, OffsetRange("in", 0, 0, 8), "5f3a:4", 0)
    rows: list[Any] = []
    for start in (0, 4):
        chunk = records([(None, letter, at) for at, letter in enumerate("abcd")], start)
        rows.extend(row for batch in prefix.run(chunk) for row in batch.to_pylist())
    (told,) = [row for batch in prefix.finish() for row in batch.to_pylist()]
    assert told["kind"] == wire.REPORT
    return rows, Report.decode(told["payload"])


@pytest.mark.parametrize("count", [2, 4])
def test_threads_of_its_task_are_in_a_function_at_once_and_give_what_one_gives(count: int) -> None:
    alone, _ = ran(lambda value: f"{value}!", 1)
    together, report = ran(Meeting(count), count)
    assert together == alone
    assert report.threads is not None
    assert (len(report.threads.executed), sum(report.threads.executed)) == (count, 8)
    assert min(report.threads.executed) > 0
