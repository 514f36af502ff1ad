"""When a task wakes for its in-flight calls, and until when it reads no records."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, cast

import pytest

from millstream.core.asynchronous.async_worker import Answered, Queued, Work
from millstream.core.asynchronous.call import Ticket
from millstream.core.engine.task import Task
from millstream.core.ports import BatchId
from millstream.drivers.spark.executor.async_calls import TaskCalls

NOW_MS = 10_000


class FakeTask:
    """A task with a call in flight."""

    id = "0_0"
    calls: ClassVar[dict[str, Any]] = {}

    def under_way(self) -> tuple[Ticket, ...]:
        return (Ticket("call", 1, 1, "e"),)


class FakeAsyncWorker:
    """An async worker that reports the given work."""

    def __init__(self, *works: Work) -> None:
        self.works = {str(n): work for n, work in enumerate(works)}

    def ask(self, *_: Any, **__: Any) -> Answered:
        return Answered(work=self.works)


def running(shortest_ms: int) -> Work:
    return Work(1, Queued(), shortest_ms, shortest_ms, 3.0)


def waiting(next_ms: int | None, early_ms: int | None = None) -> Work:
    return Work(0, Queued(limit=3), 0, 0, 3.0, early_ms, next_ms)


def busy(lasts_ms: int) -> Work:
    return replace(running(3), lasts_ms=lasts_ms, early_ms=0)


def calls_with(*works: Work) -> TaskCalls:
    return TaskCalls(cast(Task, FakeTask()), BatchId("c", 1), 0, lambda _: FakeAsyncWorker(*works))


def wakes_in_ms(*works: Work) -> int:
    wake_ms = calls_with(*works).wake_at_ms(NOW_MS)
    assert wake_ms is not None
    return wake_ms - NOW_MS


@pytest.mark.parametrize(
    ("works", "expected"),
    [
        ([waiting(400)], 400),
        ([waiting(30_000)], 1_000),
        ([waiting(0)], 0),
        ([waiting(30_000), waiting(300)], 300),
        ([waiting(700), running(2_000)], 200),
        ([waiting(700, early_ms=600)], 600),
        ([running(50)], 5),
        ([running(1_000_000)], 1_000),
        ([busy(lasts_ms=500)], 0),
        ([busy(lasts_ms=800)], 300),
        ([busy(lasts_ms=60_000)], 500),
        ([busy(lasts_ms=60_000), running(50)], 5),
    ],
)
def test_the_task_wakes_when_a_call_may_have_a_result(works: list[Work], expected: int) -> None:
    assert wakes_in_ms(*works) == expected


def test_the_task_wakes_at_once_for_results_that_are_ready() -> None:
    assert wakes_in_ms(waiting(None)) == 0


@pytest.mark.parametrize(
    ("works", "expected"),
    [
        ([busy(lasts_ms=800)], NOW_MS + 300),
        ([busy(lasts_ms=800), busy(lasts_ms=600)], NOW_MS + 100),
        ([busy(lasts_ms=800), waiting(0)], NOW_MS + 300),
        ([busy(lasts_ms=800), running(50)], None),
        ([waiting(400)], None),
    ],
)
def test_no_records_are_read_while_every_busy_operator_has_enough_queued_calls(
    works: list[Work], expected: int | None
) -> None:
    assert calls_with(*works).paced_until_ms(NOW_MS) == expected
