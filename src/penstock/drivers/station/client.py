"""Client: how a worker reaches the station of its executor, and starts it if there is none."""

from __future__ import annotations

import hashlib
import os
import pickle
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from penstock.core.asynchronous.call import Call, Ticket, grouped
from penstock.core.asynchronous.station import Answered
from penstock.core.model.calls import Calls
from penstock.core.model.errors import StationError
from penstock.drivers.station.messages import (
    LENGTH_BYTES,
    Answer,
    Orders,
    Question,
    columns,
    dumped,
    framed,
    pickled,
    unpacked,
)

_START_S: Final = 60.0
_PAUSE_S: Final = 0.02
_ATTEMPTS: Final = 10
_IDLE_S: Final = 300.0
_FUNCTIONS: Final = 10_000

EXECUTOR: Final = "PENSTOCK_EXECUTOR_PID"
"""Name of the environment variable that tells workers the process id of their executor."""


@dataclass(frozen=True)
class StationAddress:
    """Which station: that of an application on this host, beside one executor.

    Attributes:
        application: Names the application and its checkpoint.
        executor: Process id of what the station ends with.
        idle_s: Seconds without a question after which it ends, if it has nothing to do; three times as many if it has.
    """

    application: str
    executor: int
    idle_s: float = _IDLE_S

    @classmethod
    def here(cls, application: str) -> StationAddress:
        """Give the address of the station beside the executor that this worker belongs to."""
        return cls(application, int(os.environ.get(EXECUTOR) or os.getppid()))

    @property
    def socket(self) -> Path:
        """Where it listens; short, because the path of a socket may have about a hundred characters."""
        name = hashlib.blake2b(f"{self.application}/{self.executor}".encode(), digest_size=10).hexdigest()
        return _private_directory() / f"{name}.sock"


class StationLine:
    """A connection to a station. Implements ``Station``. Kept by a worker for all its tasks; used by one thread.

    Args:
        address: The station.
    """

    def __init__(self, address: StationAddress) -> None:
        self._address = address
        self._socket: socket.socket | None = None
        self._digests: dict[int, tuple[Any, bytes]] = {}
        self._pickles: dict[bytes, bytes] = {}

    def ask(
        self,
        task: str,
        batch: int,
        held: Collection[Ticket] | None,
        calls: Iterable[Call] = (),
        options: Mapping[str, Calls] | None = None,
    ) -> Answered:
        """Tell which tickets a task holds, let calls be made, and hear what has come of the others: see ``Station``."""
        if len(self._digests) > _FUNCTIONS:  # of processors that make a new one for each call
            self._digests.clear()
            self._pickles.clear()
        digests = {name: self._digest(one) for name, one in (options or {}).items()}
        told = None if held is None else grouped(held)
        question = Question(task, batch, told, self._orders(calls), digests)
        answer = self._asked(question)
        if answer.unknown:
            answer = self._asked(
                replace(question, pickles={one: self._pickles[one] for one in answer.unknown})
            )
        answered = unpacked(answer)
        if answered is None:
            raise StationError(answer.refused)
        return answered

    def close(self) -> None:
        """Hang up; the station goes on."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _orders(self, calls: Iterable[Call]) -> dict[str, Orders]:
        orders: dict[str, list[tuple[Any, ...]]] = {}
        for (operator, *ticket), function, *rest in calls:
            orders.setdefault(operator, []).append((*ticket, self._digest(function), *rest))
        return {operator: columns(rows) for operator, rows in orders.items()}

    def _digest(self, what: Any) -> bytes:
        """Give the digest of a function or of options; each object is pickled once."""
        known = self._digests.get(id(what))
        if known is not None:
            return known[1]
        try:
            data = pickled(what)
        except Exception as error:
            raise StationError(
                f"{what!r} cannot be pickled to be called in the station: {type(error).__name__}: {error}. Let the function "
                "make what it needs (connections, locks, open files) at its first call, and keep it in a module or an attribute"
            ) from error
        digest = hashlib.blake2b(data, digest_size=16).digest()
        self._digests[id(what)] = (what, digest)
        self._pickles[digest] = data
        return digest

    def _asked(self, question: Question) -> Answer:
        """Ask, through a new connection if the old one is dead: the question may be asked again."""
        message = framed(dumped(question))
        for _ in range(_ATTEMPTS):
            try:
                line = self._connected()
                line.sendall(message)
                length = int.from_bytes(_exactly(line, LENGTH_BYTES), "big")
                answer: Answer = pickle.loads(_exactly(line, length))
            except OSError as error:  # also of a station that dies but still takes connections
                self.close()
                failed = error
                time.sleep(_PAUSE_S)
            else:
                return answer
        raise StationError(f"the station at {self._address.socket} does not answer: {failed}")

    def _connected(self) -> socket.socket:
        if self._socket is None:
            self._socket = _connect(self._address.socket) or self._started()
        return self._socket

    def _started(self) -> socket.socket:
        """Start a station and wait until it answers; whoever loses the race for the lock ends by itself."""
        path, address = self._address.socket, self._address
        command = [
            sys.executable,
            "-m",
            "penstock.drivers.station",
            str(path),
            str(address.executor),
            str(address.idle_s),
        ]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        started = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True)
        deadline = time.monotonic() + _START_S
        while (line := _connect(path)) is None:
            if time.monotonic() > deadline:
                raise StationError(
                    f"the station at {path} did not come up within {_START_S:.0f} s (its process "
                    f"{'still runs' if started.poll() is None else f'ended with code {started.returncode}'}); what it "
                    "printed is in the log of the executor"
                )
            time.sleep(_PAUSE_S)
        return line


def _connect(path: Path) -> socket.socket | None:
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with suppress(FileNotFoundError, ConnectionRefusedError):
        line.connect(str(path))
        return line
    line.close()
    return None


def _exactly(line: socket.socket, size: int) -> bytes:
    data = bytearray(size)
    view, at = memoryview(data), 0
    while at < size:
        got = line.recv_into(view[at:])
        if not got:
            raise ConnectionResetError("it has hung up")
        at += got
    return bytes(data)


def _private_directory() -> Path:
    """Give a directory that nobody but this user can enter: who reaches a station can run code as its user.

    Raises:
        StationError: If somebody else has made it.
    """
    directory = Path(tempfile.gettempdir()) / f"penstock-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    facts = directory.lstat()
    if facts.st_uid != os.getuid() or facts.st_mode & 0o077:
        raise StationError(
            f"{directory} belongs to somebody else or is open to others; stations are reached through it. Delete it"
        )
    return directory
