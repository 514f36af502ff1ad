"""Client: how a Python worker connects to the async worker of its executor, and starts it if there is none."""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Final

from millstream.core.asynchronous.async_worker import Answered
from millstream.core.asynchronous.call import Call, Ticket, grouped, in_words
from millstream.core.model.calls import Calls
from millstream.core.model.errors import AsyncWorkerError
from millstream.drivers.async_worker.worker_messages import (
    LENGTH_BYTES,
    Orders,
    WorkerAnswer,
    WorkerQuestion,
    columns,
    dumped,
    framed,
    pickled,
    unpacked,
)
from millstream.drivers.peer_processes import received
from millstream.drivers.private import directory_behind, process_directory

log = logging.getLogger("millstream.task")

_START_S: Final = 60.0
_PAUSE_S: Final = 0.02
"""Pause between two attempts to connect to a starting async worker, in seconds. It is impossible to wait for its socket."""
_ATTEMPTS: Final = 10
_MOST_KILLED: Final = 3
"""How many async workers may be killed while they start, by somebody or for want of memory, before the micro-batch fails."""
_IDLE_S: Final = 300.0
_FUNCTIONS: Final = 10_000
_CREDENTIALS: Final = struct.Struct("3i")
_ANSWER_S: Final = 60.0
_SUSPENDED: Final = ("T", "t")
"""States of a Linux process that a signal or a debugger has suspended, as in ``/proc``."""
_SCRATCH: Final = "SPARK_LOCAL_DIRS"
"""Environment variable in which Spark passes the executor's directories to its workers."""
_LINK: Final = "millstream-async-workers"
_TAIL: Final = 2_000
_STDERR: Final = 2

EXECUTOR: Final = "MILLSTREAM_EXECUTOR_PID"
"""Environment variable with the executor's process id."""


@dataclass(frozen=True)
class AsyncWorkerAddress:
    """Identifies the async worker of an application beside an executor.

    Attributes:
        executor: Process id of the executor. The async worker ends with it.
        link: Symbolic link to the directory of its socket, in a directory that only this user may write to.
        idle_s: Seconds without a question after which an idle async worker ends. With work left, it waits three times as long.
    """

    application: str
    executor: int
    link: Path
    idle_s: float = _IDLE_S

    @classmethod
    def here(cls, application: str) -> AsyncWorkerAddress:
        scratch = os.environ.get(_SCRATCH, "").partition(",")[0] or process_directory()
        return cls(application, int(os.environ.get(EXECUTOR) or os.getppid()), Path(scratch, _LINK))

    @property
    def socket(self) -> Path:
        """Path of its socket, in a private directory with a random name. The executor's workers find the directory by the link."""
        name = hashlib.blake2b(f"{self.application}/{self.executor}".encode(), digest_size=10).hexdigest()
        return directory_behind(self.link) / f"{name}.sock"


class AsyncWorkerConnection:
    """A connection to an async worker. Implements ``AsyncWorker``. One per Python worker process, for all tasks, used by one thread.

    Args:
        answer_s: Timeout for an answer, in seconds. After half of it, the question is repeated on a new connection. A suspended async
            worker is then killed first; its calls are repeated by a new one.
    """

    def __init__(self, address: AsyncWorkerAddress, answer_s: float = _ANSWER_S) -> None:
        self._address = address
        self._answer_s = answer_s
        self._socket: socket.socket | None = None
        self._digests: dict[int, tuple[Any, bytes]] = {}
        self._pickles: dict[bytes, bytes] = {}

    def ask(
        self,
        task: str,
        batch: int,
        now_ms: int,
        in_flight: Collection[Ticket] | None,
        calls: Iterable[Call] = (),
        *,
        options: Mapping[str, Calls] | None = None,
    ) -> Answered:
        if len(self._digests) > _FUNCTIONS:  # some processors create a new function for each call
            self._digests.clear()
            self._pickles.clear()
        digests = {name: self._digest(option) for name, option in (options or {}).items()}
        tickets = None if in_flight is None else grouped(in_flight)
        answer = self._answer(WorkerQuestion(task, batch, now_ms, tickets, self._orders(calls), digests))
        answered = unpacked(answer)
        if answered is None:
            raise AsyncWorkerError(answer.refused)
        return answered

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _orders(self, calls: Iterable[Call]) -> dict[str, Orders]:
        orders: dict[str, list[tuple[Any, ...]]] = {}
        for (operator, *ticket), function, *rest in calls:
            orders.setdefault(operator, []).append((*ticket, self._digest(function), *rest))
        return {operator: columns(rows) for operator, rows in orders.items()}

    def _digest(self, what: Any) -> bytes:
        """Return the digest of a function or of options. Each object is pickled once.

        The ``endpoint`` of options stays in the task. If it keeps state, its pickle would differ between Python workers, and each of them
        would replace the options of the others.
        """
        known = self._digests.get(id(what))
        if known is not None:
            return known[1]
        try:
            data = pickled(replace(what, endpoint=None) if isinstance(what, Calls) else what)
        except Exception as error:
            raise AsyncWorkerError(
                f"{what!r} cannot be pickled to be called in the async worker: {in_words(error)}. Create connections, locks "
                "and open files at the first call of the function, and keep them in a module or an attribute"
            ) from error
        digest = hashlib.blake2b(data, digest_size=16).digest()
        self._digests[id(what)] = (what, digest)
        self._pickles[digest] = data
        return digest

    def _answer(self, question: WorkerQuestion) -> WorkerAnswer:
        """Ask, and send functions that the async worker does not know. Repeat this if it removes others in the meantime."""
        answer = self._asked(question)
        if answer.unknown:
            answer = self._asked(self._with_pickles(question, answer.unknown))
        if answer.unknown:
            answer = self._asked(self._with_pickles(question, question.needed()))
        return answer

    def _with_pickles(self, question: WorkerQuestion, digests: Collection[bytes]) -> WorkerQuestion:
        return replace(question, pickles={option: self._pickles[option] for option in digests})

    def _asked(self, question: WorkerQuestion) -> WorkerAnswer:
        """Ask. If a result cannot be unpickled, ask again for each result separately."""
        data = self._sent(question)
        try:
            answer: WorkerAnswer = pickle.loads(data)
        except Exception:
            answer = pickle.loads(self._sent(replace(question, apart=True)))
        return answer

    def _sent(self, question: WorkerQuestion) -> bytes:
        """Send a question and return the answer. Use a new connection if the old one is dead, because questions may be repeated."""
        message = framed(dumped(question))
        silent = 0
        for _ in range(_ATTEMPTS):
            try:
                connection = self._connected()
                connection.sendall(message)
                return received(connection, int.from_bytes(received(connection, LENGTH_BYTES), "big"))
            except TimeoutError as error:
                failed: OSError = error
                process = _process_behind(self._socket)
                self.close()  # the late answer must not be taken for the answer to another question
                silent += 1
                if not _kill_if_suspended(process) and silent > 1:
                    raise AsyncWorkerError(self._silence(process)) from error
            except OSError as error:  # includes a dying async worker that still accepts connections
                self.close()
                failed = error
                time.sleep(_PAUSE_S)
        raise AsyncWorkerError(
            f"the async worker at {self._address.socket} does not answer: {failed}. The log of the executor has its output"
        )

    def _connected(self) -> socket.socket:
        if self._socket is None:
            self._socket = _connect(self._address.socket) or self._started()
            self._socket.settimeout(self._answer_s / 2)
        return self._socket

    def _silence(self, process: int | None) -> str:
        return (
            f"the async worker {f'(process {process}) ' if process else ''}does not answer for {self._answer_s:g} s: a coroutine blocks its "
            "event loop, and so all other calls. Call a plain function, which runs on a thread, or use an asynchronous client library"
        )

    def _started(self) -> socket.socket:
        """Start an async worker until one answers. If several start, one gets the lock and the others end.

        The async worker with the lock may be about to end, so another one is started until one answers. One that was killed is replaced a few
        times.
        """
        path, killed = self._address.socket, 0
        deadline = time.monotonic() + _START_S
        with tempfile.TemporaryFile() as printed:
            started = self._start(path, printed)
            while (connection := _connect(path)) is None:
                code = started.poll()
                killed += code == -signal.SIGKILL
                fails = code not in (None, 0, -signal.SIGKILL) or killed > _MOST_KILLED
                if fails or time.monotonic() > deadline:
                    raise AsyncWorkerError(_why_not(path, code, printed))
                if code is None:
                    time.sleep(_PAUSE_S)
                else:
                    started = self._start(path, printed)
            sys.stderr.write(_text(printed))
        return connection

    def _start(self, path: Path, printed: IO[bytes]) -> subprocess.Popen[bytes]:
        """Start an async worker. Its output goes to a file until it listens, and then to this process's output."""
        log = os.dup(_STDERR)
        try:
            return subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "millstream.drivers.async_worker",
                    str(path),
                    str(self._address.executor),
                    str(self._address.idle_s),
                    str(log),
                ],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdin=subprocess.DEVNULL,
                stderr=printed,
                pass_fds=[log],
                start_new_session=True,
            )
        finally:
            os.close(log)


def _why_not(path: Path, code: int | None, printed: IO[bytes]) -> str:
    """Return why no async worker answers, from its exit code (None while it runs) and the end of its output."""
    if code is None:
        what = f"did not start within {_START_S:.0f} s; its process still runs"
    elif code:
        what = f"did not start: its process ended with code {code}"
    else:
        what = (
            f"did not start within {_START_S:.0f} s: each process that was started ended with code 0, because another "
            f"process holds the lock {path.with_suffix('.lock')} but does not listen; find that process with lslocks, and "
            "end it"
        )
    text = _text(printed)[-_TAIL:].strip()
    return f"the async worker at {path} {what}. It printed: {text or 'nothing'}"


def _text(printed: IO[bytes]) -> str:
    printed.seek(0)
    return printed.read().decode(errors="replace")


def _connect(path: Path) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with suppress(FileNotFoundError, ConnectionRefusedError):
        connection.connect(str(path))
        return connection
    connection.close()
    return None


def _process_behind(connection: socket.socket | None) -> int | None:
    """Return the process at the other end of a connection, if the system knows it."""
    if connection is None or not hasattr(socket, "SO_PEERCRED"):
        return None
    process, _, _ = _CREDENTIALS.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return int(process)


def _kill_if_suspended(process: int | None) -> bool:
    """Kill a process that was suspended alone, so that another one takes its lock, and return whether it was. Its calls are repeated."""
    if process is None:
        return False
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][:1]
        if state not in _SUSPENDED:
            return False
        os.kill(process, signal.SIGKILL)
    except (FileNotFoundError, ProcessLookupError):
        return True  # it has ended in the meantime
    log.warning(
        "the async worker (process %d) was suspended and is replaced; its calls are repeated", process
    )
    return True
