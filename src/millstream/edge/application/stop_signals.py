"""Signals that stop the program of an application, started directly or with ``spark-submit``."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from itertools import chain, repeat
from types import FrameType
from typing import Any

from millstream.drivers.spark.driver.signals import pass_on_signals

log = logging.getLogger("millstream.application")


class stopping_on_signals:  # noqa: N801 - a context manager reads like a phrase
    """Stops an application on SIGTERM or SIGINT. Has no effect outside the main thread, where Python allows no handlers.

    Args:
        hurry: Stops the application sooner; called at each further signal.
    """

    def __init__(self, stop: Callable[[], None], *, hurry: Callable[[], None]) -> None:
        self._stops = chain([stop], repeat(hurry))
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._stop)
            pass_on_signals()

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        log.info("received signal %d: stopping after the current micro-batch", number)
        threading.Thread(target=next(self._stops), name="millstream-stop").start()
