"""The status and the metrics of asynchronous operators, from the reports of their tasks."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from millstream.core.asynchronous.async_worker import Queued
from millstream.core.model.ids import TaskId, TopicPartition
from millstream.core.model.positions import Offsets
from millstream.core.runtime.task_report import CallReport, HotKeySample, TaskReport
from millstream.edge.application.draining import Left

_LATELY: Final = 10_000
"""After this many sampled records, all counts are halved."""
_MOST_PARKED: Final = 10_000


@dataclass(frozen=True)
class HotKey:
    """The key with the most records recently.

    Attributes:
        key: The key, abbreviated.
        share: The key's share of all records, from 0 to 1.
        call_ms: The average duration of recent calls.
        ceiling_per_s: The maximum number of records per second, of all keys together, at this share; None if calls take no time.
    """

    key: str
    share: float
    call_ms: float
    ceiling_per_s: float | None


class HotKeyStatuses:
    """Sums up a task's samples of the records of one operator. Guarded by the lock of its owner.

    Example:
        >>> hot = HotKeyStatuses()
        >>> for key, count in (("'a'", 30), ("'b'", 10), ("'a'", 10)):
        ...     hot.note(HotKeySample("call", key, count, of=100, call_ms=10.0, per_call=1))
        >>> hot.now()
        HotKey(key="'a'", share=0.13333333333333333, call_ms=10.0, ceiling_per_s=750.0)
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._of = 0
        self._last: HotKeySample | None = None

    def note(self, hottest: HotKeySample) -> None:
        self._last = hottest
        self._counts[hottest.key] += hottest.records
        self._of += hottest.of
        if self._of > _LATELY:
            self._of //= 2
            self._counts = Counter({key: n // 2 for key, n in self._counts.items() if n > 1})

    def now(self) -> HotKey | None:
        """Return the most frequent key; None before the first record with a key."""
        if self._last is None or not self._counts:
            return None
        ((key, count),) = self._counts.most_common(1)
        share, last = count / self._of, self._last
        ceiling = 1_000 * last.per_call / (share * last.call_ms) if last.call_ms else None
        return HotKey(key, share, last.call_ms, ceiling)


@dataclass(frozen=True)
class CallStatus:
    """What the asynchronous operators of a task are doing.

    Attributes:
        with_async_worker: Records in the async worker, whose calls run or are queued there.
        waiting: Records that wait for a retry or a delay.
        reasons: Waiting records by reason. Records in the task wait for a ``retry`` or a ``delay``. Records in the async worker wait for
            earlier calls of their ``key``, the ``limit`` of running calls (``max_in_flight``), the ``rate`` limit, an open circuit
            ``breaker``, or their due ``time``, which is near.
        parked: Records whose calls are due but which were not sent to the async worker.
        held: Records whose calls have ended but which wait for earlier records.
        most_per_key: The number of in-flight records of the key that has the most.
        oldest_s: The age of the oldest in-flight record, seconds; None if there is none.
        longest_s: How long the oldest running call has been running, seconds.
        loop_lag_ms: The recent delay of the async worker's event loop.
        hottest: The key with the most records and the maximum throughput that it allows, per operator that keeps the order of keys.
    """

    running: int
    with_async_worker: int
    waiting: int
    reasons: Mapping[str, int]
    parked: int
    held: int
    most_per_key: int
    oldest_s: float | None
    longest_s: float
    loop_lag_ms: int
    hottest: Mapping[str, HotKey]


def call_status(report: CallReport, hottest: Mapping[str, HotKeyStatuses]) -> CallStatus:
    return CallStatus(
        report.running,
        report.with_async_worker,
        report.waiting,
        _reasons(report),
        report.parked,
        report.held,
        report.most_per_key,
        _age_s(report),
        report.longest_ms / 1000,
        report.loop_lag_ms,
        {operator: key for operator, keys in hottest.items() if (key := keys.now()) is not None},
    )


def _reasons(report: CallReport) -> dict[str, int]:
    with_worker = dict(zip(Queued._fields, report.queued or Queued()))
    return {"retry": report.waiting - report.delayed, "delay": report.delayed, **with_worker}


def _age_s(report: CallReport) -> float | None:
    now = time.time()  # noqa: TID251 - shown to people
    return None if report.oldest_ms is None else max(now - report.oldest_ms / 1000, 0.0)


def capacity_of(
    tasks: Mapping[str, TaskReport],
    in_front: Mapping[int, Collection[str]],
    positions: Offsets,
    now_ms: int,
) -> dict[TopicPartition, int]:
    """Return how many more records of each partition the tasks can accept now.

    A shuffle spreads records evenly over the tasks after it. Therefore the partitions before it share the capacity of these tasks, and
    each task counts with the smallest capacity among them.

    Args:
        in_front: Per sub-topology number, the topics that reach it through Spark's shuffle.
        now_ms: The time by the application's clock, ms since the epoch.
    """
    capacities: dict[int, list[int]] = {}
    ranges: dict[TopicPartition, list[CallReport]] = {}
    for task, report in tasks.items():
        if report.calls is not None:
            capacities.setdefault(TaskId.parse(task).subtopology, []).append(_room(report.calls, now_ms))
            for partition in report.offsets:
                ranges.setdefault(partition, []).append(report.calls)
    capacity = {partition: _capacity_of_ranges(reports, now_ms) for partition, reports in ranges.items()}
    for number in in_front.keys() & capacities.keys():
        sharing = [TopicPartition(t, p) for t in in_front[number] for p in positions.get(t, ())]
        share = min(capacities[number]) * len(capacities[number]) // max(len(sharing), 1)
        capacity.update({partition: min(capacity.get(partition, share), share) for partition in sharing})
    return capacity


def _room(report: CallReport, now_ms: int) -> int:
    return 0 if report.paced_until_ms is not None and now_ms < report.paced_until_ms else report.room


def _capacity_of_ranges(reports: Sequence[CallReport], now_ms: int) -> int:
    """Return how many more records of a partition its key ranges can accept; an undivided partition has one range.

    Records are spread evenly over the ranges. A range whose calls hang has no capacity and parks its share of the records, so that the
    other ranges continue. When it has parked too many, all ranges wait.
    """
    if len(reports) > 1 and any(report.parked >= _MOST_PARKED for report in reports):
        return 0
    return sum(_room(report, now_ms) for report in reports)


def left_of(reports: Iterable[CallReport], until_ms: int) -> Left:
    """Return the number of in-flight records of all tasks, and how many of them are awaited.

    Args:
        until_ms: Records that are due after this time are not awaited; ms since the epoch by the application's clock.
    """
    unfinished = awaited = 0
    for report in reports:
        unfinished += report.unfinished
        if report.with_async_worker or (report.look_at_ms is not None and report.look_at_ms <= until_ms):
            awaited += report.unfinished
    return Left(unfinished, awaited)


def call_metrics(
    reports: Iterable[CallReport], totals: Mapping[str, int], hottest: Iterable[HotKeyStatuses]
) -> dict[str, int]:
    """Return the metrics over all tasks; empty without asynchronous operators."""
    all_reports = list(reports)
    if not all_reports:
        return {}
    reasons = Counter[str]()
    for report in all_reports:
        reasons.update(_reasons(report))
    hot = [key for keys in hottest if (key := keys.now()) is not None]
    ceilings = [key.ceiling_per_s for key in hot if key.ceiling_per_s is not None]
    return {
        "calls_settled": totals["settled"],
        "calls_retried": totals["retries"],
        "calls_dead_lettered": totals["call_dead_letters"],
        "calls_ignored": totals["ignored"],
        "calls_lost": totals["lost"],
        "calls_running": sum(report.running for report in all_reports),
        "calls_in_async_worker": sum(report.with_async_worker for report in all_reports),
        "calls_waiting": sum(report.waiting for report in all_reports),
        **{f"calls_waiting: {reason}": reasons[reason] for reason in _reasons(CallReport())},
        "calls_parked": sum(report.parked for report in all_reports),
        "calls_held": sum(report.held for report in all_reports),
        "calls_most_per_key": max(report.most_per_key for report in all_reports),
        "calls_oldest_ms": max(round((_age_s(report) or 0.0) * 1_000) for report in all_reports),
        "calls_loop_lag_ms": max(report.loop_lag_ms for report in all_reports),
        **({"calls_ceiling_per_s": round(min(ceilings))} if ceilings else {}),
    }
