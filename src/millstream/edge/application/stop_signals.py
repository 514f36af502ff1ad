"""Signals that stop the program of an application, started directly or with ``spark-submit``."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, repeat
from types import FrameType
from typing import Final

from millstream.drivers.spark.driver.signals import pass_on_signals

log = logging.getLogger("millstream.application")

_DIED_FROM: Final = 128
"""Shells add the number of the signal to this exit code."""


@contextmanager
def handling(
    numbers: Iterable[signal.Signals], handler: Callable[[int, FrameType | None], None]
) -> Iterator[bool]:
    """Pass signals to a handler. Yield False, without an effect, outside the main thread, where Python allows no handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield False
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield True
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


@contextmanager
def exiting_on_sigterm() -> Iterator[None]:
    """While an application starts, end the program in order on SIGTERM, as a KeyboardInterrupt does on SIGINT.

    By default, the process would die at once. A standby would then stay a member of its group until the session timeout, and the next
    takeover would wait for it.

    Raises:
        SystemExit: At the signal, with the exit code of a process that died from it.
    """
    with handling([signal.SIGTERM], _exit):
        yield


def _exit(number: int, frame: FrameType | None) -> None:
    log.info("received signal %d while starting: ending", number)
    raise SystemExit(_DIED_FROM + number)


@contextmanager
def stopping_on_signals(stop: Callable[[], None], *, hurry: Callable[[], None]) -> Iterator[None]:
    """Stop an application on SIGTERM or SIGINT. Has no effect outside the main thread.

    Args:
        hurry: Stops the application sooner; called at each further signal.
    """
    stops = chain([stop], repeat(hurry))

    def begin_stop(number: int, frame: FrameType | None) -> None:
        log.info("received signal %d: stopping after the current micro-batch", number)
        threading.Thread(target=next(stops), name="millstream-stop").start()

    with handling([signal.SIGTERM, signal.SIGINT], begin_stop) as handles:
        if handles:
            pass_on_signals()
        yield
