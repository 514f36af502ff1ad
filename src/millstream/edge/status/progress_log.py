"""The progress log: what an application logs while it starts and runs, as text for people and as fields for programs.

It has one line per phase of the start, one line every ten seconds while records are read, one line per minute while nothing happens, and
a summary at the end. Similar warnings are logged once, then counted.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from millstream.core.runtime.lifecycle import FINAL, State
from millstream.edge.application.periodic_task import PeriodicTask
from millstream.edge.status.application_status import Status
from millstream.edge.status.log_output import PROGRESS

log = logging.getLogger(PROGRESS)

_EVERY_S: Final = 10.0
_QUIET_EVERY_S: Final = 60.0
_WAITS_SHOWN: Final = 2
_VARYING: Final = re.compile(r"'[^']*'|\"[^\"]*\"|\d+(?:[.,:]\d+)*")
_MOST_KINDS: Final = 1000
_SHOWN: Final = 100
_BY_STATE: Final[Mapping[str, Sequence[str]]] = {
    State.WAITING: ["waiting for the broker"],
    State.DRAINING: ["finishing unfinished records"],
}


class ProgressLog:
    """Logs the progress of an application. Thread-safe."""

    def __init__(self, application_id: str) -> None:
        self._id = application_id
        self._began = time.monotonic()
        self._reporting: PeriodicTask | None = None
        self._logged_read, self._logged_at = -1, 0.0

    def event(self, name: str, text: str, **facts: object) -> None:
        """Log an event.

        Args:
            name: The kind of event, for programs.
            text: The event as text, for people.
            **facts: Additional fields for programs.
        """
        all_facts = {"application": self._id, "event": name, "seconds": round(self.seconds, 1), **facts}
        log.info("%s: %s", self._id, text, extra={"facts": all_facts})

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def follow(self, look: Callable[[], tuple[Status, Mapping[str, int]]], then: Callable[[], None]) -> None:
        """Log the progress every ten seconds.

        Args:
            look: Returns the current status and metrics.
            then: Called every ten seconds, after the progress.
        """

        def report() -> None:
            status, metrics = look()
            if status.state not in FINAL:
                self._report(status, metrics)
                then()

        self._reporting = PeriodicTask(report, _EVERY_S)

    def close(self) -> None:
        if self._reporting is not None:
            self._reporting.close()

    def _report(self, status: Status, metrics: Mapping[str, int]) -> None:
        now, read = time.monotonic(), metrics["read_records"]
        if read == self._logged_read and now - self._logged_at < _QUIET_EVERY_S and not reasons(status):
            return
        self._logged_read, self._logged_at = read, now
        self.event("progress", progress_line(status, metrics), **facts_of(status, metrics))


def progress_line(status: Status, metrics: Mapping[str, int]) -> str:
    """Return the progress as a line of text.

    Example:
        >>> status = Status("running", 7, {"lines": 120}, 1234.0, 2, batch_s=0.65)
        >>> progress_line(status, {"read_records": 12345})
        '12,345 records read, 1,234 records/s, lag 120, micro-batch 0.65 s'
    """
    parts = [f"{metrics['read_records']:,} records read", f"{status.records_per_s:,.0f} records/s"]
    parts.append(f"lag {sum(status.lag.values()):,}")
    if status.batch_s is not None:
        parts.append(f"micro-batch {status.batch_s:.2f} s")
    waits = reasons(status)
    if not waits and not sum(status.lag.values()) and not status.records_per_s:
        waits = ["waiting for records"]
    return "; ".join([", ".join(parts), *waits])


def reasons(status: Status) -> list[str]:
    """Return the reasons why an application does not process at full speed."""
    lines = list(_BY_STATE.get(status.state, ()))
    lines += status.restoring[:_WAITS_SHOWN]
    waits = [f"task {task} {why}" for task, why in status.waiting.items()]
    lines += waits[:_WAITS_SHOWN]
    if len(waits) > _WAITS_SHOWN:
        lines.append(f"{len(waits) - _WAITS_SHOWN} more tasks wait")
    if status.paused:
        lines.append(f"paused: {', '.join(status.paused)}")
    for topic, rate in status.throttled.items():
        if status.lag.get(topic):
            lines.append(f"throttled: topic {topic} at {rate:,} records/s")
    return lines


def facts_of(status: Status, metrics: Mapping[str, int]) -> dict[str, object]:
    return {
        "state": status.state,
        "read_records": metrics["read_records"],
        "sent_records": metrics["sent_records"],
        "dropped_records": metrics["dropped_records"],
        "records_per_s": round(status.records_per_s, 1),
        "lag": dict(status.lag),
        "batch": status.batch,
        "batch_s": None if status.batch_s is None else round(status.batch_s, 3),
        "waits": reasons(status),
    }


def summary(status: Status, metrics: Mapping[str, int], seconds: float) -> str:
    """Return one line that summarises a run."""
    parts = [f"{metrics['read_records']:,} records read", f"{metrics['sent_records']:,} sent"]
    if metrics["dropped_records"]:
        parts.append(f"{metrics['dropped_records']:,} dropped")
    return f"{status.state} after {seconds:,.1f} s: {', '.join(parts)}, lag {sum(status.lag.values()):,}"


class RepeatedWarnings:
    """Logs the first warning of each kind, and counts the others.

    Warnings are of the same kind if they differ only in numbers and quoted text.
    """

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._lock = threading.Lock()
        self._more: dict[str, tuple[str, int]] = {}

    def warn(self, text: str) -> None:
        kind = _VARYING.sub("#", text)
        with self._lock:
            first, count = self._more.get(kind, (text, -1))
            if len(self._more) >= _MOST_KINDS:
                self._more.clear()
            self._more[kind] = first, count + 1
        if count < 0:
            self._warn(text)

    def flush(self) -> None:
        """Log how many warnings of each kind were counted since the last call."""
        with self._lock:
            counted = [(first, count) for first, count in self._more.values() if count]
            self._more = {kind: (first, 0) for kind, (first, _) in self._more.items()}
        for first, count in counted:
            short = first if len(first) <= _SHOWN else f"{first[:_SHOWN]}..."
            self._warn(f"at least {count:,} more like: {short}")
