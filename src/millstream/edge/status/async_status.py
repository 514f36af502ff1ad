"""The status and the metrics of asynchronous operators, from the reports of the tasks that have some."""

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
    """The key that has most of the records lately.

    Attributes:
        key: The key, in short.
        share: Which part of the records it has, from 0 to 1.
        call_ms: How long a call took lately, on average.
        ceiling_per_s: How many records per second, of all keys together, its share allows; None if calls take no time.
    """

    key: str
    share: float
    call_ms: float
    ceiling_per_s: float | None


class HotKeyStatuses:
    """Sums up the samples that a task reports of an operator. Guarded by the lock of its owner.

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
        """Add the sample of a step."""
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
        running: Calls that run.
        with_async_worker: Records that the async worker has: their calls run or will.
        waiting: Records that wait for a retry or a delay.
        reasons: Waiting records by reason: a ``retry`` or a ``delay``; in the async worker, earlier records of their ``line``, a ``place`` among
            the running calls, the ``rate`` limit, a circuit ``breaker``, or their due ``time``, which is near.
        parked: Records that could be called and were not sent to the async worker.
        held: Records whose calls have ended, and that wait for earlier ones.
        most_per_key: Unfinished records of the key with the most.
        oldest_s: Age of the oldest unfinished record, seconds; None if there is none.
        longest_s: For how long the oldest call that runs has been running, seconds.
        loop_lag_ms: By how much the event loop of the async worker was late lately.
        hottest: Per operator that calls keys in their order, the key that has most of the records, and what it allows.
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
    tasks: Mapping[str, TaskReport], in_front: Mapping[int, Collection[str]], positions: Offsets
) -> dict[TopicPartition, int]:
    """Return how many more records of each partition tasks can take.

    Records of a shuffle are spread evenly over the tasks behind it. So the partitions before it share the capacity of all these
    tasks, each counted with the smallest one.

    Args:
        in_front: Per sub-topology number, the topics that reach it through Spark's shuffle.
        positions: How far topics have been read.
    """
    capacities: dict[int, list[int]] = {}
    ranges: dict[TopicPartition, list[CallReport]] = {}
    for task, report in tasks.items():
        if report.calls is not None:
            capacities.setdefault(TaskId.parse(task).subtopology, []).append(report.calls.room)
            for partition in report.offsets:
                ranges.setdefault(partition, []).append(report.calls)
    capacity = {partition: _capacity_of_ranges(reports) for partition, reports in ranges.items()}
    for number in in_front.keys() & capacities.keys():
        sharing = [TopicPartition(t, p) for t in in_front[number] for p in positions.get(t, ())]
        share = min(capacities[number]) * len(capacities[number]) // max(len(sharing), 1)
        capacity.update({partition: min(capacity.get(partition, share), share) for partition in sharing})
    return capacity


def _capacity_of_ranges(reports: Sequence[CallReport]) -> int:
    """Return how many more records of a partition its key ranges can take; an undivided partition has one.

    Records are spread evenly over the ranges. A range without capacity, because its calls hang, stores its share, so that the
    others continue; when it has stored too many, all of them wait.
    """
    if len(reports) > 1 and any(report.parked >= _MOST_PARKED for report in reports):
        return 0
    return sum(report.room for report in reports)


def left_of(reports: Iterable[CallReport], until_ms: int) -> Left:
    """Return the unfinished records of all tasks.

    Args:
        until_ms: Records that are due later are not awaited; ms since the epoch, by the application's clock.
    """
    unfinished = awaited = 0
    for report in reports:
        unfinished += report.unfinished
        if report.with_async_worker or (report.look_at_ms is not None and report.look_at_ms <= until_ms):
            awaited += report.unfinished
    return Left(unfinished, awaited)


def call_counts(report: CallReport) -> dict[str, int]:
    """Return the counts that are summed over micro-batches."""
    return {
        "settled": report.settled,
        "retries": report.retries,
        "call_dead_letters": report.dead_letters,
        "ignored": report.ignored,
        "lost": report.lost,
    }


def call_metrics(
    reports: Iterable[CallReport], totals: Mapping[str, int], hottest: Iterable[HotKeyStatuses]
) -> dict[str, int]:
    """Return the metrics of all tasks together; empty without asynchronous operators."""
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
