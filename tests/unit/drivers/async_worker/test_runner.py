"""Where an async worker runs a function: on its event loop, or on a thread."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from millstream.core.asynchronous.call import Done, Failed, Settled
from millstream.core.asynchronous.effects import Acting, ActingOnBatch, Performing
from millstream.core.model.calls import Calls, CircuitBreaker
from millstream.drivers.async_worker import call_threads
from millstream.drivers.async_worker import runner as module
from millstream.drivers.async_worker.runner import Runner, _is_coroutine, ended_ms, now_ms
from millstream.drivers.async_worker.worker_messages import WorkerQuestion, columns


async def coroutine(*args: Any) -> None: ...


def plain(*args: Any) -> None: ...


class AsyncCallable:
    async def __call__(self) -> None: ...


@pytest.mark.parametrize("wrap", [lambda function: function, Performing, Acting, ActingOnBatch, partial])
def test_wrapped_coroutine_functions_are_recognized(wrap: Any) -> None:
    assert _is_coroutine(wrap(coroutine))
    assert not _is_coroutine(wrap(plain))


def test_an_object_with_an_async_call_method_is_recognized_as_a_coroutine_function() -> None:
    assert _is_coroutine(AsyncCallable())


def test_the_end_of_a_call_is_never_dated_too_early() -> None:
    for _ in range(1_000):
        before = module._EPOCH_NS + time.monotonic_ns()
        assert ended_ms() * 1_000_000 >= before


def question(batch: int, *orders: Any, unfinished_count: int = 0) -> WorkerQuestion:
    unfinished = {"call": {("e", 1): set(range(unfinished_count))}}
    return WorkerQuestion("t", batch, now_ms(), unfinished, {"call": columns(orders)}, {"call": b"options"})


def order(number: int) -> tuple[Any, ...]:
    return (number, 1, "e", b"function", (number,), None, 1, None, "", 0)


async def until_settled(
    runner: Runner, loaded: dict[bytes, Any], call_count: int, *, ended: int | None = None
) -> list[Settled]:
    """Return the results once ``ended`` calls have ended, by default all calls."""
    deadline, ended = time.monotonic() + 8, call_count if ended is None else ended
    while len(settled := runner.ask(question(1, unfinished_count=call_count), loaded).settled) < ended:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)
    return [result for _, result in settled]


def test_the_time_in_which_a_call_waits_for_a_thread_does_not_count_towards_its_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(call_threads, "THREADS", 2)
    running, most = 0, 0
    lock = threading.Lock()

    def call(value: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.1)
        with lock:
            running -= 1
        return value

    async def scenario() -> None:
        runner = Runner()
        loaded = {b"function": call, b"options": Calls(max_in_flight=8, timeout=400, order="completion")}
        asked = question(0, *map(order, range(8)), unfinished_count=8)
        waiting = runner.ask(replace(asked, task="first"), loaded).work["call"]
        runner.ask(asked, loaded)
        assert waiting.queued.limit == 8
        assert sorted(await until_settled(runner, loaded, 8)) == [Done(number) for number in range(8)]
        runner.close()

    asyncio.run(scenario())
    assert most == 2


def test_tasks_take_turns_if_their_calls_wait_for_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_threads, "THREADS", 1)
    begun: list[str] = []

    async def scenario() -> None:
        runner = Runner()
        options = Calls(max_in_flight=5, order="completion")
        for task in ("a", "b"):
            loaded = {b"function": lambda _, task=task: begun.append(task), b"options": options}
            runner.ask(replace(question(0, *map(order, range(5)), unfinished_count=5), task=task), loaded)
        deadline = time.monotonic() + 8
        while len(begun) < 10:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.005)
        runner.close()

    asyncio.run(scenario())
    assert "a" in begun[:3]
    assert "b" in begun[:3]


def test_plain_functions_are_not_called_while_too_many_abandoned_threads_hang(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(call_threads, "ABANDONED", 2)
    begun: list[int] = []
    go_on = threading.Event()

    def call(value: int) -> None:
        begun.append(value)
        go_on.wait(8)

    async def scenario() -> None:
        runner = Runner()
        options = Calls(max_in_flight=2, timeout=50, order="completion")
        loaded = {b"function": call, b"options": options, b"coroutine": coroutine}
        on_loop = (9, *order(9)[1:3], b"coroutine", *order(9)[4:])
        runner.ask(question(0, *map(order, range(4)), unfinished_count=4), loaded)
        assert len(await until_settled(runner, loaded, 4, ended=2)) == 2
        await asyncio.sleep(0.2)
        assert begun == [0, 1]
        runner.ask(replace(question(0, on_loop, unfinished_count=10), task="other"), loaded)
        await asyncio.sleep(0.05)
        (other,) = runner.ask(
            replace(question(1, unfinished_count=10), task="other"), loaded
        ).settled  # coroutines still run
        assert other[1] == Done(None)
        go_on.set()
        assert len(await until_settled(runner, loaded, 4)) == 4
        runner.close()

    asyncio.run(scenario())
    assert sorted(begun) == [0, 1, 2, 3]
    (warning,) = caplog.records
    assert "2 plain functions have timed out" in warning.getMessage()


def test_a_defect_in_the_calls_of_one_task_does_not_stop_the_calls_of_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A list is not a valid name of an endpoint. Tasks refuse it, but the async worker must not rely on that."""

    async def scenario() -> None:
        runner = Runner()
        defective = {
            b"function": plain,
            b"options": Calls(circuit_breaker=CircuitBreaker(), order="completion"),
        }
        wrong = (*order(0)[:8], ["a"], 0)
        runner.ask(replace(question(0, wrong, unfinished_count=1), task="defective"), defective)
        await asyncio.sleep(0)
        loaded = {b"function": lambda value: value, b"options": Calls(order="completion")}
        runner.ask(question(0, order(0), unfinished_count=1), loaded)
        assert await until_settled(runner, loaded, 1) == [Done(0)]
        runner.close()

    asyncio.run(scenario())
    assert [record.getMessage() for record in caplog.records] == [
        "the calls of task defective cannot be started"
    ]


def test_calls_of_a_task_that_no_longer_asks_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The task has moved to another host. If it returns, its calls are reported as lost, and it issues them again."""
    elapsed_ms = 0
    monkeypatch.setattr(module, "now_ms", lambda: 1_000_000 + elapsed_ms)

    async def scenario() -> None:
        nonlocal elapsed_ms
        runner = Runner()
        loaded = {b"function": lambda _: asyncio.sleep(8), b"options": Calls(order="completion")}
        runner.ask(question(0, order(0), unfinished_count=1), loaded)
        await asyncio.sleep(0.01)
        elapsed_ms = 899_000
        runner.drop_unasked(idle_s=300)
        assert not runner.idle
        elapsed_ms = 901_000
        runner.drop_unasked(idle_s=300)
        assert runner.idle
        assert len(runner.ask(question(1, unfinished_count=1), loaded).lost) == 1
        runner.close()

    asyncio.run(scenario())


def test_a_hanging_thread_does_not_keep_the_runner_busy_after_its_call_has_timed_out() -> None:
    go_on = threading.Event()

    async def scenario() -> None:
        runner = Runner()
        loaded = {b"function": lambda _: go_on.wait(8), b"options": Calls(timeout=50, order="completion")}
        runner.ask(question(0, order(0), unfinished_count=1), loaded)
        (failed,) = await until_settled(runner, loaded, 1)
        assert isinstance(failed, Failed)
        runner.ask(question(2), loaded)
        assert runner.idle
        go_on.set()

    asyncio.run(scenario())
