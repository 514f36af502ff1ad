"""The status of a running application."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from millstream.edge.lab.html import status_html
from millstream.edge.status.async_status import CallStatus
from millstream.edge.status.range_status import RangeStatus
from millstream.edge.status.thread_status import ThreadStatus


@dataclass(frozen=True)
class Status:
    """What an application is doing.

    Attributes:
        state: ``starting``, ``running``, ``waiting`` (for the broker), ``draining``, ``stopping``, ``stopped`` or ``failed``.
        batch: Number of the last committed micro-batch, -1 before the first.
        lag: Records that are in the topics and have not been processed, per topic.
        records_per_s: Records read per second, over the last ten seconds.
        tasks: Tasks that have reported so far.
        error: Why the application failed.
        restoring: One line for each store of a task that is being restored.
        waiting: Why tasks that have records do not process them, and since when, one line per task.
        enforced: Records that tasks took although an empty input might still have brought an earlier one, per task.
        enforced_per_s: The same over all tasks per second, over the last ten seconds.
        buffered: Records that are held because tasks wait, per topic.
        paused: Topics that are paused.
        throttled: Most records per second, per topic that has such a limit.
        dropped: Records that were left out on purpose, per task; those of global topics count for what fills the global stores,
            which is numbered behind the sub-topologies.
        calls: What the asynchronous operators are doing, per task that has some.
        threads: What the threads of tasks have done, per task that has several and something for them to do.
        batch_s: Seconds that the last micro-batch took, from its plan to its commit; None before the first.
        lacking: What the Spark session lacks that Millstream wants, and why: one line for each setting. Empty for one that it made.
        placed: Host and executor on which each task ran last, as ``host/executor``.
        ranges: What the key ranges of partitions are doing, per task that has one.
        workers: Spark partitions that run the tasks; 0 until this is known.
    """

    state: str
    batch: int
    lag: Mapping[str, int]
    records_per_s: float
    tasks: int
    error: str | None = None
    restoring: Sequence[str] = ()
    waiting: Mapping[str, str] = field(default_factory=dict)
    enforced: Mapping[str, int] = field(default_factory=dict)
    enforced_per_s: float = 0.0
    buffered: Mapping[str, int] = field(default_factory=dict)
    paused: Sequence[str] = ()
    throttled: Mapping[str, int] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)
    calls: Mapping[str, CallStatus] = field(default_factory=dict)
    threads: Mapping[str, ThreadStatus] = field(default_factory=dict)
    batch_s: float | None = None
    lacking: Sequence[str] = ()
    placed: Mapping[str, str] = field(default_factory=dict)
    ranges: Mapping[str, RangeStatus] = field(default_factory=dict)
    workers: int = 0

    def _repr_html_(self) -> str:
        return status_html(vars(self))
