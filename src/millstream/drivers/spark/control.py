"""Control: the connection between the application and the processes that Spark runs for it.

The planner of the source and the commit of the sink run in their own Python processes. Spark starts and ends these processes. They
ask the application over a local socket. The planner sends a ``PlanRequest`` and receives ``PlanningOrders``. The sink sends
the ``CommittedBatch`` before Spark commits it, and continues when the offsets are committed to Kafka.
"""

from __future__ import annotations

import logging
import os
import pickle
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, answer_challenge, deliver_challenge
from pathlib import Path
from typing import Any, Final

from millstream.core.model.errors import ControlError, MillstreamError

log = logging.getLogger("millstream.control")

Handler = Callable[[str, Any], Any]
"""Receives the name and the data of a question, and returns the answer."""

_AUTHENTICATION_S: Final = 10
_BACKLOG: Final = 128
_PAUSE_S: Final = 0.1
_TIMEVAL: Final = struct.Struct("ll")


@dataclass(frozen=True)
class ControlAddress:
    """The address where the application listens. Picklable. A process keeps its connections for further questions.

    Attributes:
        path: The application's Unix socket, in a directory that only its user may enter.
        key: A secret that both sides must prove to know.
    """

    path: str
    key: bytes = field(repr=False)

    def ask(self, question: str, data: Any) -> Any:
        """Ask the application.

        Returns:
            The answer, or None if the application no longer listens.

        Raises:
            Exception: The exception that the application raised.
        """
        for attempt in range(2):
            connection = None
            try:
                connection = self._connection()
                connection.send_bytes(_pickled((question, data)))
                answer, error = connection.recv()
            except (OSError, EOFError):
                for broken in (connection, *_taken(self)):
                    if broken is not None:
                        broken.close()
                if attempt:
                    return None
                continue
            _IDLE.setdefault(self, []).append(connection)
            if error is not None:
                raise error
            return answer
        return None

    def _connection(self) -> Connection[Any, Any]:
        idle = _IDLE.get(self)
        if idle is None:
            _close_ended()
        else:
            with suppress(IndexError):
                return idle.pop()
        return Client(self.path, "AF_UNIX", authkey=self.key)


_IDLE: dict[ControlAddress, list[Connection[Any, Any]]] = {}
"""Connections that wait for a question. A question takes its connection out, for other threads, and because an interrupted question leaves
its answer in it."""
os.register_at_fork(after_in_child=_IDLE.clear)


def _taken(address: ControlAddress) -> Iterator[Connection[Any, Any]]:
    """Take all idle connections to an address."""
    idle = _IDLE.pop(address, [])
    with suppress(IndexError):
        while True:
            yield idle.pop()


def _close_ended() -> None:
    """Close idle connections to runs that have ended. Called before the first connection to another run, as a process may outlive many."""
    for address in [*_IDLE]:
        # If the run was killed, the socket is still there, but its connections have ended.
        listens = Path(address.path).exists()
        for connection in _taken(address):
            if listens and not connection.poll():
                _IDLE.setdefault(address, []).append(connection)
            else:
                connection.close()


class ControlServer:
    """Answers the processes that Spark runs, with one thread per connection. Owned by the application.

    Args:
        key: A secret that both sides must prove to know.
        directory: Directory of the socket. Only this user may enter it.
    """

    def __init__(self, handler: Handler, key: bytes, directory: Path) -> None:
        self._handler = handler
        path = directory / f"control-{secrets.token_hex(4)}.sock"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(_BACKLOG)
        self.address = ControlAddress(str(path), key)
        self._closed = False
        threading.Thread(target=self._accept, name="millstream-control", daemon=True).start()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        # Closing a socket does not wake the thread that accepts on it, but a connection does.
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as waker:
            waker.settimeout(1)
            waker.connect(self.address.path)
        self._listener.close()
        Path(self.address.path).unlink(missing_ok=True)

    def _accept(self) -> None:
        while not self._closed:
            try:
                connected, _ = self._listener.accept()
            except OSError as error:
                if not self._closed:
                    log.warning("a process could not connect to the application: %r", error)
                    time.sleep(_PAUSE_S)  # without free descriptors, every attempt fails at once
                continue
            threading.Thread(
                target=self._serve, args=(connected,), name="millstream-control-line", daemon=True
            ).start()

    def _serve(self, connected: socket.socket) -> None:
        with suppress(OSError, EOFError):  # the asking process may end at any moment
            _limit(connected, _AUTHENTICATION_S)
            connection: Connection[Any, Any] = Connection(connected.detach())
            with connection:
                self._authenticate(connection)
                with socket.socket(fileno=os.dup(connection.fileno())) as duplicate:
                    _limit(duplicate, 0)
                self._answer_questions(connection)

    def _authenticate(self, connection: Connection[Any, Any]) -> None:
        try:
            deliver_challenge(connection, self.address.key)
            answer_challenge(connection, self.address.key)
        except AuthenticationError as error:
            log.warning("a process without the key tried to connect to the application: %s", error)
            raise EOFError from error

    def _answer_questions(self, connection: Connection[Any, Any]) -> None:
        while True:
            connection.send_bytes(self._pickled_answer(*connection.recv()))

    def _pickled_answer(self, question: str, data: Any) -> bytes:
        try:
            answer = self._handler(question, data)
        except Exception as error:
            return _pickled((None, _sendable(error)))
        try:
            return _pickled((answer, None))
        except Exception as error:  # whatever pickle, or an object of the user's program, raises
            return _pickled((None, _not_sendable(error)))


def _pickled(message: object) -> bytes:
    """Pickle plain data. ``Connection.send`` would take two to three times the time, because it can also send connections and locks."""
    return pickle.dumps(message, pickle.HIGHEST_PROTOCOL)


def _sendable(error: Exception) -> Exception:
    """Return an error that the asking process can receive: an error of the user's program may be none."""
    try:
        pickle.loads(_pickled(error))
    except Exception:
        return MillstreamError(f"{type(error).__name__}: {error}")
    return error


def _not_sendable(error: Exception) -> ControlError:
    return ControlError(
        f"the answer has objects that cannot be sent to another process ({error}): ask in the program that runs the application, or use "
        "`millstream store`, which prints text"
    )


def _limit(connected: socket.socket, seconds: int) -> None:
    """Limit how long a read or write may block, in seconds. 0 means no limit. The socket remains in blocking mode."""
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connected.setsockopt(socket.SOL_SOCKET, option, _TIMEVAL.pack(seconds, 0))
