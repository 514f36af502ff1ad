"""Reports the progress of a running restore: what is restored and why, the rate, and the remaining time.

A large restore logs one line per store at its beginning, about one per second while it runs, and one at its end. A small restore of less
than a second is not reported. On the application's host, the lines reach the application and appear in its log and in ``status()``. On
other hosts, they go to the log of the Python worker, which Spark copies to its own log, and the task's report contains the last line of
each store.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from millstream.drivers.spark.control import ControlAddress
from millstream.drivers.spark.executor_id import this_executor

log = logging.getLogger("millstream.state")

QUESTION: Final = "restoring"
_EVERY_S: Final = 1.0
_LARGE: Final = 100_000


@dataclass(frozen=True)
class RestoreProgress:
    """Progress of the restore of one store of one task.

    Attributes:
        from_version: The previous version of the local copy. None if it was empty.
        done: Records done. A record that was read but not yet written counts as half.
    """

    task: str
    store: str
    why: str
    from_version: int | None
    to_version: int
    done: float = 0
    total: int = 0
    seconds: float = 0.0
    finished: bool = False

    @property
    def records_per_s(self) -> float:
        return self.done / self.seconds if self.seconds else 0.0

    def line(self) -> str:
        """Return the progress as a line for the log.

        Example:
            >>> RestoreProgress("0_3", "counts", "the local copy is missing", None, 812, 600_000, 2_000_000, 2.0).line()
            'task 0_3, store counts: restoring from nothing to version 812, because the local copy is missing: 600,000 of 2,000,000 records (30 %), 300,000 records/s, 5 s left'
        """
        origin = "nothing" if self.from_version is None else f"version {self.from_version}"
        doing = "restored" if self.finished else "restoring"
        line = f"task {self.task}, store {self.store}: {doing} from {origin} to version {self.to_version}"
        line += f", because {self.why}: {self.done:,.0f} of {self.total:,} records"
        rate = self.records_per_s
        if self.finished:
            return f"{line} in {self.seconds:.1f} s, {rate:,.0f} records/s"
        if not rate:
            return line
        left = max(self.total - self.done, 0) / rate
        return (
            f"{line} ({100 * self.done / max(self.total, 1):.0f} %), {rate:,.0f} records/s, {left:.0f} s left"
        )


RestoreListener = Callable[[RestoreProgress], bool | None]
"""Receives the progress of a restore and returns whether the progress reached the application."""


def log_progress(progress: RestoreProgress) -> bool:
    """Log the progress in this process, which is not the application's process."""
    log.warning("%s", progress.line())
    return False


@dataclass(frozen=True)
class ApplicationListener:
    """Reports to the application if it runs on this host, and otherwise to the log of this process. Picklable.

    Attributes:
        control: Address where the application listens. Reachable only from the application's host.
    """

    control: ControlAddress
    host: str

    @classmethod
    def on_this_host(cls, control: ControlAddress) -> ApplicationListener:
        return cls(control, socket.gethostname())

    def __call__(self, progress: RestoreProgress) -> bool:
        if socket.gethostname() == self.host and self.control.ask(QUESTION, progress):
            return True
        return log_progress(progress)


class Relay:
    """Forwards progress. Keeps the last lines that did not reach the application for the task's report."""

    def __init__(self, listener: RestoreListener) -> None:
        self.undelivered: list[str] = []
        self._listener = listener

    def __call__(self, progress: RestoreProgress) -> bool:
        delivered = bool(self._listener(progress))
        if progress.finished and not delivered:
            self.undelivered.append(f"{progress.line()}, on {this_executor()}")
        return delivered


class StoreProgress:
    """Counts the records of one store and reports about once per second. Owned by a restore.

    Args:
        begin: What is restored and why. The total may be an estimate.
    """

    def __init__(
        self, begin: RestoreProgress, listener: RestoreListener, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._now = begin
        self._listener = listener
        self._clock = clock
        self._began = clock()
        self._due = self._began + _EVERY_S
        self._reported = begin.total >= _LARGE
        if self._reported:
            listener(begin)

    def advance(self, records: float) -> None:
        now = self._clock()
        self._now = replace(self._now, done=self._now.done + records, seconds=now - self._began)
        if now >= self._due:
            self._due = now + _EVERY_S
            self._reported = True
            self._listener(self._now)

    def finish(self, records: int) -> None:
        """Report the end with the number of records, if the beginning was reported."""
        if self._reported:
            seconds = self._clock() - self._began
            self._listener(replace(self._now, done=records, total=records, seconds=seconds, finished=True))
