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
from penstock.core.model.ids import TaskId, TopicPartition
from penstock.drivers.spark.worker.filling import Filled


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
        idle_until_ms: When the wait for an empty input ends that records are held for, None if there is none.
        global_records: Records of global topics that went into this host's copies.
        merged: Updates of tables that were not forwarded, because a later one of the same row was.
        cache_bytes: The most bytes that the task's caches held, about.
        counted: What processors have counted, by name.
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
    merged: int = 0
    cache_bytes: int = 0
    counted: dict[str, int] = field(default_factory=dict)

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
        return Report(**told)


def report_of(task: TaskId, outcome: Outcome, *, filled: Filled | None = None, **more: Any) -> Report:
    """Make the report of an outcome, and of what was done to bring global stores up for it."""
    waits, filled = outcome.waiting, filled or Filled()
    offsets: dict[str, dict[str, int]] = {}
    for at, offset in outcome.committable.items():
        offsets.setdefault(at.topic, {})[str(at.partition)] = offset
    return Report(
        str(task),
        offsets,
        outcome.wake_at_ms,
        outcome.stream_time_ms,
        processed=outcome.metrics.processed,
        sent=outcome.metrics.sent,
        dropped=dict(filled.dropped + Counter(outcome.metrics.dropped)),
        punctuated=outcome.metrics.punctuated,
        notices=[*filled.notices, *outcome.notices],
        global_records=filled.records,
        enforced=outcome.metrics.enforced,
        merged=outcome.metrics.merged,
        cache_bytes=outcome.metrics.cache_bytes,
        counted=dict(outcome.metrics.counted),
        waiting=None if waits is None else (*waits.partition, waits.reason, waits.since_ms),
        buffered=[(*queue.partition, queue.lane, *held) for queue, held in sorted(outcome.buffered.items())],
        given_up=[(at.topic, at.partition) for at in outcome.given_up],
        idle_until_ms=outcome.idle_until_ms,
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
