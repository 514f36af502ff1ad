"""Tap buffers: the newest samples of each tap of a running application.

The planner receives the names of the tapped nodes, and the tasks of the next micro-batch sample these nodes. The samples arrive with the
reports of the tasks, after the micro-batch has finished. A repeated micro-batch adds no samples a second time.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, NamedTuple

from millstream.core.model.errors import ControlError
from millstream.core.runtime.task_report import TaskReport
from millstream.core.taps.samples import TapReport
from millstream.core.topology.plan import Plan

log = logging.getLogger("millstream.application")

QUESTION: Final = "tap"
"""The name of requests about taps; their data is an action with its arguments."""
MAX_LIMIT: Final = 10_000


@dataclass(frozen=True)
class TapRecord:
    """A record that reached a tapped node.

    Attributes:
        node: The name of the node.
        task: The task's id.
        batch: The number of the micro-batch.
        passed_ms: When the record reached the node: the wall-clock time of the micro-batch, ms since the epoch.
        topic: The topic of the input record that led to this record; None if a punctuation forwarded it.
        partition: The partition of the input record; -1 without one.
        offset: The offset of the input record; -1 without one.
        key: The key, as plain data.
        value: The value, as plain data; for a change of a table, the new value.
        timestamp: The record's timestamp, ms since the epoch.
        headers: Pairs of name and value, as plain data.
        cut: Whether some data was too large and was truncated.
    """

    node: str
    task: str
    batch: int
    passed_ms: int
    topic: str | None
    partition: int
    offset: int
    key: Any
    value: Any
    timestamp: int
    headers: tuple[tuple[str, Any], ...]
    cut: bool


class TapCounts(NamedTuple):
    """Counts of the records at a tap.

    Attributes:
        passed: Records that reached the node since the tap was opened.
        sampled: How many of them were sampled.
        dropped: Samples that newer samples have replaced in the buffer.
    """

    passed: int
    sampled: int
    dropped: int


class TapContent(NamedTuple):
    """Samples of a tap.

    Attributes:
        ended: Whether no more samples will arrive.
    """

    records: tuple[TapRecord, ...]
    counts: TapCounts
    ended: bool

    def without_first(self, sampled: int) -> TapContent:
        """Return the content without the first ``sampled`` samples."""
        known = len(self.records) - (self.counts.sampled - sampled)
        return self._replace(records=self.records[max(known, 0) :])


@dataclass
class _Buffer:
    """The samples of one tap. Guarded by the lock of ``TapBuffers``."""

    node: str
    records: deque[TapRecord]
    lease_s: float | None
    read_at: float = field(default_factory=time.monotonic)
    passed: int = 0
    sampled: int = 0

    def expired(self) -> bool:
        return self.lease_s is not None and time.monotonic() - self.read_at > self.lease_s

    def add(self, batch: int, task: str, report: TapReport) -> None:
        self.passed += report.passed
        self.sampled += len(report.samples)
        # The buffer would drop all but the newest immediately.
        skipped = max(len(report.samples) - (self.records.maxlen or 0), 0)
        for sample in islice(report.samples, skipped, None):
            self.records.append(TapRecord(self.node, task, batch, report.now_ms, *sample))

    def content(self, *, ended: bool) -> TapContent:
        counts = TapCounts(self.passed, self.sampled, self.sampled - len(self.records))
        return TapContent(tuple(self.records), counts, ended)


class TapBuffers:
    """The taps of a running application. Safe to use from several threads."""

    def __init__(self, application_id: str, plan: Callable[[], Plan]) -> None:
        self._id = application_id
        self._plan = plan
        self._lock = threading.Lock()
        self._buffers: dict[str, _Buffer] = {}
        self._abandoned: deque[str] = deque()
        self._batch: int | None = None
        self._ended = False

    def answer(self, action: str, arguments: Mapping[str, object]) -> object:
        """Execute an action: ``open``, ``read``, ``close`` or ``abandon``."""
        actions: dict[str, Callable[..., object]] = {
            "open": self.open,
            "read": self.read,
            "close": self.close,
            "abandon": self.abandon,
        }
        return actions[action](**arguments)

    def open(self, node: str, limit: int, lease_s: float | None = None) -> str:
        """Tap a node, beginning with the next micro-batch.

        Args:
            lease_s: The tap ends after this time without a read, seconds; None for never.

        Returns:
            The id of the tap.

        Raises:
            ControlError: If there is no such node, the limit is invalid, or the application has ended.
        """
        if not isinstance(limit, int) or not 1 <= limit <= MAX_LIMIT:
            raise ControlError(f"a tap must keep between 1 and {MAX_LIMIT:,} records, not {limit}")
        self._check_known(node)
        tap = secrets.token_hex(8)
        with self._lock:
            if self._ended:
                raise ControlError(
                    f"application {self._id!r} has ended; only a running application can be tapped"
                )
            self._buffers[tap] = _Buffer(node, deque(maxlen=limit), lease_s)
        log.info("node %r is tapped", node)
        return tap

    def read(self, tap: str, after: int = 0) -> TapContent:
        """Return the samples of a tap.

        Args:
            after: How many records had been sampled at the last read; only newer samples are returned.
        """
        with self._lock:
            buffer = self._buffer(tap)
            buffer.read_at = time.monotonic()
            return buffer.content(ended=self._ended).without_first(after)

    def close(self, tap: str) -> TapContent:
        """End a tap; return all its samples."""
        with self._lock:
            buffer = self._buffer(tap)
            del self._buffers[tap]
        log.info("a tap on node %r is closed", buffer.node)
        return buffer.content(ended=True)

    def abandon(self, tap: str) -> None:
        """Let :meth:`nodes` end a tap, unless it is closed. The garbage collector calls this, in a thread that may hold the lock."""
        self._abandoned.append(tap)

    def nodes(self) -> tuple[str, ...]:
        """Return the tapped nodes; ends taps that are no longer read or have been abandoned."""
        if not (self._buffers or self._abandoned):
            return ()
        with self._lock:
            while self._abandoned:
                self._buffers.pop(self._abandoned.popleft(), None)
            for tap in [tap for tap, buffer in self._buffers.items() if buffer.expired()]:
                log.info("the tap on node %r has ended, because it was not read", self._buffers.pop(tap).node)
            return tuple(sorted({buffer.node for buffer in self._buffers.values()}))

    def record_batch(self, batch: int, reports: Sequence[TaskReport]) -> None:
        if batch == self._batch:
            return
        self._batch = batch
        found = [(report.task, tap) for report in reports for tap in report.taps]
        with self._lock:
            for buffer in self._buffers.values():
                for task, tap in found:
                    if tap.node == buffer.node:
                        buffer.add(batch, task, tap)

    def end(self) -> None:
        """Accept no more samples; existing ones can still be read."""
        with self._lock:
            self._ended = True

    def _buffer(self, tap: str) -> _Buffer:
        if tap not in self._buffers:
            raise ControlError("the tap has ended, because it was not read for a while; tap the node again")
        return self._buffers[tap]

    def _check_known(self, node: str) -> None:
        known = [name for sub in self._plan().subtopologies for name in sub.nodes]
        if node not in known:
            raise ControlError(
                f"application {self._id!r} has no node {node!r}; its nodes are: {', '.join(map(repr, known))}"
            )
