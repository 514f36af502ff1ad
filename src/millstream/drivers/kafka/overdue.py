"""Time: calls of librdkafka with a limit of our own, and how long a transaction has been open.

A transactional call is given a time limit and may not keep it: after a broker restart ``send_offsets_to_transaction(..., 10)``
has been seen to return after 75 to 117 s. So such calls are made in a thread. One that is overdue is left to itself: what it does
to its transaction is found in Kafka, and its producer is not used again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotDone
from typing import TypeVar

Answer = TypeVar("Answer")


class Overdue(Exception):  # noqa: N818 - it says that a call is overdue, and its caller makes an error of it
    """A call has not returned in time. It may still be at work."""


def within(seconds: float, call: Callable[[], Answer]) -> Answer:
    """Call in a thread, and wait no longer than this.

    Args:
        seconds: The time limit.
        call: What to call.

    Returns:
        What it returns.

    Raises:
        Overdue: If it has not returned in time.

    Example:
        >>> within(10, lambda: 6 * 7)
        42
    """
    outcome: Future[Answer] = Future()
    threading.Thread(target=_fill, args=(outcome, call), name="millstream-kafka-call", daemon=True).start()
    try:
        return outcome.result(seconds)
    except NotDone:
        if outcome.done():
            raise
        raise Overdue(f"no answer for {seconds:.0f} s") from None


def _fill(outcome: Future[Answer], call: Callable[[], Answer]) -> None:
    try:
        outcome.set_result(call())
    except BaseException as error:  # it belongs to who waits
        outcome.set_exception(error)


class Stopwatch:
    """How long a transaction is open, and how long at most nothing was done; paused processes and machines included."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begin at 0."""
        self._begun_s = self._looked_s = _clock_s()
        self.longest_s = 0.0

    def look(self) -> None:
        """Take note that something is done now."""
        now = _clock_s()
        self.longest_s = max(self.longest_s, now - self._looked_s)
        self._looked_s = now

    @property
    def passed_s(self) -> float:
        """How long it has been running, seconds."""
        return self._looked_s - self._begun_s


def _clock_s() -> float:
    """Read the clock that goes on while the machine sleeps, where there is one."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
