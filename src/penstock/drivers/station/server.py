"""Server: the station as a process, which tasks reach through a socket of this host.

It is started by the first worker that needs it and serves all tasks of one executor. It ends when the executor has gone, and when
nobody has asked anything for a while: soon if there is nothing to do, later if an application has left calls behind in a Spark
session that goes on. Only one process can hold the lock beside the socket, so two
workers that start one at the same time still get one.
"""

from __future__ import annotations

import asyncio
import fcntl
import gc
import os
import pickle
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from penstock.core.model.errors import StationError
from penstock.drivers.station.loaded import Loaded
from penstock.drivers.station.messages import LENGTH_BYTES, Answer, Question, dumped, framed, told
from penstock.drivers.station.runner import Runner

_LOOK_S: Final = 0.5
_TIMES_IDLE: Final = 3
_LARGEST: Final = 1 << 34
_COLLECT: Final = (50_000, 20, 50)
"""When garbage is looked for: seldom, as tens of thousands of calls wait here, and looking at all of them takes longer than making them."""


class Station:
    """A station.

    Args:
        socket: Where it listens. The directory is its user's alone.
        executor: Process id of what it ends with.
        idle_s: Seconds without a question after which it ends, if it has nothing to do; three times as many if it has.
    """

    def __init__(self, socket: Path, executor: int, idle_s: float) -> None:
        self._socket = socket
        self._executor = executor
        self._idle_s = idle_s
        self._runner = Runner()
        self._loaded = Loaded()
        self._asked_at = 0.0
        self._talks = 0

    async def serve(self) -> None:
        """Serve until the executor has gone, or nobody needs it any more."""
        loop = asyncio.get_running_loop()
        self._asked_at = loop.time()
        self._socket.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self._talk, self._socket)
        pulse = loop.create_task(self._runner.pulse())
        try:
            while _is_alive(self._executor) and not self._unused(loop.time()):
                await asyncio.sleep(_LOOK_S)
        finally:
            self._socket.unlink(missing_ok=True)
            server.close()
            pulse.cancel()

    def _unused(self, now: float) -> bool:
        """Tell whether nobody has asked for so long that nobody will: a task asks every second as long as it waits for a call."""
        enough = self._idle_s if self._runner.idle else _TIMES_IDLE * self._idle_s
        return now - self._asked_at > enough

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the questions of one worker, one after the other."""
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
                question: Question = pickle.loads(await reader.readexactly(min(length, _LARGEST)))
                self._asked_at = asyncio.get_running_loop().time()
                writer.write(framed(self._answer(question)))
                await writer.drain()
        writer.close()

    def _answer(self, question: Question) -> bytes:
        """Answer, or ask for the functions that are not known here."""
        self._loaded.load(question.pickles)
        unknown = self._loaded.missing(question.needed())
        if unknown:
            return dumped(Answer(unknown=unknown))
        try:
            return told(self._runner.ask(question, self._loaded.by_digest))
        except StationError as refused:
            return dumped(Answer(refused=refused.message))


def run(socket: Path, executor: int, idle_s: float) -> None:
    """Run a station, unless there is one already.

    Args:
        socket: Where it listens.
        executor: Process id of what it ends with.
        idle_s: Seconds without a question after which it ends, if it has nothing to do; three times as many if it has.
    """
    with suppress(BlockingIOError), _locked(socket.with_suffix(".lock")):
        _clean(socket.parent)
        gc.freeze()
        gc.set_threshold(*_COLLECT)
        _run(Station(socket, executor, idle_s).serve())


def _run(serving: Coroutine[Any, Any, None]) -> None:
    """Run on uvloop where it is installed: it takes two thirds of the time per call."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(serving)
    else:
        uvloop.run(serving)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of a station.

    Raises:
        BlockingIOError: If a station holds it.
    """
    with open(path, "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def _clean(directory: Path) -> None:
    """Delete the sockets that stations left which were killed."""
    for socket in directory.glob("*.sock"):
        with suppress(OSError), _locked(socket.with_suffix(".lock")):
            socket.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
