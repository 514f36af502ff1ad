"""Calls with a time limit of our own, limits for waiting, and how long a transaction has been open."""

from __future__ import annotations

import threading

import pytest

from millstream.drivers.kafka import overdue
from millstream.drivers.kafka.overdue import Overdue, Patience, Stopwatch, in_time


def test_what_a_call_raises_is_raised() -> None:
    def failing(timeout: float) -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        in_time(failing)


def test_a_call_that_is_overdue_is_left_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overdue, "_GRACE_S", 0.01 - overdue.STEP_S)
    goes_on, ended = threading.Event(), threading.Event()

    def standing(timeout: float) -> None:
        goes_on.wait()
        ended.set()

    with pytest.raises(Overdue, match="no answer for 0 s"):
        in_time(standing)
    goes_on.set()
    assert ended.wait(30)


def test_the_longest_time_in_which_nothing_was_done(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(overdue, "_clock_s", lambda: clock[0])
    watch = Stopwatch()
    for clock[0] in (101.0, 196.0, 199.0):
        watch.look()
    assert (watch.passed_s, watch.longest_s) == (99.0, 95.0)
    watch.restart()
    assert (watch.passed_s, watch.longest_s) == (0.0, 0.0)


def test_a_suspension_counts_as_one_step_of_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(overdue.time, "monotonic", lambda: clock[0])
    patience = Patience(60.0)
    over = [patience.is_over() for clock[0] in (110.0, 510.0, 520.0, 530.0, 530.1)]
    assert over == [False, False, False, False, True]
    patience.restart()
    assert (patience.is_over(), patience.waited_s) == (False, 0.0)
