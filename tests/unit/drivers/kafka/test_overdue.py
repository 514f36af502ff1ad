"""Time limits for calls of the client and for waiting, and the time for which a transaction is open."""

from __future__ import annotations

import threading

import pytest

from millstream.drivers.kafka import overdue
from millstream.drivers.kafka.overdue import Overdue, Patience, Stopwatch, in_time


def test_the_exception_of_a_call_is_raised() -> None:
    def failing(timeout: float) -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        in_time(failing)


def test_an_overdue_call_is_abandoned_but_not_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overdue, "_GRACE_S", 0.01 - overdue.STEP_S)
    resumed, ended = threading.Event(), threading.Event()

    def hanging(timeout: float) -> None:
        resumed.wait()
        ended.set()

    with pytest.raises(Overdue, match="no answer for 0 s"):
        in_time(hanging)
    resumed.set()
    assert ended.wait(30)


def test_a_stopwatch_measures_the_longest_time_without_activity(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(overdue, "_clock_s", lambda: clock[0])
    watch = Stopwatch()
    for clock[0] in (101.0, 196.0, 199.0):
        watch.look()
    assert (watch.passed_s, watch.longest_s) == (99.0, 95.0)
    watch.restart()
    assert (watch.passed_s, watch.longest_s) == (0.0, 0.0)


def test_a_suspension_of_the_process_counts_as_one_step_of_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(overdue.time, "monotonic", lambda: clock[0])
    patience = Patience(60.0)
    over = [patience.is_over() for clock[0] in (110.0, 510.0, 520.0, 530.0, 530.1)]
    assert over == [False, False, False, False, True]
    patience.restart()
    assert (patience.is_over(), patience.waited_s) == (False, 0.0)
