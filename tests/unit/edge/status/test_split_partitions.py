"""The status of split partitions: each has one lag and one position over all its logs."""

from __future__ import annotations

import millstream as ms
from millstream.core.fanout.epochs import History
from millstream.core.fanout.reading import EpochRead
from millstream.core.metrics.metric import Number
from millstream.core.model.ids import TopicPartition
from millstream.core.runtime.task_report import TaskReport
from millstream.core.topology.analysis.ranges import divided_plan
from millstream.core.topology.plan import Plan
from millstream.edge.cli.control_commands import status_lines
from millstream.edge.status.application_status import SplitStatus
from millstream.edge.status.task_reports import TaskReports

PRIMARY = TopicPartition("orders", 0)
LOG = "orders-fanout-0"
FIRST, SECOND = TopicPartition(LOG, 0), TopicPartition(LOG, 1)
SPLIT = History.new(PRIMARY).changed(2, {PRIMARY: 6, FIRST: 0, SECOND: 0})
MERGED = SPLIT.changed(1, {PRIMARY: 6, FIRST: 4, SECOND: 7})
"""Positions 0 to 6 are in the primary, 7 to 14 in the fan-out topic, and those from 15 on in the primary again."""


def plan() -> Plan:
    builder = ms.StreamsBuilder()
    orders = builder.stream("orders", fan_out=True).merge(builder.stream("others"))
    orders.group_by_key().count(store="counts").to_stream().to("out")
    return builder.build().plan("app", existing=["orders", "others", LOG])


def reports() -> TaskReports:
    task_reports = TaskReports(plan=plan())
    task_reports.planned(
        {"orders": {0: 6, 1: 3}, LOG: {0: 1, 1: 0}}, {"orders": {0: 6, 1: 5}, LOG: {0: 4, 1: 7}}
    )
    return task_reports


def test_unprocessed_records_of_all_logs_are_the_lag_of_the_topic() -> None:
    task_reports = reports()
    assert task_reports.status("running", None).lag == {"orders": 2 + 3 + 7}
    task_reports.record_batch(0, [TaskReport("0_0", {TopicPartition(LOG, 1): 5})])
    assert task_reports.status("running", None).lag == {"orders": 2 + 3 + 2}
    assert task_reports.committed_of(0, {"orders", LOG})[2:] == (
        {"orders": {0: 6, 1: 3}, LOG: {0: 1, 1: 5}},
        2 + 3 + 2,
    )


def test_records_of_all_logs_are_measured_for_the_topic() -> None:
    def read(*counts: tuple[str, int]) -> list[Number]:
        return [("topic_records_consumed_total", ("0_0", topic), count) for topic, count in counts]

    task_reports = reports()
    waiting: list[Number] = [("task_active_buffer_count", ("0_0", topic), 2) for topic in ("orders", LOG)]
    first = TaskReport("0_0", measured=[*read(("orders", 5), ("others", 1)), *waiting])
    task_reports.record_batch(0, [first])
    task_reports.record_batch(1, [TaskReport("0_0", measured=[*read((LOG, 4), ("orders", 1)), *waiting])])
    measured = task_reports.measured()
    assert measured.of("topic_records_consumed_total") == {("0_0", "orders"): 10, ("0_0", "others"): 1}
    assert measured.of("task_active_buffer_count") == {("0_0", "orders"): 4}
    assert task_reports.metrics()["read_records"] == 11


def test_buffered_records_of_all_logs_are_counted_for_the_topic() -> None:
    task_reports = reports()
    buffered = [
        ("orders", 0, 0, 3, 30, 7),
        (LOG, 0, 0, 2, 20, 8),
        (LOG, 1, 0, 1, 10, 9),
        ("others", 0, 0, 1, 10, 9),
    ]
    task_reports.record_batch(0, [TaskReport("0_0", buffered=buffered)])
    assert task_reports.status("running", None).buffered == {"orders": 6, "others": 1}
    assert task_reports.buffered_inputs({}, now_ms=0).buffered.keys() == {
        TopicPartition(topic, number) for topic, number, *_ in buffered
    }, "the planner knows each log"


def test_a_split_partition_has_one_position_in_all_epochs() -> None:
    task_reports = reports()
    assert task_reports.status("running", None).splits == {}

    def split(history: History, epoch: int, **offsets: int) -> SplitStatus:
        task_reports.set_epochs((EpochRead(history, history.epochs[epoch]),))
        report = {PRIMARY: offsets["primary"], FIRST: offsets["first"], SECOND: offsets["second"]}
        task_reports.record_batch(0, [TaskReport("0_0", report)])
        return task_reports.status("running", None).splits["orders-0"]

    assert split(SPLIT, 0, primary=4, first=0, second=0) == SplitStatus(0, 1, 1, 4, 2 + 4 + 7)
    assert split(SPLIT, 1, primary=6, first=1, second=3) == SplitStatus(1, 1, 2, 7 + 1, 3 + 4)
    assert split(MERGED, 1, primary=6, first=4, second=3) == SplitStatus(1, 2, 2, 7 + 3, 4)
    assert split(MERGED, 2, primary=6, first=4, second=7) == SplitStatus(2, 2, 1, 15, 0)
    line = "  split        orders-0: epoch 2 of 2, one key range, position 15, lag 0"
    assert line in status_lines("app", task_reports.status("running", None))


def test_a_partition_that_is_not_read_or_was_never_split_is_not_shown() -> None:
    task_reports, other = reports(), History.new(TopicPartition("others", 0))
    task_reports.set_epochs(
        (EpochRead(other, other.current), EpochRead(other.changed(1, {other.primary: 0}), other.current))
    )
    assert task_reports.status("running", None).splits == {}


def test_a_key_range_has_one_position_for_all_logs_of_a_split_partition() -> None:
    task_reports = reports()
    task_reports.replan(divided_plan(plan(), {"orders": 4, "others": 4}), [])
    task_reports.set_epochs((EpochRead(SPLIT, SPLIT.current),))
    primary = {PRIMARY: 6, TopicPartition("others", 0): 9}
    task_reports.record_batch(
        0,
        [
            TaskReport("0_0", {**primary, FIRST: 2, SECOND: 0}),
            TaskReport("0_15", {**primary, FIRST: 0, SECOND: 5}),
        ],
    )
    ranges = task_reports.status("running", None).ranges
    assert ranges["0_0"].positions == {"orders-0": 7 + 2, "others-0": 9}
    assert ranges["0_15"].positions == {"orders-0": 7 + 5, "others-0": 9}
