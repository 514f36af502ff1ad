"""Server: the process of the async worker, which tasks reach through a socket of this host.

The first Python worker that needs the async worker starts it, and it serves all tasks of one executor. It ends when the executor has ended,
or after a time without questions: soon if it has nothing to do, later if an application has left calls behind in a Spark session that
continues. Only one process can hold the lock beside the socket, so two Python workers that start an async worker at the same time
still get only one.
"""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import socket as sockets
import stat
import sys
from collections.abc import Collection, Coroutine, Iterator, Mapping
from contextlib import suppress
from functools import partial
from multiprocessing import active_children
from pathlib import Path
from typing import Any, Final

from millstream.core.asynchronous.call import in_words
from millstream.core.model.errors import AsyncWorkerError
from millstream.drivers.async_worker.runner import TIMES_IDLE, Runner
from millstream.drivers.async_worker.worker_messages import (
    LENGTH_BYTES,
    WorkerAnswer,
    WorkerQuestion,
    answer_bytes,
    dumped,
    framed,
)
from millstream.drivers.peer_processes import is_alive
from millstream.drivers.private import locked

_CHECK_S: Final = 0.5
_CANCEL_S: Final = 2.0
"""Time for cancelled calls to clean up when the async worker ends."""
_LARGEST: Final = 1 << 34
_STDERR: Final = 2
_MOST_FUNCTIONS: Final = 1_000
_COLLECT: Final = (50_000, 20, 50)
"""Thresholds of the garbage collector. It runs rarely, because scanning tens of thousands of calls costs more than creating them."""


class FunctionCache:
    """The functions and options that an async worker has unpickled and recently used.

    A function is sent once and then identified by its digest. Its own state (for example an HTTP session) therefore lives as long as it is
    used. A program that creates a new function for each call would fill the memory of an async worker, so the least recently needed
    functions are removed. If a removed function is needed, the async worker asks the task to send it again. Waiting and running calls keep
    references to their functions.

    Args:
        most: Maximum number kept, besides those that are needed now.
    """

    def __init__(self, most: int = _MOST_FUNCTIONS) -> None:
        self._most = most
        self.by_digest: dict[bytes, Any] = {}
        """Functions and options by digest, least recently needed first."""

    def load(self, pickles: Mapping[bytes, bytes]) -> None:
        for digest, data in pickles.items():
            if digest not in self.by_digest:
                self.by_digest[digest] = pickle.loads(data)

    def missing(self, needed: Collection[bytes]) -> frozenset[bytes]:
        """Return the needed digests that are missing. The others count as used."""
        known = self.by_digest
        for digest in needed:
            if digest in known:
                known[digest] = known.pop(digest)
        for digest in list(known)[: max(len(known) - max(self._most, len(needed)), 0)]:
            del known[digest]
        return frozenset(digest for digest in needed if digest not in known)


class AsyncWorkerServer:
    """The process of the async worker.

    Args:
        executor: Process id of the executor. The async worker ends with it.
        idle_s: Seconds without a question after which an idle async worker ends. With work left, it waits three times as long.
        log: Descriptor of its output once it listens. The process that started it reads the earlier output.
    """

    def __init__(self, socket: Path, executor: int, idle_s: float, log: int) -> None:
        self._socket = socket
        self._executor = executor
        self._idle_s = idle_s
        self._log = log
        self._runner = Runner()
        self._functions = FunctionCache()
        self._asked_at = 0.0

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        self._asked_at = loop.time()
        self._socket.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self._talk, self._socket)
        os.dup2(self._log, _STDERR)
        os.close(self._log)
        pulse = loop.create_task(self._runner.pulse())
        try:
            while is_alive(self._executor) and not self._unused(loop.time()):
                await asyncio.sleep(_CHECK_S)
                self._runner.drop_unasked(self._idle_s)
                with suppress(OSError):
                    os.utime(
                        self._socket.with_suffix(".lock")
                    )  # keeps the lock file from being deleted as an old temporary file
        finally:
            self._runner.close()
            self._socket.unlink(missing_ok=True)
            server.close()
            pulse.cancel()

    def _unused(self, now: float) -> bool:
        """Return whether no more questions are expected. A task that waits for a call asks every second."""
        enough = self._idle_s if self._runner.idle else TIMES_IDLE * self._idle_s
        return now - self._asked_at > enough

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the questions of one Python worker in sequence."""
        with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while True:
                length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
                answer = self._answer(await reader.readexactly(min(length, _LARGEST)))
                writer.write(framed(answer))
                await writer.drain()
        writer.close()

    def _answer(self, message: bytes) -> bytes:
        try:
            question: WorkerQuestion = pickle.loads(message)
            self._asked_at = asyncio.get_running_loop().time()
            return self._answer_to(question)
        except AsyncWorkerError as refused:
            return dumped(WorkerAnswer(refused=refused.message))
        except Exception as error:
            return dumped(WorkerAnswer(refused=_refusal(error)))

    def _answer_to(self, question: WorkerQuestion) -> bytes:
        """Answer a question, or request unknown functions."""
        self._functions.load(question.pickles)
        unknown = self._functions.missing(question.needed())
        if unknown:
            return dumped(WorkerAnswer(unknown=unknown))
        return answer_bytes(self._runner.ask(question, self._functions.by_digest), question.apart)


def _refusal(error: Exception) -> str:
    return (
        f"the async worker cannot accept the calls that it received: {in_words(error)}. The function, its arguments and the options are "
        "pickled by the worker and unpickled in the async worker, a process beside it, which must be able to import their modules"
    )


def run(socket: Path, executor: int, idle_s: float, log: int) -> None:
    """Run an async worker, unless another one holds the lock. The arguments are those of ``AsyncWorkerServer``."""
    lock = locked(socket.with_suffix(".lock"))
    if lock is None:
        return
    with lock:
        _clean(socket.parent)
        os.register_at_fork(after_in_child=partial(_release_in_child, socket, lock.fileno()))
        gc.freeze()
        gc.set_threshold(*_COLLECT)
        _run(_served(AsyncWorkerServer(socket, executor, idle_s, log)))


async def _served(server: AsyncWorkerServer) -> None:
    """Serve, then end the process, even if a thread hangs or a coroutine ignores its cancellation."""
    await server.serve()
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=_CANCEL_S)
    for child in active_children():  # the exit of the interpreter would end them
        child.terminate()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(0)


def _run(serving: Coroutine[Any, Any, None]) -> None:
    """Run on uvloop if it is installed, because a call then takes two thirds of the time."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(serving)
    else:
        uvloop.run(serving)


def _clean(directory: Path) -> None:
    """Delete the sockets of killed async workers."""
    for socket in directory.glob("*.sock"):
        with suppress(OSError):
            lock = locked(socket.with_suffix(".lock"))
            if lock is not None:
                with lock:
                    socket.unlink(missing_ok=True)


def _release_in_child(path: Path, lock: int) -> None:
    """Release the async worker's descriptors in a child that a user's function forks.

    If a child held the socket, its connections or the lock, the death of the async worker could not be detected, and it could not be
    replaced. The descriptors are replaced, not closed, because objects that the child has copied may close them again.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in [lock, *_sockets_at(path)]:
        os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)


def _sockets_at(path: Path) -> Iterator[int]:
    """Return the descriptors of a listening socket and of its connections, including those not accepted yet."""
    for name in os.listdir("/dev/fd"):
        with suppress(OSError):  # the descriptor used by the listing
            descriptor = int(name)
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode) and _address_of(descriptor) == str(path):
                yield descriptor


def _address_of(descriptor: int) -> object:
    with sockets.socket(fileno=os.dup(descriptor)) as copy:
        return copy.getsockname()
