"""How the hot key is found over many steps, and how the status shows calls."""

from __future__ import annotations

import pytest

from millstream.core.runtime.task_report import CallReport, HotKeySample, TaskReport
from millstream.edge.cli.control_commands import status_lines
from millstream.edge.status.async_status import HotKeyStatuses
from millstream.edge.status.task_reports import TaskReports


def step(key: str, records: int, of: int = 100, call_ms: float = 10.0, per_call: int = 1) -> HotKeySample:
    return HotKeySample("call", key, records, of, call_ms, per_call)


def test_the_key_that_leads_in_most_steps_is_hot_and_its_ceiling_follows_the_last_calls() -> None:
    hot_keys = HotKeyStatuses()
    for turn in range(50):
        hot_keys.note(step("hot", 18, call_ms=5.0 + turn) if turn % 5 else step(f"cold {turn}", 20))
    hot_keys.note(step("hot", 18, call_ms=10.0, per_call=5))
    now = hot_keys.now()
    assert now is not None
    assert now.key == "hot"
    assert now.share == pytest.approx(18 * 41 / 5_100)
    assert now.ceiling_per_s == pytest.approx(5 / (now.share * 0.010))


def test_evenly_distributed_keys_are_not_hot() -> None:
    hot_keys = HotKeyStatuses()
    for number in range(1_000):
        hot_keys.note(step(f"k{number % 100}", 1, of=1))
    now = hot_keys.now()
    assert now is not None
    assert now.share == pytest.approx(0.01)


def test_another_key_becomes_hot_after_a_while() -> None:
    hot_keys = HotKeyStatuses()
    for key in ["old"] * 200 + ["new"] * 200:
        hot_keys.note(step(key, 50))
    now = hot_keys.now()
    assert now is not None
    assert now.key == "new"


def test_there_is_no_ceiling_before_the_first_answer() -> None:
    hot_keys = HotKeyStatuses()
    assert hot_keys.now() is None
    hot_keys.note(step("a", 1, call_ms=0.0))
    now = hot_keys.now()
    assert now is not None
    assert now.ceiling_per_s is None


def test_status_and_metrics_say_why_records_wait_and_which_key_is_hot() -> None:
    report = CallReport(
        running=2,
        with_async_worker=10,
        waiting=5,
        delayed=3,
        queued=[4, 1, 0, 3],
        parked=7,
        most_per_key=9,
        hottest=[step("'k'", 20)],
    )
    task_reports = TaskReports()
    task_reports.record_batch(0, [TaskReport.decode(TaskReport("0_0", calls=report).encode())])
    status = task_reports.status("running", None)
    (calls,) = status.calls.values()
    expected = {"retry": 2, "delay": 3, "key": 4, "limit": 1, "rate": 0, "breaker": 3}
    assert calls.reasons == expected
    metrics = task_reports.metrics()
    assert {name: metrics[f"calls_waiting: {name}"] for name in expected} == expected
    assert (metrics["calls_waiting"], metrics["calls_ceiling_per_s"]) == (5, 500)
    assert (
        "  calls        0_0: 2 running, 10 with the async worker (4 for their key, 1 for max_in_flight, 3 for a circuit breaker), "
        "5 waiting (2 for a retry, 3 for a delay), 7 parked, 0 held, key 'k' has 20.0% of call, which allows 500/s"
    ) in status_lines("app", status)
