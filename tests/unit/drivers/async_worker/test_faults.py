"""Faults: user functions that misbehave, and async workers that end, hang or do not start."""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from millstream.core.asynchronous.call import Call, Done, Failed, Ticket
from millstream.core.model.calls import CircuitBreaker
from millstream.core.model.errors import AsyncWorkerError
from millstream.drivers.async_worker import AsyncWorkerAddress, AsyncWorkerConnection
from millstream.drivers.async_worker.runner import now_ms
from millstream.drivers.async_worker.worker_messages import WorkerAnswer, WorkerQuestion
from millstream.drivers.private import process_directory
from unit.drivers.async_worker.worker_requests import Asker, added, await_end, doubled, executor

SOON_S = 8


class FailsToUnpickle:
    """Can be pickled, and raises the error when it is unpickled."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __reduce__(self) -> tuple[Any, ...]:
        return (raises, (self.error,))

    def __call__(self, _: Any) -> None: ...


class KeywordsError(Exception):
    def __init__(self, message: str, *, request: Any) -> None:
        super().__init__(message)
        self.request = request


def raises(error: Exception) -> None:
    raise error


@pytest.fixture
def address() -> Iterator[AsyncWorkerAddress]:
    with executor() as process:
        address = AsyncWorkerAddress(uuid4().hex, process.pid, process_directory() / "async-workers")
        yield address
    await_end(address, "the async worker goes on without its executor")


def await_exit(process: int) -> None:
    """Wait until a process that is not a child of this one has ended."""
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        return
    try:
        ended, _, _ = select.select([descriptor], [], [], SOON_S)
        assert ended, f"process {process} still runs"
    finally:
        os.close(descriptor)


def await_true(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SOON_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)  # polls the state of another process


# Results and errors of calls.


def test_an_error_that_cannot_be_unpickled_fails_only_its_record(
    connection: AsyncWorkerConnection,
) -> None:
    def fails(value: int) -> int:
        if value == 1:
            raise KeywordsError("404", request=None)
        return value

    asker = Asker(connection, fails)
    asker.ask(0, 1, 2)
    settled = asker.until_settled(SOON_S)
    assert (settled[0], settled[2]) == (Done(0), Done(2))
    assert isinstance(settled[1], Failed)
    assert settled[1].cause == "KeywordsError: 404"


@pytest.mark.parametrize("error", [RuntimeError("here not"), FileNotFoundError("/there")])
def test_a_result_that_cannot_be_unpickled_fails_only_its_record(
    connection: AsyncWorkerConnection, error: Exception
) -> None:
    asker = Asker(connection, lambda value: FailsToUnpickle(error) if value == 1 else value)
    asker.ask(0, 1, 2)
    settled = asker.until_settled(SOON_S)
    assert (settled[0], settled[2]) == (Done(0), Done(2))
    assert isinstance(settled[1], Failed)
    assert "cannot unpickle the result" in settled[1].cause
    assert f"{type(error).__name__}: {error}" in settled[1].cause


@pytest.mark.parametrize("options", [{}, {"circuit_breaker": CircuitBreaker(failures=1, reset_after=1)}])
def test_stop_iteration_from_a_plain_function_is_a_failure(
    connection: AsyncWorkerConnection, options: dict[str, Any]
) -> None:
    def first(value: int) -> int:
        return next(iter([value] if value else []))

    asker = Asker(connection, first, max_in_flight=1, order="completion", **options)
    asker.ask(0, 1)
    settled = asker.until_settled(SOON_S)
    assert isinstance(settled[0], Failed)
    assert settled[0].cause.startswith("StopIteration")
    assert settled[1] == Done(1)


# Calls that an async worker cannot receive.


@pytest.mark.parametrize(
    "value", [FailsToUnpickle(RuntimeError("no such module")), 1], ids=["argument", "function"]
)
def test_a_call_that_the_async_worker_cannot_unpickle_is_reported_with_its_cause(
    connection: AsyncWorkerConnection, value: Any
) -> None:
    asker = Asker(
        connection,
        doubled if isinstance(value, FailsToUnpickle) else FailsToUnpickle(RuntimeError("no such module")),
    )
    with pytest.raises(AsyncWorkerError, match="RuntimeError: no such module"):
        asker.ask(value)
    other = Asker(connection, doubled)
    other.ask(1)
    assert other.until_settled(SOON_S) == {0: Done(2)}


class InterruptedConnection(AsyncWorkerConnection):
    """A connection that calls ``meanwhile`` whenever it is about to send functions."""

    def __init__(self, address: AsyncWorkerAddress, meanwhile: Callable[[], object]) -> None:
        super().__init__(address)
        self.meanwhile = meanwhile

    def _asked(self, question: WorkerQuestion) -> WorkerAnswer:
        if question.pickles:
            self.meanwhile()
        return super()._asked(question)


def test_functions_that_are_evicted_during_a_request_are_sent_again(
    address: AsyncWorkerAddress, connection: AsyncWorkerConnection
) -> None:
    def calls(first: int, end: int) -> list[Call]:
        numbers = range(first, end)
        return [Call(Ticket("call", n, 1, "e"), partial(added, n), (1,), None) for n in numbers]

    options = Asker(connection, added).options
    starts = count(10_000, 2_000)

    def meanwhile() -> None:
        first = next(starts)
        connection.ask("B", 0, now_ms(), None, calls(first, first + 1_100), options=options)

    interrupted = InterruptedConnection(address, meanwhile)
    interrupted.ask("A", 0, now_ms(), None, calls(0, 600), options=options)
    assert not interrupted.ask("A", 1, now_ms(), None, calls(300, 1_200), options=options).settled
    interrupted.close()


# Child processes.


def test_a_child_process_of_a_dead_async_worker_does_not_block_its_replacement(
    connection: AsyncWorkerConnection,
) -> None:
    def forks(_: int) -> tuple[int, int]:
        child = os.fork()
        if not child:
            signal.pause()
        return os.getpid(), child

    asker = Asker(connection, forks)
    asker.ask(1)
    (done,) = asker.until_settled(SOON_S).values()
    assert isinstance(done, Done)
    worker, child = done.value
    try:
        os.kill(worker, signal.SIGKILL)
        after = Asker(connection, doubled)
        with ThreadPoolExecutor() as other:
            asked = other.submit(after.ask, 1)
            try:
                asked.result(SOON_S)
            finally:
                os.kill(child, signal.SIGKILL)  # also lets the thread continue
        assert after.until_settled(SOON_S) == {0: Done(2)}
    finally:
        await_exit(child)


# Start.


def test_an_async_worker_that_cannot_start_is_reported_at_once_with_its_output(
    address: AsyncWorkerAddress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no module of that name >&2\nexit 3\n")
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    begun = time.monotonic()
    with pytest.raises(AsyncWorkerError, match=r"code 3\. It printed: no module of that name"):
        AsyncWorkerConnection(address).ask("t", 0, now_ms(), None)
    assert time.monotonic() - begun < SOON_S


@pytest.mark.parametrize("kills", [1, 9])
def test_an_async_worker_that_is_killed_during_its_start_is_started_up_to_four_times(
    address: AsyncWorkerAddress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: int
) -> None:
    journal, python = tmp_path / "journal", tmp_path / "python"
    run_python = f'[ $(wc -l <{journal}) -gt {kills} ] && exec {sys.executable} "$@"'
    python.write_text(f"#!/bin/sh\necho started >>{journal}\n{run_python}\nkill -9 $$\n")
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    connection = AsyncWorkerConnection(address)
    if kills == 1:
        assert not connection.ask("t", 0, now_ms(), None).settled
    else:
        with pytest.raises(AsyncWorkerError, match="its process ended with code -9"):
            connection.ask("t", 0, now_ms(), None)
    assert len(journal.read_text().splitlines()) == min(kills + 1, 4)
    connection.close()


def test_a_start_is_repeated_while_another_process_still_holds_the_lock(
    address: AsyncWorkerAddress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = tmp_path / "journal"
    journal.touch()
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho started >>{journal}\nexec {sys.executable} "$@"\n')
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    connection = AsyncWorkerConnection(address)
    with ThreadPoolExecutor() as other:
        with open(address.socket.with_suffix(".lock"), "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            asked = other.submit(connection.ask, "t", 0, now_ms(), None)
            await_true(lambda: len(journal.read_text().splitlines()) > 1)
        assert not asked.result(SOON_S).settled
    connection.close()


# End.


def hangs_on_a_thread(directory: Path, value: int) -> None:
    (directory / str(value)).write_text(str(os.getpid()))
    time.sleep(60)  # longer than the test: the thread must not delay the end of the async worker


async def hangs_in_spite_of_cancellation(directory: Path, value: int) -> None:
    (directory / str(value)).write_text(str(os.getpid()))
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue


async def waits(directory: Path, value: int) -> None:
    (directory / str(value)).write_text(str(os.getpid()))
    await asyncio.Event().wait()


@pytest.mark.parametrize("function", [hangs_on_a_thread, hangs_in_spite_of_cancellation, waits])
def test_an_async_worker_ends_with_its_executor_despite_running_calls_and_starts_no_more(
    function: Callable[..., Any], tmp_path: Path
) -> None:
    with executor() as process:
        connection = AsyncWorkerConnection(
            AsyncWorkerAddress(uuid4().hex, process.pid, process_directory() / "async-workers")
        )
        Asker(connection, partial(function, tmp_path), max_in_flight=1, order="completion").ask(0, 1, 2)
        await_true(lambda: (tmp_path / "0").exists() and (tmp_path / "0").read_text() != "")
    await_exit(int((tmp_path / "0").read_text()))
    connection.close()
    assert [path.name for path in tmp_path.iterdir()] == ["0"]


def test_a_process_pool_of_a_function_ends_with_the_async_worker() -> None:
    pools: list[ProcessPoolExecutor] = []

    def in_pool(_: int) -> tuple[int, int]:
        pools.append(ProcessPoolExecutor(1))
        return os.getpid(), pools[0].submit(os.getpid).result()

    with executor() as process:
        connection = AsyncWorkerConnection(
            AsyncWorkerAddress(uuid4().hex, process.pid, process_directory() / "async-workers")
        )
        asker = Asker(connection, in_pool)
        asker.ask(1)
        (done,) = asker.until_settled(SOON_S).values()
        connection.close()
    assert isinstance(done, Done)
    for ended in done.value:
        await_exit(ended)


# Async workers that do not answer.


def test_a_coroutine_that_blocks_the_event_loop_is_reported(
    address: AsyncWorkerAddress, tmp_path: Path
) -> None:
    begun, go_on = tmp_path / "begun", tmp_path / "go on"

    async def blocks(value: int) -> int:
        begun.write_text(str(os.getpid()))
        while not go_on.exists():
            time.sleep(0.005)  # blocks the event loop
        return value

    connection = AsyncWorkerConnection(address, answer_s=0.3)
    patient = Asker(AsyncWorkerConnection(address), blocks)
    patient.ask(7)
    await_true(lambda: begun.exists() and begun.read_text() != "")
    with pytest.raises(AsyncWorkerError) as raised:
        Asker(connection, doubled).ask(1)
    assert f"(process {begun.read_text()}) does not answer for 0.3 s" in str(raised.value)
    assert "a plain function, which runs on a thread" in str(raised.value)
    go_on.touch()
    assert patient.until_settled(SOON_S) == {0: Done(7)}
    again = Asker(connection, doubled)
    again.ask(4)
    assert again.until_settled(SOON_S) == {0: Done(8)}
    connection.close()
    patient.connection.close()


def test_a_suspended_async_worker_is_replaced_and_its_calls_are_repeated(
    address: AsyncWorkerAddress, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    begun = tmp_path / "begun"

    async def waits(value: int) -> int:
        if not begun.exists():
            begun.write_text(str(os.getpid()))
            await asyncio.sleep(3_600)
        return value

    asker = Asker(AsyncWorkerConnection(address, answer_s=0.6), waits)
    other = Asker(AsyncWorkerConnection(address, answer_s=0.6), doubled)
    asker.ask(7)
    other.ask(1)
    await_true(lambda: begun.exists() and begun.read_text() != "")
    suspended = int(begun.read_text())
    os.kill(suspended, signal.SIGSTOP)
    lost = asker.ask().lost
    assert lost == tuple(asker.in_flight)
    calls = [asker.in_flight[ticket] for ticket in lost]
    asker.connection.ask(asker.task, asker.batch, now_ms(), asker.in_flight, calls, options=asker.options)
    assert asker.until_settled(SOON_S) == {0: Done(7)}
    assert other.ask().lost == tuple(other.in_flight)
    await_exit(suspended)
    (warning,) = caplog.messages
    assert f"the async worker (process {suspended}) was suspended and is replaced" in warning


def test_blocking_the_event_loop_briefly_only_delays_the_answer(address: AsyncWorkerAddress) -> None:
    async def blocks(value: int) -> int:
        time.sleep(0.5)  # blocks the event loop for more than half the timeout
        return value

    asker = Asker(AsyncWorkerConnection(address, answer_s=0.8), blocks)
    asker.ask(7)
    assert asker.until_settled(SOON_S) == {0: Done(7)}
