"""Upkeep: a look at the topics from time to time, while the application runs.

Partitions can be added to a topic, and a topic can be deleted and made again, at any moment, and the broker tells nobody.
So a thread of the application asks for the topics' facts every ``metadata_max_age_ms``, and at once when the planner has
seen something odd.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from millstream.core.model.errors import BrokerUnavailableError

log = logging.getLogger("millstream.application")


class Upkeep:
    """Calls a function in a thread of its own, at intervals and when woken, until it is closed.

    Args:
        look: What to do. A broker that does not answer is no reason to stop: the next look may find it.
        interval_s: Longest time between two looks, in seconds.
    """

    def __init__(self, look: Callable[[], None], interval_s: float) -> None:
        self._look = look
        self._interval_s = interval_s
        self._wake = threading.Event()
        self._closed = False
        threading.Thread(target=self._run, name="millstream-upkeep", daemon=True).start()

    def wake(self) -> None:
        """Look now."""
        self._wake.set()

    def close(self) -> None:
        """Look no more; a look at work is finished."""
        self._closed = True
        self._wake.set()

    def _run(self) -> None:
        while True:
            self._wake.wait(self._interval_s)
            self._wake.clear()
            if self._closed:
                return
            try:
                self._look()
            except BrokerUnavailableError as error:
                log.debug("the topics are looked at later: %s", error)
