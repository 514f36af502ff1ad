"""The end of a process that has clients: they are destroyed before Python ends, in a thread that nobody waits for without end.

A thread of librdkafka may call back into Python, so its clients have to be gone first. But a client is destroyed by waiting
for its threads, and librdkafka has several open faults where these wait for each other when a broker has just gone
(librdkafka 4674, 5476). What is no more than a connection must not keep a finished program from ending.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable

log = logging.getLogger("millstream.kafka")

_PATIENCE_S = 5.0


class Ending:
    """Calls a function in a thread of its own when the process ends, and lets the process go on without it if need be."""

    def __init__(self, close: Callable[[], None], patience_s: float = _PATIENCE_S) -> None:
        self._close = close
        self._patience_s = patience_s
        self._begun = threading.Event()
        self._thread: threading.Thread | None = None

    def prepare(self) -> None:
        """Start the thread, unless it waits already (a fork has none): once the end has begun, Python starts none."""
        if self._begun.is_set() or (self._thread is not None and self._thread.is_alive()):
            return
        self._thread = threading.Thread(target=self._run, name="millstream-ending", daemon=True)
        self._thread.start()
        atexit.unregister(self._end)
        atexit.register(self._end)

    def _run(self) -> None:
        self._begun.wait()
        self._close()

    def _end(self) -> None:
        self._begun.set()
        if self._thread is None:
            return
        self._thread.join(self._patience_s)
        if self._thread.is_alive():
            log.warning(
                "clients of Kafka did not close within %.0f s; the process ends without", self._patience_s
            )
