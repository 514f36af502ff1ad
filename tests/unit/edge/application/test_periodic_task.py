"""Work that is repeated in a thread of the application: one failure does not end it."""

from __future__ import annotations

import logging
import queue
from collections.abc import Iterator

import pytest

from millstream.core.model.errors import BrokerUnavailableError, MillstreamError
from millstream.edge.application.periodic_task import PeriodicTask

_WAIT_S = 60


class FailingWork:
    """Work that raises each of the given errors once."""

    def __init__(self, *errors: Exception) -> None:
        self._errors = list(errors)
        self.calls: queue.Queue[int] = queue.Queue()

    def __call__(self) -> None:
        self.calls.put(len(self._errors))
        if self._errors:
            raise self._errors.pop(0)


@pytest.fixture
def tasks() -> Iterator[list[PeriodicTask]]:
    started: list[PeriodicTask] = []
    yield started
    for task in started:
        task.close()


@pytest.mark.parametrize(
    "error", [MillstreamError("not permitted now"), RuntimeError("a bug"), BrokerUnavailableError("away")]
)
def test_work_continues_after_a_failure(error: Exception, tasks: list[PeriodicTask]) -> None:
    work = FailingWork(error, error)
    tasks.append(PeriodicTask(work, 0.01))
    assert [work.calls.get(timeout=_WAIT_S) for _ in range(4)] == [2, 1, 0, 0]


def test_a_lasting_failure_is_logged_once(
    tasks: list[PeriodicTask], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "millstream.application"):
        work = FailingWork(*[MillstreamError("topic 'in': not permitted")] * 3, MillstreamError("another"))
        tasks.append(PeriodicTask(work, 0.01))
        while work.calls.get(timeout=_WAIT_S):
            pass
    assert caplog.messages == [
        "topic 'in': not permitted. This is tried again every 0.01 s",
        "another. This is tried again every 0.01 s",
    ]
