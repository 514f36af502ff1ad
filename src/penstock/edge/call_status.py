"""What there is to see of asynchronous operators, from the reports of the tasks that have some."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.drivers.spark.worker.report import CallReport


@dataclass(frozen=True)
class CallStatus:
    """What the asynchronous operators of a task are doing.

    Attributes:
        running: Calls that run.
        with_station: Records that were handed to the station: their calls run or will.
        waiting: Records that wait for a retry or a delay.
        parked: Records that could be called and have not been handed over.
        held: Records whose calls have ended, and that wait for those in front of them.
        most_per_key: Unfinished records of the key that has most.
        oldest_s: Age of the oldest unfinished record, seconds; None if there is none.
        longest_s: For how long the oldest call that runs has been running, seconds.
        loop_lag_ms: By how much the event loop of the station was late lately.
    """

    running: int
    with_station: int
    waiting: int
    parked: int
    held: int
    most_per_key: int
    oldest_s: float | None
    longest_s: float
    loop_lag_ms: int


def call_status(report: CallReport) -> CallStatus:
    """Give the status of a task's asynchronous operators."""
    now = time.time()  # noqa: TID251 - shown to people
    return CallStatus(
        report.running,
        report.with_station,
        report.waiting,
        report.parked,
        report.held,
        report.most_per_key,
        None if report.oldest_ms is None else max(now - report.oldest_ms / 1000, 0.0),
        report.longest_ms / 1000,
        report.loop_lag_ms,
    )


def call_counts(report: CallReport) -> dict[str, int]:
    """Give what is added up over micro-batches."""
    return {
        "settled": report.settled,
        "retries": report.retries,
        "call_dead_letters": report.dead_letters,
        "ignored": report.ignored,
        "lost": report.lost,
    }


def call_metrics(reports: Iterable[CallReport], totals: Mapping[str, int]) -> dict[str, int]:
    """Give the metrics of all tasks together; nothing if no task has asynchronous operators."""
    told = list(reports)
    if not told:
        return {}
    return {
        "calls_settled": totals["settled"],
        "calls_retried": totals["retries"],
        "calls_dead_lettered": totals["call_dead_letters"],
        "calls_ignored": totals["ignored"],
        "calls_lost": totals["lost"],
        "calls_running": sum(one.running for one in told),
        "calls_with_station": sum(one.with_station for one in told),
        "calls_waiting": sum(one.waiting for one in told),
        "calls_parked": sum(one.parked for one in told),
        "calls_held": sum(one.held for one in told),
        "calls_most_per_key": max(one.most_per_key for one in told),
        "calls_loop_lag_ms": max(one.loop_lag_ms for one in told),
    }
