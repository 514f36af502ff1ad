"""Async workers as separate processes, called as tasks call them."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from millstream.core.asynchronous.call import Call, Done, Failed, Ticket, Waits
from millstream.core.model.answers import retry
from millstream.core.model.calls import Retry
from millstream.core.model.errors import AsyncWorkerError
from millstream.drivers.async_worker import AsyncWorkerAddress, AsyncWorkerConnection
from millstream.drivers.async_worker.runner import now_ms
from millstream.drivers.private import process_directory
from unit.drivers.async_worker.worker_requests import Asker, added, answers, await_end, doubled, executor

MANY = 2_000


@pytest.fixture(scope="module")
def address() -> Iterator[AsyncWorkerAddress]:
    """Yield the address of an async worker that ends after the tests of this module."""
    with executor() as process:
        address = AsyncWorkerAddress(uuid4().hex, process.pid, process_directory() / "async-workers")
        yield address
    await_end(address, "the async worker goes on without its executor")


def process_of(_: Any) -> tuple[int, str]:
    return os.getpid(), threading.current_thread().name


def test_coroutines_run_concurrently_on_the_event_loop(connection: AsyncWorkerConnection) -> None:
    running = most = 0

    async def doubled_later(value: int) -> tuple[int, int]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return 2 * value, most

    asker = Asker(connection, doubled_later, max_in_flight=500, order="completion")
    asker.ask(*range(MANY))
    results = {n: outcome.value for n, outcome in asker.until_settled().items() if isinstance(outcome, Done)}
    assert {n: result for n, (result, _) in results.items()} == {n: 2 * n for n in range(MANY)}
    assert max(seen for _, seen in results.values()) == 500


def test_plain_functions_run_on_threads_of_another_process(connection: AsyncWorkerConnection) -> None:
    asker = Asker(connection, process_of)
    asker.ask(1, 2)
    (process, thread), _ = (
        outcome.value for outcome in asker.until_settled().values() if isinstance(outcome, Done)
    )
    assert process != os.getpid()
    assert thread.startswith("millstream-call")


def test_functions_that_cannot_be_imported_are_sent_by_value(connection: AsyncWorkerConnection) -> None:
    offset = 7
    asker = Asker(connection, lambda value: value + offset)
    asker.ask(1)
    assert asker.until_settled() == {0: Done(8)}


def test_queued_calls_start_while_the_task_does_not_ask(
    connection: AsyncWorkerConnection, tmp_path: Path
) -> None:
    async def note(value: int) -> None:
        await asyncio.sleep(0.05)
        (tmp_path / str(value)).touch()

    asker = Asker(connection, note, max_in_flight=1, order="completion")
    asker.ask(*range(5))
    deadline = time.monotonic() + 20
    while len(list(tmp_path.iterdir())) < 5:  # the task does not ask meanwhile
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert len(asker.ask().settled) == 5


def test_calls_with_the_same_key_run_one_after_the_other(
    connection: AsyncWorkerConnection, tmp_path: Path
) -> None:
    async def note(value: int) -> None:
        with open(tmp_path / str(value % 10), "a", encoding="utf-8") as journal:
            journal.write(f"begin {value}\n")
            journal.flush()
            await asyncio.sleep(0.002)
            journal.write(f"end {value}\n")

    asker = Asker(connection, note, max_in_flight=100, order="key")
    asker.ask(*range(200), key=lambda value: value % 10)
    asker.until_settled()
    for key in range(10):
        expected = [f"{event} {value}" for value in range(key, 200, 10) for event in ("begin", "end")]
        assert (tmp_path / str(key)).read_text().splitlines() == expected


def test_a_failed_call_returns_the_raised_exception(connection: AsyncWorkerConnection) -> None:
    def fails(value: int) -> int:
        raise ValueError(f"no {value}")

    asker = Asker(connection, fails, on_failure="skip")
    asker.ask(3)
    (failed,) = asker.until_settled().values()
    assert isinstance(failed, Failed)
    assert (failed.cause, type(failed.error)) == ("ValueError: no 3", ValueError)


def test_a_retry_is_reported_with_its_time_and_attempt(connection: AsyncWorkerConnection) -> None:
    asker = Asker(connection, lambda _: retry(), retry=Retry(initial=5_000, jitter=0))
    before = now_ms()
    asker.ask(3)
    (waits,) = asker.until_settled().values()
    assert isinstance(waits, Waits)
    assert (waits.attempt, waits.why) == (2, "retry")
    assert before + 5_000 <= waits.due_ms <= now_ms() + 5_000


@pytest.mark.parametrize("sleep", [asyncio.sleep, time.sleep], ids=["coroutine", "thread"])
def test_a_call_that_times_out_does_not_block_other_calls(
    connection: AsyncWorkerConnection, sleep: Callable[[float], Any]
) -> None:
    def call(value: int) -> Any:
        return sleep(30 if value == 0 else 0)

    asker = Asker(connection, call, max_in_flight=1, timeout=300, order="completion", on_failure="skip")
    asker.ask(*range(4))
    settled = asker.until_settled()
    first = settled.pop(0)
    assert isinstance(first, Failed)
    assert "TimeoutError" in first.cause
    assert settled == {n: Done(None) for n in (1, 2, 3)}


def test_queued_calls_that_are_no_longer_in_flight_are_dropped(
    connection: AsyncWorkerConnection, tmp_path: Path
) -> None:
    async def note(value: int) -> int:
        (tmp_path / str(value)).touch()
        while not (tmp_path / "go on").exists():
            await asyncio.sleep(0.01)
        return value

    asker = Asker(connection, note, max_in_flight=1, order="completion")
    asker.ask(0, 1, 2)
    asker.in_flight.clear()  # the attempt failed, and the next attempt issues other calls
    asker.function = note
    asker.ask(10, 11, numbers=5)
    (tmp_path / "go on").touch()
    assert asker.until_settled() == {5: Done(10), 6: Done(11)}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "10", "11", "go on"]


def test_a_repeated_micro_batch_receives_the_same_results(connection: AsyncWorkerConnection) -> None:
    asker = Asker(connection, doubled)
    asker.ask(1, 2)
    in_flight = dict(asker.in_flight)
    first = dict(asker.until_settled())
    asker.in_flight, asker.settled = {}, {}
    asker.ask(5, numbers=5)  # another call; the first two are no longer in flight
    assert connection.ask(asker.task, asker.batch, now_ms(), in_flight).lost == tuple(sorted(in_flight))

    again = Asker(connection, doubled)
    again.batch = asker.batch
    again.ask(1, 2)
    in_flight = dict(again.in_flight)
    deadline = time.monotonic() + 20
    while (
        len(answer := connection.ask(again.task, again.batch, now_ms(), in_flight).settled) < 2
    ):  # the tickets stay in flight
        assert time.monotonic() < deadline
    for _ in range(2):
        assert {ticket.number: settled for ticket, settled in answer} == first
        answer = connection.ask(again.task, again.batch, now_ms(), in_flight).settled


def test_an_attempt_at_an_earlier_micro_batch_is_refused(connection: AsyncWorkerConnection) -> None:
    asker = Asker(connection, doubled)
    asker.batch = 5
    asker.ask(1)
    asker.batch = 4
    with pytest.raises(AsyncWorkerError, match="is already in micro-batch 5"):
        asker.ask()


def test_calls_lost_with_a_dead_async_worker_can_be_issued_to_the_next_one(
    connection: AsyncWorkerConnection,
) -> None:
    async def process(_: int) -> int:
        await asyncio.sleep(0.05)
        return os.getpid()

    asker = Asker(connection, process, max_in_flight=1, order="completion")
    asker.ask(0)
    (first,) = asker.until_settled().values()
    assert isinstance(first, Done)
    asker.ask(*range(1, 50), numbers=1)
    os.kill(first.value, signal.SIGKILL)
    answer = asker.ask()
    assert len(answer.lost) == len(asker.in_flight) == 49
    calls = [asker.in_flight[ticket] for ticket in answer.lost]
    asker.connection.ask(asker.task, asker.batch, now_ms(), asker.in_flight, calls, options=asker.options)
    assert len(asker.until_settled()) == 50


def test_functions_and_results_that_cannot_be_pickled_are_reported(connection: AsyncWorkerConnection) -> None:
    lock = threading.Lock()
    asker = Asker(connection, lambda _: lock.locked())
    with pytest.raises(AsyncWorkerError, match=r"Create connections, .* at the first call"):
        asker.ask(1)
    asker = Asker(connection, lambda _: threading.Lock())
    asker.ask(1)
    (failed,) = asker.until_settled().values()
    assert isinstance(failed, Failed)
    assert "cannot be pickled to send it to the task" in failed.cause


def test_functions_that_the_async_worker_has_evicted_are_sent_again(
    connection: AsyncWorkerConnection,
) -> None:
    first = Asker(connection, doubled)
    first.ask(1)
    first.until_settled()
    others = [Call(Ticket("call", n, 1, "e"), partial(added, n), (1,), None) for n in range(1, 1_101)]
    connection.ask("other", 0, now_ms(), [call.ticket for call in others], others, options=first.options)
    first.ask(2, numbers=1)
    assert first.until_settled() == {0: Done(2), 1: Done(4)}


def test_an_idle_async_worker_ends_even_if_calls_hang(
    address: AsyncWorkerAddress,
) -> None:
    async def hangs(_: int) -> None:
        await asyncio.Event().wait()

    idle_address = replace(address, application=uuid4().hex, idle_s=0.1)
    connection = AsyncWorkerConnection(idle_address)
    Asker(connection, hangs).ask(1)
    connection.close()
    assert answers(idle_address)
    await_end(idle_address, "the async worker waits for somebody who will not come")
