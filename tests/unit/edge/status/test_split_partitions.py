"""The status of an application that reads split partitions: a fan-out topic counts as the topic that was split."""

from __future__ import annotations

import millstream as ms
from millstream.core.metrics.metric import Number
from millstream.core.model.ids import TopicPartition
from millstream.core.runtime.task_report import TaskReport
from millstream.core.topology.plan import Plan
from millstream.edge.status.task_reports import TaskReports

LOG = "orders-fanout-0"


def plan() -> Plan:
    builder = ms.StreamsBuilder()
    orders = builder.stream("orders", fan_out=True).merge(builder.stream("others"))
    orders.group_by_key().count(store="counts").to_stream().to("out")
    return builder.build().plan("app", existing=["orders", "others", LOG])


def reports() -> TaskReports:
    book = TaskReports(plan=plan())
    book.planned({"orders": {0: 6, 1: 3}, LOG: {0: 1, 1: 0}}, {"orders": {0: 6, 1: 5}, LOG: {0: 4, 1: 7}})
    return book


def test_unprocessed_records_of_all_logs_are_the_lag_of_the_topic() -> None:
    book = reports()
    assert book.status("running", None).lag == {"orders": 2 + 3 + 7}
    book.committed(0, [TaskReport("0_0", {TopicPartition(LOG, 1): 5})])
    assert book.status("running", None).lag == {"orders": 2 + 3 + 2}
    assert book.committed_of(0, {"orders", LOG})[2:] == (
        {"orders": {0: 6, 1: 3}, LOG: {0: 1, 1: 5}},
        2 + 3 + 2,
    )


def test_records_of_all_logs_are_measured_for_the_topic() -> None:
    def read(*counts: tuple[str, int]) -> list[Number]:
        return [("topic_records_consumed_total", ("0_0", topic), count) for topic, count in counts]

    book = reports()
    waiting: list[Number] = [("task_active_buffer_count", ("0_0", topic), 2) for topic in ("orders", LOG)]
    first = TaskReport("0_0", measured=[*read(("orders", 5), ("others", 1)), *waiting])
    book.committed(0, [first])
    book.committed(1, [TaskReport("0_0", measured=[*read((LOG, 4), ("orders", 1)), *waiting])])
    measured = book.measured()
    assert measured.of("topic_records_consumed_total") == {("0_0", "orders"): 10, ("0_0", "others"): 1}
    assert measured.of("task_active_buffer_count") == {("0_0", "orders"): 4}
    assert book.metrics()["read_records"] == 11


def test_buffered_records_of_all_logs_are_those_of_the_topic() -> None:
    book = reports()
    buffered = [
        ("orders", 0, 0, 3, 30, 7),
        (LOG, 0, 0, 2, 20, 8),
        (LOG, 1, 0, 1, 10, 9),
        ("others", 0, 0, 1, 10, 9),
    ]
    book.committed(0, [TaskReport("0_0", buffered=buffered)])
    assert book.status("running", None).buffered == {"orders": 6, "others": 1}
    assert book.buffered_inputs({}).buffered.keys() == {
        TopicPartition(topic, number) for topic, number, *_ in buffered
    }, "the planner knows each log"
