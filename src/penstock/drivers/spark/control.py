"""Control: the line between the application and the processes Spark runs for it.

The planner of the source and the commit of the sink run in Python processes of their own, which Spark starts and ends as
it likes. They ask the application over a local socket: the planner tells what is waiting and hears whether to go on; the
sink hands over the reports of a batch before Spark commits it, and goes on when the offsets are committed to Kafka.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

log = logging.getLogger("penstock.control")

Handler = Callable[[str, Any], Any]
"""Takes the name of a question and its data, gives the answer."""


@dataclass(frozen=True)
class ControlAddress:
    """Where the application listens. Picklable; one connection per process is kept."""

    host: str
    port: int
    key: bytes = field(repr=False)

    def ask(self, question: str, data: Any) -> Any:
        """Ask the application.

        Returns:
            The answer, or None if the application no longer listens.

        Raises:
            Exception: What the application raised.
        """
        for attempt in range(2):
            try:
                line = _LINES.get(self)
                if line is None:
                    line = _LINES[self] = Client((self.host, self.port), authkey=self.key)
                line.send((question, data))
                answer, error = line.recv()
            except (OSError, EOFError):
                _LINES.pop(self, None)
                if attempt:
                    return None
                continue
            if error is not None:
                raise error
            return answer
        return None


_LINES: dict[ControlAddress, Connection[Any, Any]] = {}


class ControlServer:
    """Answers the processes that Spark runs; each connection has a thread of its own. Owned by the application."""

    def __init__(self, handler: Handler, key: bytes) -> None:
        self._handler = handler
        self._listener = Listener(("127.0.0.1", 0), authkey=key, backlog=16)
        host, port = self._listener.address
        self.address = ControlAddress(str(host), int(port), key)
        self._closed = False
        threading.Thread(target=self._accept, name="penstock-control", daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        if self._closed:
            return
        self._closed = True
        # Closing a socket does not wake the thread that accepts on it; a connection does.
        with suppress(OSError):
            socket.create_connection((self.address.host, self.address.port), timeout=1).close()
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                line = self._listener.accept()
            except Exception as error:
                if not self._closed:
                    log.warning("a process could not connect to the application: %r", error)
                continue
            threading.Thread(
                target=self._serve, args=(line,), name="penstock-control-line", daemon=True
            ).start()

    def _serve(self, line: Any) -> None:
        with line, suppress(OSError, EOFError):  # who asks may end at any moment
            while True:
                question, data = line.recv()
                answer: tuple[Any, Exception | None]
                try:
                    answer = (self._handler(question, data), None)
                except Exception as error:
                    answer = (None, error)
                line.send(answer)
