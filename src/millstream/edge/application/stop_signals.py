"""Signals that stop the program of an application, started directly or with ``spark-submit``."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, repeat
from types import FrameType
from typing import Any, Final

from millstream.drivers.spark.driver.signals import pass_on_signals

log = logging.getLogger("millstream.application")

_DIED_FROM: Final = 128
"""Shells add the number of the signal to this exit code."""


@contextmanager
def exiting_on_sigterm() -> Iterator[None]:
    """While an application starts, end the program in order on SIGTERM, as a KeyboardInterrupt does on SIGINT.

    By default, the process would die at once. A standby would then stay a member of its group until the session timeout, and the next
    takeover would wait for it.

    Raises:
        SystemExit: At the signal, with the exit code of a process that died from it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _exit(number: int, frame: FrameType | None) -> None:
    log.info("received signal %d while starting: ending", number)
    raise SystemExit(_DIED_FROM + number)


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
