"""Counts of the last ten seconds, which may not be read for days."""

from __future__ import annotations

import pytest

from millstream.core.runtime.task_report import TaskReport
from millstream.edge.status import key_range_status
from millstream.edge.status.key_range_status import Recent, TaskWork


class SteppingClock:
    """A clock that advances by a second each time it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 1
        return self.now


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_range_status, "time", SteppingClock())


def test_old_counts_are_forgotten_even_if_they_are_never_read() -> None:
    recent = Recent()
    for _ in range(1_000):
        recent.add(5)
    assert len(recent._counts) <= 11
    assert recent.per_second() == pytest.approx(5, abs=0.5)


def test_the_work_of_tasks_without_key_ranges_takes_a_bounded_amount_of_memory() -> None:
    work = TaskWork()
    for _ in range(1_000):
        work.note(TaskReport("0_0"))
    assert len(work._records["0_0"]._counts) <= 11
    assert len(work._seconds["0_0"]._counts) <= 11
