"""Helpers for tests of async workers: issue calls as a task does, and wait for results and for the end of an async worker."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from millstream.core.asynchronous.async_worker import Answered
from millstream.core.asynchronous.call import Call, Settled, Ticket
from millstream.core.model.calls import Calls
from millstream.drivers.async_worker import AsyncWorkerAddress, AsyncWorkerConnection
from millstream.drivers.async_worker.runner import now_ms


class Asker:
    """Issues calls to an async worker as a task does."""

    def __init__(
        self, connection: AsyncWorkerConnection, function: Callable[..., Any], **options: Any
    ) -> None:
        self.connection = connection
        self.function = function
        self.options = {"call": Calls(**options)}
        self.in_flight: dict[Ticket, Call] = {}
        self.settled: dict[int, Settled] = {}
        self.task = uuid4().hex
        self.batch = 0

    def ask(self, *values: Any, key: Any = None, numbers: int = 0) -> Answered:
        """Issue a call per value, and store the results that have arrived."""
        calls = []
        for number, value in enumerate(values, start=numbers):
            ticket = Ticket("call", number, 1, "e")
            connection = key(value) if callable(key) else key
            self.in_flight[ticket] = call = Call(ticket, self.function, (value,), connection)
            calls.append(call)
        answer = self.connection.ask(
            self.task, self.batch, now_ms(), self.in_flight, calls, options=self.options
        )
        self.batch += 1
        for ticket, settled in answer.settled:
            self.settled[ticket.number] = settled
            del self.in_flight[ticket]
        return answer

    def until_settled(self, within_s: float = 20) -> dict[int, Settled]:
        deadline = time.monotonic() + within_s
        while self.in_flight:
            assert time.monotonic() < deadline, f"{len(self.in_flight)} calls were never settled"
            assert not self.ask().lost
            time.sleep(0.005)  # polls, because an async worker sends nothing unasked
        return self.settled


def answers(address: AsyncWorkerAddress) -> bool:
    with socket.socket(socket.AF_UNIX) as connection:
        return connection.connect_ex(str(address.socket)) == 0


def await_end(address: AsyncWorkerAddress, otherwise: str) -> None:
    """Wait until an async worker no longer answers."""
    deadline = time.monotonic() + 20
    while answers(address):
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.02)  # polls the socket of another process, which does not report its end


@contextmanager
def executor() -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process that stands for the executor: when it ends, its async worker ends."""
    process = subprocess.Popen(["sleep", "1000"])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def doubled(value: int) -> int:
    return 2 * value


def added(first: int, second: int) -> int:
    return first + second
