"""Helpers of unit tests: rows of text as records, and a host that runs one task step by step."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import millstream as ms
from millstream.core.engine.step_outcome import Outcome, Snapshot
from millstream.core.engine.task import Task
from millstream.core.metrics.metric import Numbers, without_labels
from millstream.core.model.ids import TaskId, TopicPartition
from millstream.core.model.record import Records
from millstream.core.ports import Threads, Work
from millstream.core.runtime.task_report import TaskReport
from millstream.core.state.memory import MemoryStores
from millstream.core.state.opening import open_store
from millstream.drivers.spark.executor.measures import TASK_METRICS

Row = tuple[Any, ...]
"""Key, value, timestamp, and optionally headers; text is encoded as UTF-8, bytes are unchanged."""


def raw(data: str | bytes | None) -> bytes | None:
    return data.encode() if isinstance(data, str) else data


def records(rows: Iterable[Row], first_offset: int = 0) -> Records:
    """Return rows as the columns that a driver would feed."""
    listed = list(rows)
    headers = [tuple(row[3]) if len(row) > 3 else () for row in listed]
    return Records(
        [raw(row[0]) for row in listed],
        [raw(row[1]) for row in listed],
        [row[2] for row in listed],
        list(range(first_offset, first_offset + len(listed))),
        headers if any(headers) else None,
    )


def sent(outcome: Outcome, topic: str = "out") -> list[tuple[str | None, str | None, int]]:
    """Return the records that a step sent to a topic, as text."""
    rows: list[tuple[str | None, str | None, int]] = []
    for name, columns in outcome.sends:
        if name == topic:
            rows.extend(
                (None if k is None else k.decode(), None if v is None else v.decode(), t)
                for k, v, t in zip(columns.keys, columns.values, columns.timestamps, strict=True)
            )
    return rows


def values(outcome: Outcome, topic: str = "out") -> list[str | None]:
    return [value for _, value, _ in sent(outcome, topic)]


def columnar(topology: ms.Topology) -> list[str]:
    """Return the sources whose records are processed in columns."""
    tasks = [
        Task(sub, TaskId(sub.id, 0), application_id="app", stores=MemoryStores())
        for sub in topology.plan("app").subtopologies
        if not sub.global_stores
    ]
    return [source for task in tasks for source in task._processing.columnar]


class ReadOnlyContext:
    """The context of a store that tests read between steps."""

    def __init__(self, stream_time: int) -> None:
        self.stream_time = stream_time

    def drop(self, reason: str) -> None:
        raise AssertionError(f"reading a store must not drop records, but did: {reason}")


class ShuffledThreads:
    """Simulated threads: one thread switches between pieces of work after each record, in an order that a seed decides."""

    def __init__(self, count: int, seed: int = 0) -> None:
        self.count = count
        self._random = random.Random(seed)

    def run(self, work: Sequence[Work]) -> tuple[BaseException | None, ...]:
        ended: list[BaseException | None] = [None] * len(work)
        left = list(range(len(work)))
        while left:
            number = self._random.choice(left)
            try:
                more = work[number]()
            except BaseException as error:
                ended[number], more = error, False
            if not more:
                left.remove(number)
        return tuple(ended)


class Meeting:
    """A function that returns once ``count`` threads have called it at the same time. Each process that unpickles it has its own."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._barrier = threading.Barrier(count, timeout=60)
        self._met = threading.Event()

    def __call__(self, value: str) -> str:
        if not self._met.is_set():
            self._barrier.wait()
            self._met.set()
        return f"{value}!"

    def __reduce__(self) -> tuple[type[Meeting], tuple[int]]:
        return Meeting, (self.count,)


class Host:
    """Runs one task of a topology: feeds it, applies its changes to the stores, and can restart it."""

    def __init__(
        self,
        topology: ms.Topology,
        *,
        sub: int = 0,
        policies: ms.ErrorPolicies | None = None,
        partitions: Mapping[str, int] | None = None,
        now_ms: int = 0,
        max_task_idle_ms: int = 0,
        cache_bytes: int = 0,
        threads: Threads | None = None,
        repeats_sends: bool = True,
        taps: Collection[str] = (),
    ) -> None:
        self.taps = taps
        self.repeats_sends = repeats_sends
        self.cache_bytes = cache_bytes
        self.threads = threads
        self.max_task_idle_ms = max_task_idle_ms
        self.sub = topology.plan("app").subtopologies[sub]
        self.policies = policies
        self.partitions = partitions or {}
        self.committed = MemoryStores()
        self.offsets: dict[TopicPartition, int] = {}
        self.now_ms = now_ms
        self.task = self._new_task(None)

    def feed(self, topic: str, rows: Sequence[Row], *, partition: int = 0, lane: str = "") -> None:
        partition_id = TopicPartition(topic, partition)
        start = self.offsets.get(partition_id, 0)
        self.offsets[partition_id] = start + len(rows)
        self.task.feed(partition_id, records(rows, start), self.offsets[partition_id], lane=lane)

    def step(self, now_ms: int | None = None, budget: int | None = None) -> Outcome:
        self.now_ms = self.now_ms if now_ms is None else now_ms
        outcome = self.task.step(self.now_ms, budget)
        self.committed.apply(outcome.changes, outcome.dropped_slices)
        return outcome

    def run(self, topic: str, *rows: Row) -> Outcome:
        """Feed and take one step."""
        self.feed(topic, rows)
        return self.step()

    def restart(self, crossing: Callable[[Snapshot], Snapshot] = lambda snapshot: snapshot) -> None:
        """Continue in a new task, which knows only the stores and the snapshot."""
        snapshot = crossing(self.task.snapshot())
        self.task.close()
        self.task = self._new_task(snapshot)

    def store(self, name: str) -> Any:
        """Return a store as the next task would see it."""
        snapshot = self.task.snapshot()
        memory = snapshot.stores.get(name, {})
        return open_store(
            self.sub.stores[name], self.committed, ReadOnlyContext(snapshot.stream_time_ms), memory
        )

    def _new_task(self, snapshot: Snapshot | None) -> Task:
        task = Task(
            self.sub,
            TaskId(self.sub.id, 0),
            application_id="app",
            stores=self.committed,
            policies=self.policies,
            partitions_of=lambda topic: self.partitions.get(topic, 0),
            max_task_idle_ms=self.max_task_idle_ms,
            cache_bytes=self.cache_bytes,
            repeats_sends=self.repeats_sends,
            snapshot=snapshot,
            threads=self.threads,
            taps=self.taps,
        )
        task.init(self.now_ms)
        return task


class Quiet(ms.Processor[Any, Any, Any, Any]):
    """A processor that does nothing."""

    def process(self, record: ms.Record[Any, Any]) -> None: ...


def processing(
    process: Callable[[ms.ProcessorContext[Any, Any], ms.Record[Any, Any]], object],
    *,
    init: Callable[[ms.ProcessorContext[Any, Any]], object] = lambda context: None,
) -> Callable[[], ms.Processor[Any, Any, Any, Any]]:
    """Return a supplier of processors that call these functions with the context."""

    class Functions(ms.Processor[Any, Any, Any, Any]):
        def init(self, context: ms.ProcessorContext[Any, Any]) -> None:
            super().init(context)
            init(context)

        def process(self, record: ms.Record[Any, Any]) -> None:
            process(self.context, record)

    return Functions


def processor_topology(
    supplier: Callable[[], Any],
    *,
    topics: Sequence[str] = ("in",),
    stores: Sequence[ms.stores.StoreSpec] = (),
    **source: Any,
) -> ms.Topology:
    """Build source -> processor -> sink, all of text."""
    topology = (
        ms.Topology().add_source("source", topics, **source).add_processor("worker", supplier, "source")
    )
    for store in stores:
        topology.add_state_store(store, processors=["worker"])
    return topology.add_sink("sink", "out", "worker")


def forwarding(
    value: Callable[[ms.ProcessorContext[Any, Any], ms.Record[Any, Any]], str],
) -> Callable[[], Any]:
    """Return a supplier of processors that forward each record with a new value."""
    return processing(lambda context, record: context.forward(record.with_value(value(context, record))))


def totals(report: TaskReport) -> dict[str, int]:
    """Return the numbers of a report by the names of an application's metrics."""
    numbers = Numbers()
    numbers.take(report.measured)
    return without_labels(TASK_METRICS, numbers)
