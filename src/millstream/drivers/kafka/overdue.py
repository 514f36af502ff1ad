"""Calls of librdkafka with an enforced timeout, limits for waiting, and the time that a transaction has been open.

Transactional calls may exceed their timeout: after a broker restart, ``send_offsets_to_transaction(..., 10)`` returned after
75 to 117 s. They therefore run in a thread. An overdue call is abandoned: the mark in Kafka shows whether its transaction was
committed, and its producer is not used again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotDone
from typing import Final, TypeVar

Answer = TypeVar("Answer")

STEP_S: Final = 10.0
"""Timeout of a call, in seconds."""
_GRACE_S = 5.0
"""Time by which a call may exceed its timeout before it is abandoned, in seconds."""
_LONGEST_STEP_S: Final = 30.0


class Overdue(Exception):  # noqa: N818 - internal: callers translate it into an error for users
    """A call has not returned in time. It may still be running."""


def in_time(call: Callable[[float], Answer]) -> Answer:
    """Call a function of its timeout, :data:`STEP_S`, in a thread and return its result."""
    seconds = STEP_S + _GRACE_S
    outcome: Future[Answer] = Future()
    threading.Thread(target=_fill, args=(outcome, call), name="millstream-kafka-call", daemon=True).start()
    try:
        return outcome.result(seconds)
    except NotDone:
        if outcome.done():
            raise
        raise Overdue(f"no answer for {seconds:.0f} s") from None


def _fill(outcome: Future[Answer], call: Callable[[float], Answer]) -> None:
    try:
        outcome.set_result(call(STEP_S))
    except BaseException as error:  # raised in the waiting thread
        outcome.set_exception(error)


class Patience:
    """A limit for waiting that leaves out most of the time in which this process was suspended.

    A deadline by the clock has passed when a suspended process resumes, before it has tried anything again.

    Args:
        limit_s: How long to wait in all, in seconds.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self.restart()

    def restart(self) -> None:
        self._checked_s = time.monotonic()
        self.waited_s = 0.0

    def is_over(self) -> bool:
        """Return whether the limit is reached. Call it regularly: more than 30 s between two calls count as 30 s."""
        now = time.monotonic()
        self.waited_s += min(now - self._checked_s, _LONGEST_STEP_S)
        self._checked_s = now
        return self.waited_s > self._limit_s


class Stopwatch:
    """Measures how long a transaction is open, and its longest inactivity, including pauses of the process and the machine."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self._begun_s = self._looked_s = _clock_s()
        self.longest_s = 0.0

    def look(self) -> None:
        """Record activity."""
        now = _clock_s()
        self.longest_s = max(self.longest_s, now - self._looked_s)
        self._looked_s = now

    @property
    def passed_s(self) -> float:
        return self._looked_s - self._begun_s


def _clock_s() -> float:
    """Read a clock that includes the machine's sleep, if the system has one."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
