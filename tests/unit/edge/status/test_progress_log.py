"""What an application logs while it runs."""

from __future__ import annotations

import pytest

from millstream.edge.status.application_status import Status
from millstream.edge.status.progress_log import RepeatedWarnings, progress_line, reasons, summary
from millstream.edge.status.task_reports import TaskReports

NOTHING = {"read_records": 0, "sent_records": 0, "dropped_records": 0}


class TestLines:
    def test_show_records_rate_lag_and_the_time_of_a_micro_batch(self) -> None:
        status = Status("running", 7, {"a": 100, "b": 20}, 1234.5, 2, batch_s=0.649)
        assert progress_line(status, {"read_records": 12_345}) == (
            "12,345 records read, 1,234 records/s, lag 120, micro-batch 0.65 s"
        )

    def test_show_that_the_application_waits_for_records(self) -> None:
        status = Status("running", -1, {"a": 0}, 0.0, 2)
        assert progress_line(status, NOTHING) == "0 records read, 0 records/s, lag 0; waiting for records"

    @pytest.mark.parametrize(
        ("status", "why"),
        [
            (Status("waiting", 1, {}, 0.0, 1), ["waiting for the broker"]),
            (Status("draining", 1, {}, 0.0, 1), ["finishing unfinished records"]),
            (Status("running", 1, {}, 0.0, 1, paused=["a", "b"]), ["paused: a, b"]),
            (
                Status("running", 1, {"a": 5, "b": 0}, 0.0, 1, throttled={"a": 1_000, "b": 1}),
                ["throttled: topic a at 1,000 records/s"],
            ),
            (Status("running", 1, {}, 0.0, 1, restoring=["x 10 %"]), ["x 10 %"]),
            (
                Status("running", 1, {}, 0.0, 4, waiting={f"0_{n}": "has waited" for n in range(4)}),
                ["task 0_0 has waited", "task 0_1 has waited", "2 more tasks wait"],
            ),
        ],
    )
    def test_show_what_delays_the_application(self, status: Status, why: list[str]) -> None:
        assert reasons(status) == why
        assert progress_line(status, NOTHING).split("; ")[1:] == why

    def test_the_summary_shows_totals_and_lag(self) -> None:
        status = Status("stopped", 7, {"a": 1}, 0.0, 2)
        metrics = {"read_records": 1000, "sent_records": 900, "dropped_records": 0}
        assert summary(status, metrics, 12.34) == "stopped after 12.3 s: 1,000 records read, 900 sent, lag 1"
        assert "900 sent, 3 dropped, lag" in summary(status, {**metrics, "dropped_records": 3}, 1)

    def test_the_time_of_a_micro_batch_lasts_from_its_plan_to_its_commit(self) -> None:
        task_reports = TaskReports()
        assert task_reports.status("running", None).batch_s is None
        task_reports.planned({}, {})
        task_reports.record_batch(0, [])
        assert 0 <= (task_reports.status("running", None).batch_s or -1) < 5


class TestRepeatedWarnings:
    def test_are_counted_by_their_kind(self) -> None:
        warnings: list[str] = []
        repeated = RepeatedWarnings(warnings.append)
        for n in range(1000):
            repeated.warn(f"record {n} of 'topic-{n}' is bad")
        repeated.warn("another kind")
        assert warnings == ["record 0 of 'topic-0' is bad", "another kind"]
        repeated.flush()
        repeated.flush()
        assert warnings[2:] == ["at least 999 more like: record 0 of 'topic-0' is bad"]
        repeated.warn("record 5 of 'x' is bad")
        repeated.flush()
        assert warnings[3:] == ["at least 1 more like: record 0 of 'topic-0' is bad"]

    def test_are_shortened_when_they_are_repeated(self) -> None:
        warnings: list[str] = []
        repeated = RepeatedWarnings(warnings.append)
        for _ in range(2):
            repeated.warn("x" * 500)
        repeated.flush()
        assert (len(warnings[0]), warnings[1]) == (500, f"at least 1 more like: {'x' * 100}...")

    def test_take_a_bounded_amount_of_memory(self) -> None:
        repeated = RepeatedWarnings(lambda _: None)
        for n in range(5_000):
            repeated.warn("kind " + "x" * n)
        assert len(repeated._more) <= 1000
