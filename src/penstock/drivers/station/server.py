"""Server: the station as a process, which tasks reach through a socket of this host.

It is started by the first worker that needs it and serves all tasks of one executor. It ends when the executor has gone, and when
nobody has asked anything for a while and there is nothing to do. Only one process can hold the lock beside the socket, so two
workers that start one at the same time still get one.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from penstock.core.model.errors import StationError
from penstock.drivers.station.messages import LENGTH_BYTES, Answer, Question, framed, told
from penstock.drivers.station.runner import Runner

_LOOK_S: Final = 0.5
_LARGEST: Final = 1 << 34


class Station:
    """A station.

    Args:
        socket: Where it listens. The directory is its user's alone.
        executor: Process id of what it ends with.
        idle_s: Seconds without a question after which it ends, if it has nothing to do.
    """

    def __init__(self, socket: Path, executor: int, idle_s: float) -> None:
        self._socket = socket
        self._executor = executor
        self._idle_s = idle_s
        self._runner = Runner()
        self._loaded: dict[bytes, Any] = {}
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
        return self._runner.idle and now - self._asked_at > self._idle_s

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the questions of one worker, one after the other."""
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
                question: Question = pickle.loads(await reader.readexactly(min(length, _LARGEST)))
                self._asked_at = asyncio.get_running_loop().time()
                writer.write(framed(told(self._answer(question))))
                await writer.drain()
        writer.close()

    def _answer(self, question: Question) -> Answer:
        """Answer, or ask for the functions that are not known here."""
        self._load(question.pickles)
        needed = {order.function for order in question.orders} | set(question.options.values())
        unknown = needed - self._loaded.keys()
        if unknown:
            return Answer(unknown=frozenset(unknown))
        try:
            return Answer(self._runner.ask(question, self._loaded))
        except StationError as refused:
            return Answer(refused=refused.message)

    def _load(self, pickles: Mapping[bytes, bytes]) -> None:
        for digest, data in pickles.items():
            if digest not in self._loaded:
                self._loaded[digest] = pickle.loads(data)


def run(socket: Path, executor: int, idle_s: float) -> None:
    """Run a station, unless there is one already.

    Args:
        socket: Where it listens.
        executor: Process id of what it ends with.
        idle_s: Seconds without a question after which it ends, if it has nothing to do.
    """
    with suppress(BlockingIOError), _locked(socket.with_suffix(".lock")):
        _clean(socket.parent)
        asyncio.run(Station(socket, executor, idle_s).serve())


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
