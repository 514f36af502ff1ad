"""A fake application for tests of metrics and pages."""

from __future__ import annotations

from collections.abc import Mapping

from millstream.core.metrics.metric import Number, Numbers
from millstream.core.model.ids import TopicPartition
from millstream.core.runtime.task_report import CallReport, HotKeySample, TaskReport
from millstream.drivers.spark.executor.restore_progress import RestoreProgress
from millstream.edge.status.application_status import Status
from millstream.edge.status.task_reports import TaskReports

NUMBERS: list[Number] = [
    ("topic_records_consumed_total", ("0_0", "in"), 12),
    ("topic_records_produced_total", ("0_0", "out"), 10),
    ("task_process_total", ("0_0",), 12),
    ("task_dropped_records_total", ("0_0", 'late "quoted"\n\\'), 2),
    ("store_bytes", ("0_0", "counts"), 7),
    ("operator_calls_total", ("0_0", "ask"), 3),
]


class FakeApplication:
    """Has one task, which lags behind, waits for calls, and restores a store."""

    def __init__(self, state: str = "running") -> None:
        self.id = "orders"
        self.state = state
        self.book = TaskReports()
        self.book.planned({"in": {0: 12}}, {"in": {0: 20}}, 1_500)
        calls = CallReport(running=1, hottest=[HotKeySample("ask", "'k'", 5, 10, 10.0, 1)])
        self.book.record_batch(
            4,
            [TaskReport("0_0", {TopicPartition("in", 0): 12}, measured=NUMBERS, calls=calls, executor="h/0")],
        )
        self.book.restoring(RestoreProgress("0_0", "counts", "it is missing", None, 5, 40, 100, 1.0))

    def status(self) -> Status:
        return self.book.status(self.state, None)

    def metrics(self) -> Mapping[str, int]:
        return self.book.metrics()

    def measured(self) -> Numbers:
        return self.book.measured()
