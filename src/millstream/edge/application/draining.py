"""Draining: an application finishes its in-flight records before it ends.

An application can stop in two ways; neither loses records. *Carrying over* is quick: in-flight records are part of the snapshot of the
last micro-batch, and the next start continues them. *Draining* takes longer: the application reads no more external records, but
micro-batches continue until all records are finished or the time limit is reached. Draining does not wait for a record whose retry or
delay is due after the limit, nor for records that a task buffers until it has read another input far enough.

The application checks before each micro-batch, when the planner asks. No micro-batch runs then, and all tasks have reported.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from millstream.core.model.positions import Offsets

_POLL_S: Final = 0.02


class Left(NamedTuple):
    """The number of in-flight records of asynchronous operators, and how many of them may finish in time."""

    unfinished: int
    awaited: int


class Draining:
    """The drain of an application. Any thread may begin it; threads of the control server check it.

    Args:
        left: Returns the number of in-flight records, and how many of them may finish by a time, ms since the epoch by the
            application's clock.
    """

    def __init__(self, left: Callable[[int], Left]) -> None:
        self._left = left
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._begun_at = 0.0
        self._deadline: float | None = None
        self._begun_with: int | None = None

    @property
    def has_begun(self) -> bool:
        """Whether the application has stopped reading external topics."""
        return self._deadline is not None

    def begin(self, timeout_s: float) -> None:
        """Begin to drain for at most ``timeout_s`` seconds; a second call can only shorten this time."""
        with self._lock:
            now = time.monotonic()
            if self._deadline is None:
                self._begun_at = now
            self._deadline = min(now + timeout_s, self._deadline or float("inf"))

    def check(self, now_ms: int, unread: int) -> None:
        """Check, between two micro-batches, whether anything is left to wait for."""
        if self._deadline is None:
            return
        left = self._left(now_ms + max(int(self._left_s() * 1000), 0))
        if self._begun_with is None:
            self._begun_with = left.unfinished
        if not left.awaited and not unread:
            self._over.set()

    def wait(self, runs: Callable[[], bool]) -> None:
        """Wait until nothing is left, the time limit is reached, or the application has ended."""
        while self._left_s() > 0 and runs():
            if self._over.wait(_POLL_S):
                return

    def outcome(self, unfinished: int) -> str:
        """Return as text how many records were drained and carried over; empty if none were."""
        drained = max((self._begun_with or 0) - unfinished, 0)
        seconds = time.monotonic() - self._begun_at
        lines = [f"{_records(drained)} finished in {seconds:.1f} s"] if drained else []
        if unfinished:
            lines.append(f"{_records(unfinished)} carried over to the next start")
        return "; ".join(lines)

    def _left_s(self) -> float:
        return 0.0 if self._deadline is None else self._deadline - time.monotonic()


def unread(positions: Offsets, ends: Offsets | None, topics: Collection[str]) -> int:
    """Count the unread records of topics; 0 if no broker answers."""
    return sum(
        max(end - positions.get(topic, {}).get(partition, 0), 0)
        for topic, partitions in (ends or {}).items()
        if topic in topics
        for partition, end in partitions.items()
    )


def _records(count: int) -> str:
    return "1 unfinished record was" if count == 1 else f"{count:,} unfinished records were"
