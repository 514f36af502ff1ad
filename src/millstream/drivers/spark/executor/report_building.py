"""Builds the report of a task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from millstream.core.asynchronous.committable_offset import Progress
from millstream.core.asynchronous.operator_state import together
from millstream.core.engine.step_outcome import Outcome
from millstream.core.model.durations import earliest
from millstream.core.model.ids import TaskId, TopicPartition
from millstream.core.runtime.task_report import (
    BufferedQueue,
    CallReport,
    HotKeySample,
    StateReport,
    TaskReport,
)
from millstream.drivers.spark.executor.async_calls import TaskCalls
from millstream.drivers.spark.executor.measures import StepFacts, measured

_HISTORY: Final = 33
"""Number of versions in a report. A query's copy in memory may lag by as many versions as are parked; other copies by one or two."""


def call_report(outcome: Outcome, calls: TaskCalls | None, now_ms: int) -> CallReport | None:
    """Return the combined report of a task's asynchronous operators, or None without such operators."""
    if not outcome.calls:
        return None
    work = {} if calls is None else calls.work
    return CallReport(
        **vars(together(outcome.calls.values())),
        look_at_ms=earliest(None if calls is None else calls.wake_at_ms(now_ms), outcome.attempts_due_ms),
        paced_until_ms=None if calls is None else calls.paced_until_ms(now_ms),
        running=sum(each.running for each in work.values()),
        queued=tuple(sum(counts) for counts in zip(*(each.queued for each in work.values()))),
        longest_ms=max((each.longest_ms for each in work.values()), default=0),
        loop_lag_ms=0 if calls is None else calls.loop_lag_ms,
        lost=0 if calls is None else calls.lost,
        hottest=() if calls is None else tuple(_hottest(outcome, calls)),
    )


def _hottest(outcome: Outcome, calls: TaskCalls) -> Iterator[HotKeySample]:
    for operator, figures in outcome.calls.items():
        if figures.hottest is not None:
            work = calls.work.get(operator)
            call_ms = 0.0 if work is None else work.call_ms
            yield HotKeySample(operator, *figures.hottest, call_ms, calls.per_call(operator))


def report_of(
    step: StepFacts, *, calls: CallReport | None = None, undelivered: Iterable[str] = (), **more: Any
) -> TaskReport:
    """Return the report of a task's step.

    Args:
        calls: Report of the asynchronous operators. None without such operators.
        undelivered: Lines about restores that did not reach the application.
    """
    outcome, look_at_ms = step.outcome, None if calls is None else calls.look_at_ms
    return TaskReport(
        step.task,
        outcome.committable,
        earliest(outcome.wake_at_ms, look_at_ms),
        outcome.stream_time_ms,
        notices=(
            *undelivered,
            *step.restored_global.notices,
            *_dropped_notices(step.removed),
            *outcome.notices,
        ),
        waiting=outcome.waiting,
        buffered=tuple(
            BufferedQueue(*queue.partition, queue.lane, *records)
            for queue, records in sorted(outcome.buffered.items())
        ),
        given_up=tuple(outcome.given_up),
        idle_until_ms=earliest(outcome.idle_until_ms, look_at_ms),
        calls=calls,
        threads=outcome.threads,
        commit_requested=outcome.commit_requested,
        shuffled=outcome.shuffled,
        measured=tuple(measured(step)),
        state=_state(step),
        taps=outcome.taps,
        **more,
    )


def _state(step: StepFacts) -> StateReport | None:
    if step.manifest is None:
        return None
    return StateReport(step.manifest.version, step.manifest.history[-_HISTORY:], step.stores)


def report_of_gone(
    task: TaskId, removed: Mapping[str, int], progress: Mapping[TopicPartition, Progress]
) -> TaskReport:
    """Return the report of a task whose state is removed.

    Args:
        progress: Progress of each partition. The removed records no longer hold back any offset.
    """
    offsets = {partition: done.position for partition, done in progress.items()}
    numbers = measured(StepFacts(str(task), removed=removed))
    notices = tuple(_dropped_notices(removed))
    return TaskReport(str(task), offsets, notices=notices, gone=True, measured=tuple(numbers))


def _dropped_notices(removed: Mapping[str, int]) -> list[str]:
    return [
        f"{count:,} unfinished records of an operator that the topology no longer has were dropped with {store!r} "
        "(on_removed_operator='drop')"
        for store, count in removed.items()
    ]
