"""The status of a running application."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from millstream.core.engine.threaded_nodes import ThreadFigures
from millstream.edge.lab.html import status_html
from millstream.edge.status.async_status import CallStatus


@dataclass(frozen=True)
class ThreadStatus:
    """What the threads of a task have done since the application was started.

    Attributes:
        threads: How many there are.
        executed: Per thread, the records that it has executed: those whose functions it has called.
        ended: How often a function has ended a thread.
    """

    threads: int
    executed: tuple[int, ...]
    ended: int


def thread_status(figures: ThreadFigures) -> ThreadStatus:
    return ThreadStatus(len(figures.executed), figures.executed, figures.ended)


def thread_metrics(figures: Collection[ThreadFigures]) -> dict[str, int]:
    """Return the metrics of all tasks together; empty if every task has one thread."""
    if not figures:
        return {}
    return {
        "threads": sum(len(figure.executed) for figure in figures),
        "thread_records": sum(sum(figure.executed) for figure in figures),
        "threads_ended": sum(figure.ended for figure in figures),
    }


@dataclass(frozen=True)
class RangeStatus:
    """What a key range is doing.

    Attributes:
        number: Its number in its partition group, from 0.
        of: Into how many ranges the group is divided.
        first_hash: The first hash of its keys.
        end_hash: The first hash behind them.
        positions: By partition, as ``topic-partition``, the offset before which it has processed everything.
        lag: Records of these partitions, of all ranges, behind that.
        records_per_s: Records that it has processed per second, over the last ten seconds.
        busy: Share of the last ten seconds that its tasks took on executors.
        state_bytes: Bytes of the log of its stores.
        placed: Host and executor on which it ran last.
    """

    number: int
    of: int
    first_hash: int
    end_hash: int
    positions: Mapping[str, int]
    lag: int
    records_per_s: float
    busy: float
    state_bytes: int
    placed: str


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
        buffered: Records that are buffered because tasks wait, per topic.
        paused: Topics that are paused.
        throttled: Most records per second, per topic that has such a limit.
        dropped: Records that were dropped on purpose, per task; those of global topics count for the part that fills the global stores,
            which is numbered after the sub-topologies.
        calls: What the asynchronous operators are doing, per task that has some.
        threads: What the threads of tasks have done, per task that has several and something for them to do.
        batch_s: Seconds that the last micro-batch took, from its plan to its commit; None before the first.
        lacking: Settings that the Spark session lacks, and why they are needed: one line for each. Empty for a session that Millstream has created.
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
