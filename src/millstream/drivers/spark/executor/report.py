"""Reports: what a task says about a batch, on its way to the application."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, NamedTuple, cast

from millstream.core.asynchronous.book import CallCounts, together
from millstream.core.asynchronous.frontier import Progress
from millstream.core.engine.outcome import Outcome
from millstream.core.engine.records.readiness import Reason, Waiting
from millstream.core.engine.threads import ThreadFigures
from millstream.core.metrics.metric import Number
from millstream.core.model.durations import earliest
from millstream.core.model.ids import TaskId, TopicPartition
from millstream.core.state.segments.log import Manifest
from millstream.drivers.spark.executor.calls import TaskCalls
from millstream.drivers.spark.executor.measures import StepFacts, measured

_HISTORY: Final = 8
"""Versions that a report names; a local copy is one or two behind the newest."""


class Hottest(NamedTuple):
    """Which key came most often in a step, of a sample of the records that came to an asynchronous operator.

    Attributes:
        operator: The operator.
        key: The key, in short.
        records: Records of the sample that have it.
        of: Records of the sample.
        call_ms: How long a call took lately, on average.
        per_call: How many records one call takes at most.
    """

    operator: str
    key: str
    records: int
    of: int
    call_ms: float
    per_call: int


@dataclass(frozen=True)
class CallReport(CallCounts):
    """What there is to see of the asynchronous operators of a task, all together.

    Attributes:
        look_at_ms: When to look for what has come of calls, or the next attempt is due; None if nothing is unfinished.
        running: Calls that run in the station.
        queued: Calls in the station that have not begun, by what they wait for, as ``Queued`` has it.
        longest_ms: For how long the oldest call that runs has been running.
        loop_lag_ms: By how much the event loop of the station was late lately.
        lost: Calls that the station did not have any more.
        hottest: Which key came most often, for each operator that calls keys in their order.
    """

    look_at_ms: int | None = None
    running: int = 0
    queued: Sequence[int] = ()
    longest_ms: int = 0
    loop_lag_ms: int = 0
    lost: int = 0
    hottest: Sequence[Hottest] = ()


@dataclass(frozen=True)
class StateReport:
    """Which state of a task's stores a micro-batch commits, for those who read them.

    Attributes:
        version: Its number in the task's log.
        history: The tokens of the latest versions, the newest last.
        memory: What the stores remember besides their content, by name.
    """

    version: int
    history: tuple[str, ...]
    memory: Mapping[str, Mapping[str, Any]]

    @property
    def known(self) -> Manifest:
        """The version and its history, without segments."""
        return Manifest(self.version, self.history)


@dataclass(frozen=True)
class Report:
    """What one task did in one micro-batch.

    Attributes:
        task: The task's id.
        offsets: Topic to partition to the offset before which everything has been processed.
        wake_at_ms: When wall-clock punctuation is due next, None if never.
        stream_time_ms: Stream time, -1 if no record has been seen.
        first_record_ms: When a batch with records was planned; None without records.
        notices: Lines for the log.
        waiting: Topic, partition, reason and since when (ms) the task waits for an input; None if it does not.
        buffered: Topic, partition, lane, records, bytes and largest timestamp (ms) of each queue that holds records.
        given_up: Topic and partition of the empty inputs that are no longer waited for.
        idle_until_ms: When records that are held may go on, because the wait for an empty input ends or calls may have come to
            something; None if there are none.
        calls: What there is to see of asynchronous operators, None if the task has none.
        gone: Whether the task has no state any more, and this is the last that is heard of it.
        threads: What the threads of the task did, None if it has one.
        commit_requested: Whether a processor asked for a commit.
        shuffled: Repartition to partition to the lowest offset of a record that is unfinished or held, of what came through the shuffle.
        times: Topic to partition to the partition time, ms since the epoch, for readers that extract timestamps.
        executor: Host and executor on which the task ran, empty if it keeps nothing there.
        measured: What was counted; see ``millstream.drivers.spark.executor.measures``.
        state: Which state of its stores the task commits; None if it has none.
    """

    task: str
    offsets: dict[str, dict[str, int]] = field(default_factory=dict)
    wake_at_ms: int | None = None
    stream_time_ms: int = -1
    first_record_ms: int | None = None
    notices: list[str] = field(default_factory=list)
    waiting: tuple[str, int, str, int] | None = None
    buffered: list[tuple[str, int, str, int, int, int]] = field(default_factory=list)
    given_up: list[tuple[str, int]] = field(default_factory=list)
    idle_until_ms: int | None = None
    calls: CallReport | None = None
    gone: bool = False
    threads: ThreadFigures | None = None
    commit_requested: bool = False
    times: dict[str, dict[str, int]] = field(default_factory=dict)
    shuffled: dict[str, dict[str, int]] = field(default_factory=dict)
    executor: str = ""
    measured: list[Number] = field(default_factory=list)
    state: StateReport | None = None

    def wakes_at(self, *, rests: bool) -> int | None:
        """Return when the task wants to be woken, ms since the epoch; if it rests, only for its unfinished records."""
        if not rests:
            return self.wake_at_ms
        return None if self.calls is None else self.calls.look_at_ms

    def waking_at(self, now_ms: int) -> Report:
        """Return the same of a task that wants to be woken at a time, if it waits for one at all."""
        calls = self.calls
        if calls is not None and calls.look_at_ms is not None:
            calls = replace(calls, look_at_ms=now_ms)
        return replace(self, wake_at_ms=None if self.wake_at_ms is None else now_ms, calls=calls)

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
            hottest = tuple(Hottest(*each) for each in told["calls"].pop("hottest"))
            told["calls"] = CallReport(**told["calls"], hottest=hottest)
        told["measured"] = [(name, tuple(labels), value) for name, labels, value in told["measured"]]
        if told["state"] is not None:
            state = told["state"]
            told["state"] = StateReport(state["version"], tuple(state["history"]), state["memory"])
        if told["threads"] is not None:
            told["threads"] = ThreadFigures(tuple(told["threads"]["executed"]), told["threads"]["ended"])
        return Report(**told)


def call_report(outcome: Outcome, calls: TaskCalls | None, now_ms: int) -> CallReport | None:
    """Make the report of the asynchronous operators of a task, all together; None if it has none.

    Args:
        outcome: What became of the step.
        calls: What the station has of them, None if no operator of the task calls.
        now_ms: The time of the micro-batch, ms since the epoch.
    """
    if not outcome.calls:
        return None
    work = {} if calls is None else calls.work
    return CallReport(
        **vars(together(outcome.calls.values())),
        look_at_ms=earliest(None if calls is None else calls.wake_at_ms(now_ms), outcome.attempts_due_ms),
        running=sum(one.running for one in work.values()),
        queued=[sum(reason) for reason in zip(*(one.queued for one in work.values()))],
        longest_ms=max((one.longest_ms for one in work.values()), default=0),
        loop_lag_ms=0 if calls is None else calls.loop_lag_ms,
        lost=0 if calls is None else calls.lost,
        hottest=() if calls is None else tuple(_hottest(outcome, calls)),
    )


def _hottest(outcome: Outcome, calls: TaskCalls) -> Iterator[Hottest]:
    for operator, figures in outcome.calls.items():
        if figures.hottest is not None:
            work = calls.work.get(operator)
            call_ms = 0.0 if work is None else work.call_ms
            yield Hottest(operator, *figures.hottest, call_ms, calls.per_call(operator))


def report_of(
    step: StepFacts, *, calls: CallReport | None = None, unheard: Iterable[str] = (), **more: Any
) -> Report:
    """Make the report of a task's step, of its calls, and of what was done before it.

    Args:
        step: What is measured of it.
        calls: What there is to see of its asynchronous operators.
        unheard: Lines about restores that the application did not hear otherwise.
        more: Further attributes of the report.
    """
    outcome, look_at_ms = step.outcome, None if calls is None else calls.look_at_ms
    return Report(
        step.task,
        _by_topic(outcome.committable),
        earliest(outcome.wake_at_ms, look_at_ms),
        outcome.stream_time_ms,
        notices=[*unheard, *step.filled.notices, *_told(step.removed), *outcome.notices],
        waiting=_waits(outcome.waiting),
        buffered=[(*queue.partition, queue.lane, *held) for queue, held in sorted(outcome.buffered.items())],
        given_up=[(at.topic, at.partition) for at in outcome.given_up],
        idle_until_ms=earliest(outcome.idle_until_ms, look_at_ms),
        calls=calls,
        threads=outcome.threads,
        commit_requested=outcome.commit_requested,
        shuffled=_by_topic(outcome.shuffled),
        measured=measured(step),
        state=_state(step),
        **more,
    )


def _state(step: StepFacts) -> StateReport | None:
    if step.manifest is None:
        return None
    return StateReport(step.manifest.version, step.manifest.history[-_HISTORY:], step.stores)


def report_of_gone(
    task: TaskId, removed: Mapping[str, int], progress: Mapping[TopicPartition, Progress]
) -> Report:
    """Make the report of a task that has no state any more.

    Args:
        task: The task.
        removed: How many unfinished records went with it, by store.
        progress: What had been done of each partition: what was unfinished holds no offset back now.
    """
    offsets = _by_topic({at: done.position for at, done in progress.items()})
    numbers = measured(StepFacts(str(task), removed=removed))
    return Report(str(task), offsets, notices=_told(removed), gone=True, measured=numbers)


def _by_topic(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for at, offset in offsets.items():
        found.setdefault(at.topic, {})[str(at.partition)] = offset
    return found


def _waits(waiting: Waiting | None) -> tuple[str, int, str, int] | None:
    return None if waiting is None else (*waiting.partition, waiting.reason, waiting.since_ms)


def _told(removed: Mapping[str, int]) -> list[str]:
    return [
        f"{count:,} unfinished records of an operator that the topology no longer has were dropped with {store!r} "
        "(on_removed_operator='drop')"
        for store, count in removed.items()
    ]


def waiting_of(report: Report) -> Waiting | None:
    """Return why the task waits, None if it does not."""
    if report.waiting is None:
        return None
    topic, partition, reason, since_ms = report.waiting
    return Waiting(TopicPartition(topic, partition), cast("Reason", reason), since_ms)


def offsets_of(reports: Iterable[Report]) -> dict[TopicPartition, int]:
    """Return the offsets before which everything has been processed, from the reports of a batch.

    A task that reads a partition in pieces reports each of them, and the farthest counts; of several tasks that have key ranges of a
    partition, the one that is least far.

    Example:
        >>> offsets_of([Report("0_0", {"t": {"1": 5}}), Report("0_0", {"t": {"1": 9}})])
        {TopicPartition(topic='t', partition=1): 9}
        >>> offsets_of([Report("0_0", {"t": {"1": 5}}), Report("0_1", {"t": {"1": 9}})])
        {TopicPartition(topic='t', partition=1): 5}
    """
    by_task: dict[TopicPartition, dict[str, int]] = {}
    for report in reports:
        for topic, partitions in report.offsets.items():
            for partition, offset in partitions.items():
                tasks = by_task.setdefault(TopicPartition(topic, int(partition)), {})
                tasks[report.task] = max(offset, tasks.get(report.task, 0))
    return {at: min(tasks.values()) for at, tasks in by_task.items()}
