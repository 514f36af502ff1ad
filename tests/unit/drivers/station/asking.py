"""What the tests of stations have in common: a task as a station sees it, what a station ends with, waiting for its end."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from millstream.core.asynchronous.call import Call, Settled, Ticket
from millstream.core.asynchronous.station import Answered
from millstream.core.model.calls import Calls
from millstream.drivers.station import StationAddress, StationLine
from millstream.drivers.station.runner import now_ms


class Asker:
    """A task, as far as its station sees it."""

    def __init__(self, line: StationLine, function: Callable[..., Any], **options: Any) -> None:
        self.line = line
        self.function = function
        self.options = {"call": Calls(**options)}
        self.held: dict[Ticket, Call] = {}
        self.settled: dict[int, Settled] = {}
        self.task = uuid4().hex
        self.batch = 0

    def ask(self, *values: Any, key: Any = None, numbers: int = 0) -> Answered:
        """Hand over a call per value, and take in what has come."""
        calls = []
        for number, value in enumerate(values, start=numbers):
            ticket = Ticket("call", number, 1, "e")
            line = key(value) if callable(key) else key
            self.held[ticket] = call = Call(ticket, self.function, (value,), line)
            calls.append(call)
        answer = self.line.ask(self.task, self.batch, now_ms(), self.held, calls, options=self.options)
        self.batch += 1
        for ticket, settled in answer.settled:
            self.settled[ticket.number] = settled
            del self.held[ticket]
        return answer

    def until_settled(self, within_s: float = 20) -> dict[int, Settled]:
        deadline = time.monotonic() + within_s
        while self.held:
            assert time.monotonic() < deadline, f"{len(self.held)} calls have come to nothing"
            assert not self.ask().lost
            time.sleep(0.005)  # between two questions: a station answers, it does not call
        return self.settled


def answers(address: StationAddress) -> bool:
    with socket.socket(socket.AF_UNIX) as line:
        return line.connect_ex(str(address.socket)) == 0


def await_end(address: StationAddress, otherwise: str) -> None:
    """Wait until a station no longer answers."""
    deadline = time.monotonic() + 20
    while answers(address):
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.02)  # between two looks at another program's socket, which tells nobody of its end


@contextmanager
def executor() -> Iterator[subprocess.Popen[bytes]]:
    """Give what a station ends with."""
    process = subprocess.Popen(["sleep", "1000"])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def doubled(value: int) -> int:
    return 2 * value


def added(one: int, other: int) -> int:
    return one + other
