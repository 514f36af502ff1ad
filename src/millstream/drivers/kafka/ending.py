"""Destroys Kafka clients before Python exits, in a thread and with a timeout.

A thread of librdkafka may call back into Python, so clients must be destroyed first. Destroying a client waits for its threads,
and librdkafka has open bugs in which these deadlock after the loss of a broker (librdkafka 4674, 5476). A connection must not
keep a finished program from exiting.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable

log = logging.getLogger("millstream.kafka")

_PATIENCE_S = 5.0


class Ending:
    """Calls a function in a separate thread at the exit of the process; the process does not wait longer than ``patience_s``."""

    def __init__(self, close: Callable[[], None], patience_s: float = _PATIENCE_S) -> None:
        self._close = close
        self._patience_s = patience_s
        self._begun = threading.Event()
        self._thread: threading.Thread | None = None

    def prepare(self) -> None:
        """Start the thread unless it is running (a fork has none): during its exit, Python starts no threads."""
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
