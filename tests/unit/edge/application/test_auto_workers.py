"""Automatic workers measure the load of micro-batches and of idle times, and wait until each change is complete."""

from __future__ import annotations

import queue
from collections.abc import Iterator

import pytest

from millstream.core.runtime.auto_parallelism import WorkersChange
from millstream.core.runtime.task_report import TaskReport
from millstream.drivers.spark.executor import measures
from millstream.edge.application.auto_workers import AutoWorkers


class FakeApplication:
    """An application on two cores whose clock is set by the test."""

    def __init__(self) -> None:
        self.now = 0.0
        self.changes: queue.Queue[WorkersChange] = queue.Queue()
        self.auto = AutoWorkers(1, lambda: 2, lambda: 16, self.changes.put, lambda: self.now)

    def batch(self, seconds: float, *, waiting: int) -> bool:
        """Run a micro-batch whose tasks process all the time; return whether the next one must wait."""
        self.now += seconds
        reports = [
            TaskReport(task, measured=((measures.SECONDS, (task,), seconds / 16),))
            for task in (f"0_{number}" for number in range(16))
        ]
        self.auto.record_batch(reports)
        return self.auto.planned(waiting)

    def idle(self, seconds: float) -> bool:
        self.now += seconds
        return self.auto.planned(0)


@pytest.fixture
def running() -> Iterator[FakeApplication]:
    application = FakeApplication()
    yield application
    application.auto.close()


def test_a_change_delays_the_next_micro_batch_and_is_applied(running: FakeApplication) -> None:
    assert [running.batch(4, waiting=10) for _ in range(3)] == [False, False, True]
    assert running.changes.get(timeout=30).workers == 2


def test_the_first_commit_after_a_change_ends_it(running: FakeApplication) -> None:
    while not running.batch(4, waiting=10):
        pass
    assert running.changes.get(timeout=30).workers == 2
    assert [running.idle(20) for _ in range(3)] == [False] * 3  # it is not running again yet
    running.batch(1, waiting=0)
    idle_s = 0
    while not running.idle(1):
        idle_s += 1
    assert running.changes.get(timeout=30).workers == 1
    assert idle_s == 61 - 1  # the duration of the change


def test_time_without_micro_batches_is_counted_in_seconds(running: FakeApplication) -> None:
    while not running.batch(4, waiting=10):
        pass
    running.changes.get(timeout=30)
    running.batch(0, waiting=0)
    assert not any(running.idle(0.25) for _ in range(59))
    assert running.idle(0.25)
    assert running.changes.get(timeout=30).workers == 1


def test_short_micro_batches_between_pauses_are_a_low_load(running: FakeApplication) -> None:
    while not running.batch(4, waiting=10):
        pass
    running.changes.get(timeout=30)
    running.batch(0, waiting=0)
    assert any(running.idle(0.5) or running.idle(0.5) or running.batch(0.1, waiting=0) for _ in range(30))
    assert running.changes.get(timeout=30).workers == 1
