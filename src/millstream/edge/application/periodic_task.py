"""Work that a thread of the application repeats, such as refreshing topic metadata every ``metadata_max_age_ms``."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from millstream.core.model.errors import BrokerUnavailableError, MillstreamError

log = logging.getLogger("millstream.application")


class PeriodicTask:
    """Calls a function in its own thread, at intervals and when woken, until closed.

    Args:
        run: The function. If it fails, for example because a permission is missing for a while, the next call retries.
        interval_s: Maximum time between two calls, seconds.
    """

    def __init__(self, run: Callable[[], None], interval_s: float) -> None:
        self._task = run
        self._interval_s = interval_s
        self._wake = threading.Event()
        self._closed = False
        threading.Thread(target=self._run, name="millstream-periodic", daemon=True).start()

    def wake(self) -> None:
        self._wake.set()

    def close(self) -> None:
        """Stop calling the function; a running call continues to its end."""
        self._closed = True
        self._wake.set()

    def _run(self) -> None:
        warned = ""
        while True:
            self._wake.wait(self._interval_s)
            self._wake.clear()
            if self._closed:
                return
            try:
                self._task()
            except BrokerUnavailableError as error:
                log.debug("will retry later: %s", error)
            except Exception as error:
                failure = str(error) if isinstance(error, MillstreamError) else repr(error)
                if failure != warned:
                    log.warning("%s. This is tried again every %g s", failure, self._interval_s)
                log.debug("will retry later", exc_info=True)
                warned = failure
            else:
                warned = ""
