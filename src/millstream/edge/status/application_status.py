"""The status of a running application."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from millstream.core.engine.threaded_nodes import ThreadFigures
from millstream.edge.lab.html import status_html
from millstream.edge.status.async_status import CallStatus

STANDBY: Final = "standby"
"""The state of a driver that waits until it is elected. Metrics and health show it; the application of this driver has not begun."""


@dataclass(frozen=True)
class ThreadStatus:
    """What the threads of a task have done since the application's start.

    Attributes:
        executed: Per thread, the number of records for which it has called functions.
        ended: How many times a function has ended a thread.
    """

    threads: int
    executed: tuple[int, ...]
    ended: int


def thread_status(figures: ThreadFigures) -> ThreadStatus:
    return ThreadStatus(len(figures.executed), figures.executed, figures.ended)


def thread_metrics(figures: Collection[ThreadFigures]) -> dict[str, int]:
    """Return the metrics summed over all tasks; empty if every task has one thread."""
    if not figures:
        return {}
    return {
        "threads": sum(len(figure.executed) for figure in figures),
        "thread_records": sum(sum(figure.executed) for figure in figures),
        "threads_ended": sum(figure.ended for figure in figures),
    }


@dataclass(frozen=True)
class SplitStatus:
    """How far a partition that was ever split is processed.

    Attributes:
        epoch: The number of the epoch that is being processed.
        newest: The number of the newest epoch. It is higher while records from before a split or a merge are processed.
        ranges: The number of key ranges in the epoch that is being processed; 1 if the partition is not split in it.
        position: The position before which everything has been processed. Positions number the records of a partition in all of its logs,
            so they also increase from epoch to epoch.
        lag: The number of unprocessed records in all of its logs.
    """

    epoch: int
    newest: int
    ranges: int
    position: int
    lag: int


@dataclass(frozen=True)
class RangeStatus:
    """What a key range is doing.

    Attributes:
        number: Its number in its partition group, from 0.
        of: The number of ranges into which the group is divided.
        first_hash: The first hash of its keys.
        end_hash: The end of its hashes, exclusive.
        positions: By partition, as ``topic-partition``, the offset before which it has processed everything; for a partition that was
            split, the position, as in :class:`SplitStatus`.
        lag: The number of records in these partitions, of all ranges, from these positions on.
        records_per_s: Records that it processed per second, over the last ten seconds.
        busy: The share of the last ten seconds during which its task worked.
        state_bytes: The size of the log of its stores, bytes.
        placed: The host and the executor on which it last ran.
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
        batch: The number of the last committed micro-batch; -1 before the first.
        lag: Unprocessed records, per topic.
        records_per_s: Records read per second, over the last ten seconds.
        tasks: The number of tasks that have reported so far.
        error: Why the application failed; None if it has not.
        restoring: One line for each store of a task that is being restored.
        waiting: Why a task does not process its buffered records, and since when; one line per waiting task.
        enforced: Records that a task processed although an empty input might still have brought an earlier one, per task.
        enforced_per_s: The number of such records per second in all tasks, over the last ten seconds.
        buffered: Records that are buffered because tasks wait, per topic.
        paused: Topics that are paused.
        throttled: The maximum number of records per second, per throttled topic.
        dropped: Records that were dropped on purpose, per task. Records of global topics count for the part that fills the global stores,
            whose number follows those of the sub-topologies.
        calls: What the asynchronous operators are doing, per task with such operators.
        threads: What the threads of a task have done, per task with several threads and functions for them to call.
        batch_s: How long the last micro-batch took from its plan to its commit, seconds; None before the first.
        lacking: Settings that the Spark session lacks, and why they are needed; one line per setting. Empty for a session that
            Millstream created.
        placed: The host and the executor on which each task last ran, as ``host/executor``.
        ranges: What the key ranges of partitions are doing, per task with a key range.
        workers: The number of Spark partitions that run the tasks; 0 until it is known.
        splits: How far partitions that were ever split are processed, by partition, as ``topic-partition``.
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
    splits: Mapping[str, SplitStatus] = field(default_factory=dict)

    def _repr_html_(self) -> str:
        return status_html(vars(self))
