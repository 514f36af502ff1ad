"""Task reports: what a task reports to the application about a micro-batch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from millstream.core.asynchronous.operator_state import CallCounts
from millstream.core.engine.records.readiness import Waiting
from millstream.core.engine.threaded_nodes import ThreadFigures
from millstream.core.metrics.metric import Number
from millstream.core.model.ids import TopicPartition
from millstream.core.model.positions import flat, nested, positions_from_json, positions_to_json
from millstream.core.state.segments.log import Manifest
from millstream.core.taps.samples import TapReport


class HotKeySample(NamedTuple):
    """The most frequent key in a sample of the records that an asynchronous operator received in a step.

    Attributes:
        records: Records of the sample with that key.
    """

    operator: str
    key: str
    records: int
    of: int
    call_ms: float
    per_call: int


@dataclass(frozen=True)
class CallReport(CallCounts):
    """The asynchronous operators of a task, combined.

    Attributes:
        look_at_ms: When to look for results, or when the next attempt is due; None if nothing is unfinished.
        paced_until_ms: Until when no records are read for the task, because its async worker has enough calls; None if it has not.
        queued: Calls in the async worker that have not started, by what they wait for, as in ``Queued``.
        longest_ms: How long the oldest running call has been running.
        loop_lag_ms: Recent delay of the event loop of the async worker.
        hottest: The most frequent key of each operator that calls in key order.
    """

    look_at_ms: int | None = None
    paced_until_ms: int | None = None
    running: int = 0
    queued: Sequence[int] = ()
    longest_ms: int = 0
    loop_lag_ms: int = 0
    lost: int = 0
    hottest: Sequence[HotKeySample] = ()


@dataclass(frozen=True)
class StateReport:
    """The state of a task's stores as committed by a micro-batch, for queries of stores.

    Attributes:
        history: Tokens of the latest versions, newest last.
        memory: Data that the stores persist besides their content, by store.
    """

    version: int
    history: tuple[str, ...]
    memory: Mapping[str, Mapping[str, Any]]

    @property
    def history_manifest(self) -> Manifest:
        """The version and its history, without segments."""
        return Manifest(self.version, self.history)


class BufferedQueue(NamedTuple):
    """A queue of a task that contains records. ``size`` is in bytes, ``newest_ms`` is their largest timestamp."""

    topic: str
    partition: int
    lane: str
    records: int
    size: int
    newest_ms: int


@dataclass(frozen=True)
class TaskReport:
    """The work of one task in one micro-batch.

    Attributes:
        offsets: The offset before which everything has been processed, by partition.
        wake_at_ms: When wall-clock punctuation is due next; None if never.
        first_record_ms: When a micro-batch with records was planned; None without records.
        waiting: Why the task waits for an input; None if it does not wait.
        idle_until_ms: When buffered records may be processed, because the wait for an empty input ends or calls may have ended; None
            if there are no such records.
        calls: The asynchronous operators; None if the task has none.
        gone: Whether the state of the task was removed, which makes this its last report.
        threads: The work of its threads; None if it has one thread.
        shuffled: The lowest offset of an unfinished or buffered record, by partition of a repartition through the shuffle.
        times: The partition times, ms since the epoch, for readers that extract timestamps.
        executor: Host and executor on which the task ran; empty if it keeps no local copies.
        state: The committed state of its stores; None if it has none.
        global_offsets: Offsets up to which the host's copies of global stores are filled, by partition of their topics.
    """

    task: str
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    wake_at_ms: int | None = None
    stream_time_ms: int = -1
    first_record_ms: int | None = None
    notices: tuple[str, ...] = ()
    waiting: Waiting | None = None
    buffered: tuple[BufferedQueue, ...] = ()
    given_up: tuple[TopicPartition, ...] = ()
    idle_until_ms: int | None = None
    calls: CallReport | None = None
    gone: bool = False
    threads: ThreadFigures | None = None
    commit_requested: bool = False
    times: Mapping[TopicPartition, int] = field(default_factory=dict)
    shuffled: Mapping[TopicPartition, int] = field(default_factory=dict)
    executor: str = ""
    measured: tuple[Number, ...] = ()
    state: StateReport | None = None
    taps: tuple[TapReport, ...] = ()
    global_offsets: Mapping[TopicPartition, int] = field(default_factory=dict)

    def wakes_at(self, *, rests: bool) -> int | None:
        """Return when the task must be woken, ms since the epoch. A resting task is woken only for its unfinished records."""
        if not rests:
            return self.wake_at_ms
        return None if self.calls is None else self.calls.look_at_ms

    def waking_at(self, now_ms: int) -> TaskReport:
        """Return a report that requests a wake-up at a time, if this report requests any."""
        calls = self.calls
        if calls is not None and calls.look_at_ms is not None:
            calls = replace(calls, look_at_ms=now_ms)
        return replace(self, wake_at_ms=None if self.wake_at_ms is None else now_ms, calls=calls)

    def encode(self) -> bytes:
        data = asdict(self)
        for name in _POSITIONS:
            data[name] = positions_to_json(nested(getattr(self, name)))
        return json.dumps(data).encode()

    @staticmethod
    def decode(message: bytes) -> TaskReport:
        data: dict[str, Any] = json.loads(message)
        for name in _POSITIONS:
            data[name] = flat(positions_from_json(data[name]))
        data["notices"] = tuple(data["notices"])
        data["buffered"] = tuple(BufferedQueue(*queue) for queue in data["buffered"])
        data["given_up"] = tuple(TopicPartition(*partition) for partition in data["given_up"])
        data["measured"] = tuple((name, tuple(labels), value) for name, labels, value in data["measured"])
        if (waiting := data["waiting"]) is not None:
            data["waiting"] = Waiting(**{**waiting, "partition": TopicPartition(*waiting["partition"])})
        if (calls := data["calls"]) is not None:
            hottest = tuple(HotKeySample(*key) for key in calls["hottest"])
            data["calls"] = CallReport(**{**calls, "queued": tuple(calls["queued"]), "hottest": hottest})
        if (state := data["state"]) is not None:
            data["state"] = StateReport(**{**state, "history": tuple(state["history"])})
        data["taps"] = tuple(TapReport.from_json(tap) for tap in data["taps"])
        if (threads := data["threads"]) is not None:
            data["threads"] = ThreadFigures(tuple(threads["executed"]), threads["ended"])
        return TaskReport(**data)


_POSITIONS = ("offsets", "times", "shuffled", "global_offsets")


@dataclass(frozen=True)
class CommittedBatch:
    """The sink's message to the application before Spark commits a micro-batch.

    Attributes:
        repeated: Whether the results that were sent are from a different attempt than the committed state.
    """

    number: int
    encoded: Sequence[bytes]
    repeated: bool = False

    def reports(self) -> list[TaskReport]:
        return [TaskReport.decode(message) for message in self.encoded]


def offsets_of(reports: Iterable[TaskReport]) -> dict[TopicPartition, int]:
    """Return the offsets before which everything has been processed, from the reports of a micro-batch.

    If several reads report on a partition for one task, the largest offset counts. If several tasks have key ranges of a partition, the
    smallest of their offsets counts.

    Example:
        >>> at = TopicPartition("t", 1)
        >>> offsets_of([TaskReport("0_0", {at: 5}), TaskReport("0_0", {at: 9})])
        {TopicPartition(topic='t', partition=1): 9}
        >>> offsets_of([TaskReport("0_0", {at: 5}), TaskReport("0_1", {at: 9})])
        {TopicPartition(topic='t', partition=1): 5}
    """
    by_task: dict[TopicPartition, dict[str, int]] = {}
    for report in reports:
        for partition, offset in report.offsets.items():
            tasks = by_task.setdefault(partition, {})
            tasks[report.task] = max(offset, tasks.get(report.task, 0))
    return {partition: min(tasks.values()) for partition, tasks in by_task.items()}
