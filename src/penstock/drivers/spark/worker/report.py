"""Reports: what a task says about a batch, on its way to the application."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, cast

from penstock.core.engine.outcome import Outcome
from penstock.core.engine.readiness import Reason, Waiting
from penstock.core.model.durations import earliest
from penstock.core.model.ids import TaskId, TopicPartition
from penstock.drivers.spark.worker.calls import TaskCalls
from penstock.drivers.spark.worker.filling import Filled


@dataclass(frozen=True)
class CallReport:
    """What there is to see of the asynchronous operators of a task.

    Attributes:
        look_at_ms: When to look for what has come of calls, or the next attempt is due; None if nothing is unfinished.
        running: Calls that run in the station.
        with_station: Records handed to the station.
        waiting: Records that wait for a retry or a delay.
        parked: Records that could be called and have not been handed over.
        held: Records whose calls have ended, and that wait for those in front of them.
        most_per_key: Unfinished records of the key that has most.
        oldest_ms: When the oldest unfinished record came, ms since the epoch; None if there is none.
        longest_ms: For how long the oldest call that runs has been running.
        loop_lag_ms: By how much the event loop of the station was late lately.
        settled: Attempts that ended.
        retries: Attempts that will be followed by another.
        dead_letters: Records that went to a dead-letter topic.
        ignored: Answers that came too late to count.
        lost: Calls that the station did not have any more.
    """

    look_at_ms: int | None
    running: int
    with_station: int
    waiting: int
    parked: int
    held: int
    most_per_key: int
    oldest_ms: int | None
    longest_ms: int
    loop_lag_ms: int
    settled: int
    retries: int
    dead_letters: int
    ignored: int
    lost: int


@dataclass(frozen=True)
class Report:
    """What one task did in one micro-batch.

    Attributes:
        task: The task's id.
        offsets: Topic to partition to the offset before which everything has been processed.
        wake_at_ms: When wall-clock punctuation is due next, None if never.
        stream_time_ms: Stream time, -1 if no record has been seen.
        read: Records that came from the broker.
        read_bytes: Their bytes, keys and values.
        processed: Records processed, those that came through the shuffle included.
        sent: Records handed to sinks.
        dropped: Records left out, by reason.
        punctuated: Calls of punctuators.
        first_record_ms: When a batch with records was planned; None without records.
        state_bytes: Bytes of the task's log.
        restored: Changes applied from the log to the local copy beyond the previous batch's.
        notices: Lines for the log.
        enforced: Records taken while an input was empty that might still have brought an earlier one.
        waiting: Topic, partition, reason and since when (ms) the task waits for an input; None if it does not.
        buffered: Topic, partition, lane, records, bytes and largest timestamp (ms) of each queue that holds records.
        given_up: Topic and partition of the empty inputs that are no longer waited for.
        idle_until_ms: When records that are held may go on, because the wait for an empty input ends or calls may have come to
            something; None if there are none.
        global_records: Records of global topics that went into this host's copies.
        global_dropped: Those of ``dropped`` that were records of global topics, by what fills the stores, as the id of a task.
        merged: Updates of tables that were not forwarded, because a later one of the same row was.
        cache_bytes: The most bytes that the task's caches held, about.
        counted: What processors have counted, by name.
        calls: What there is to see of asynchronous operators, None if the task has none.
    """

    task: str
    offsets: dict[str, dict[str, int]] = field(default_factory=dict)
    wake_at_ms: int | None = None
    stream_time_ms: int = -1
    read: int = 0
    read_bytes: int = 0
    processed: int = 0
    sent: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    punctuated: int = 0
    first_record_ms: int | None = None
    state_bytes: int = 0
    restored: int = 0
    notices: list[str] = field(default_factory=list)
    enforced: int = 0
    waiting: tuple[str, int, str, int] | None = None
    buffered: list[tuple[str, int, str, int, int, int]] = field(default_factory=list)
    given_up: list[tuple[str, int]] = field(default_factory=list)
    idle_until_ms: int | None = None
    global_records: int = 0
    global_dropped: dict[str, int] = field(default_factory=dict)
    merged: int = 0
    cache_bytes: int = 0
    counted: dict[str, int] = field(default_factory=dict)
    calls: CallReport | None = None

    def encode(self) -> bytes:
        """Write the report for the wire."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def decode(data: bytes) -> Report:
        """Read what :meth:`encode` gave."""
        told = json.loads(data)
        if told["waiting"] is not None:
            told["waiting"] = tuple(told["waiting"])
        for name in ("buffered", "given_up"):
            told[name] = [tuple(each) for each in told[name]]
        if told["calls"] is not None:
            told["calls"] = CallReport(**told["calls"])
        return Report(**told)


def call_report(outcome: Outcome, calls: TaskCalls, now_ms: int) -> CallReport:
    """Make the report of the asynchronous operators of a task, all together."""
    all_of = outcome.calls.values()
    oldest = [one.oldest_ms for one in all_of if one.oldest_ms is not None]
    return CallReport(
        earliest(calls.wake_at_ms(now_ms), outcome.attempts_due_ms),
        calls.running,
        sum(one.with_station for one in all_of),
        sum(one.waiting for one in all_of),
        sum(one.parked for one in all_of),
        sum(one.held for one in all_of),
        max((one.most_per_key for one in all_of), default=0),
        min(oldest, default=None),
        calls.longest_ms,
        calls.loop_lag_ms,
        sum(one.settled for one in all_of),
        sum(one.retries for one in all_of),
        sum(one.dead_letters for one in all_of),
        sum(one.ignored for one in all_of),
        calls.lost,
    )


def report_of(
    task: TaskId,
    outcome: Outcome,
    *,
    filled: Filled | None = None,
    calls: CallReport | None = None,
    **more: Any,
) -> Report:
    """Make the report of an outcome, of its calls, and of what was done to bring global stores up for it."""
    waits, filled = outcome.waiting, filled or Filled()
    look_at_ms = None if calls is None else calls.look_at_ms
    offsets: dict[str, dict[str, int]] = {}
    for at, offset in outcome.committable.items():
        offsets.setdefault(at.topic, {})[str(at.partition)] = offset
    return Report(
        str(task),
        offsets,
        earliest(outcome.wake_at_ms, look_at_ms),
        outcome.stream_time_ms,
        processed=outcome.metrics.processed,
        sent=outcome.metrics.sent,
        dropped=dict(filled.dropped + Counter(outcome.metrics.dropped)),
        punctuated=outcome.metrics.punctuated,
        notices=[*filled.notices, *outcome.notices],
        global_records=filled.records,
        global_dropped=dict(filled.dropped_by),
        enforced=outcome.metrics.enforced,
        merged=outcome.metrics.merged,
        cache_bytes=outcome.metrics.cache_bytes,
        counted=dict(outcome.metrics.counted),
        waiting=None if waits is None else (*waits.partition, waits.reason, waits.since_ms),
        buffered=[(*queue.partition, queue.lane, *held) for queue, held in sorted(outcome.buffered.items())],
        given_up=[(at.topic, at.partition) for at in outcome.given_up],
        idle_until_ms=earliest(outcome.idle_until_ms, look_at_ms),
        calls=calls,
        **more,
    )


def waiting_of(report: Report) -> Waiting | None:
    """Give why the task waits, None if it does not."""
    if report.waiting is None:
        return None
    topic, partition, reason, since_ms = report.waiting
    return Waiting(TopicPartition(topic, partition), cast("Reason", reason), since_ms)


def offsets_of(reports: Iterable[Report]) -> dict[TopicPartition, int]:
    """Give the offsets before which everything has been processed, from the reports of a batch.

    A range that several tasks read comes in several reports; the farthest counts.

    Example:
        >>> offsets_of([Report("0_0", {"t": {"1": 5}}), Report("0_1", {"t": {"1": 9}})])
        {TopicPartition(topic='t', partition=1): 9}
    """
    offsets: dict[TopicPartition, int] = {}
    for report in reports:
        for topic, partitions in report.offsets.items():
            for partition, offset in partitions.items():
                at = TopicPartition(topic, int(partition))
                offsets[at] = max(offset, offsets.get(at, 0))
    return offsets


def host_now_ms() -> int:
    """Read the host's clock, for metrics only."""
    return int(time.time() * 1000)  # noqa: TID251 - metrics, never semantics
