"""Runs a topology as Spark does: each step in a new task, which knows only the state that the last task left.

The plan is pickled and unpickled, because Spark sends it to other processes. A task is created from committed stores and a
snapshot, takes one step, and is discarded. So everything that a topology keeps between records must be in stores,
schedules, times or buffered records.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from typing import Any

from pyspark import cloudpickle

import millstream as ms
from millstream.core.engine.global_task import global_task
from millstream.core.engine.step_outcome import Outcome, Snapshot
from millstream.core.engine.task import Task
from millstream.core.model.ids import TaskId, TopicPartition
from millstream.core.model.record import Headers, Records
from millstream.core.ports import Threads
from millstream.core.state.memory import MemoryStores
from millstream.core.state.opening import open_store
from millstream.core.topology.nodes import Sink
from millstream.core.topology.plan import Plan, SubTopology

Row = tuple[bytes | None, bytes | None, int, Headers]


class MicroBatches:
    """Runs a topology in micro-batches. Every topic has one partition.

    Args:
        topology: The topology.
        application_id: The prefix of internal topics.
        chunk: The number of records that are fed at a time. A task may be fed several times before it takes its step.
        budget: The number of records that a step may process. The others wait in the snapshot for the next task.
        threads: The threads that call the functions of stateless operators. With None, the task calls them.
        cache_bytes: The size of the caches of a task's tables.
        restarts: Whether each step has a new task. If not, one task takes all steps.
        tapped: Whether all nodes are tapped.
    """

    def __init__(
        self,
        topology: ms.Topology,
        application_id: str,
        *,
        chunk: int,
        budget: int | None,
        threads: Threads | None = None,
        cache_bytes: int = 0,
        restarts: bool = True,
        tapped: bool = False,
    ) -> None:
        self.plan: Plan = cloudpickle.loads(cloudpickle.dumps(topology.plan(application_id)))
        self.chunk = chunk
        self.budget = budget
        self.threads = threads
        self.cache_bytes = cache_bytes
        self.restarts = restarts
        self.tapped = tapped
        self.passed = Counter[str]()
        self.now_ms = 0
        self.dropped = 0
        self.sent: dict[str, list[ms.Record]] = defaultdict(list)
        self._global = MemoryStores()
        self._committed = {sub.id: MemoryStores() for sub in self.plan.subtopologies}
        self._committed |= {part.id: self._global for part in self.plan.global_parts}
        self._snapshots = {number: Snapshot() for number in self._committed}
        self._reader = {**self.plan.subtopology_of, **self.plan.global_part_of}
        self._offsets: dict[str, int] = defaultdict(int)
        self._waiting: deque[tuple[str, list[Row]]] = deque()
        self._tasks: dict[int, Task] = {}
        self.advance_to(0)

    def process(self, topic: str, rows: list[Row]) -> None:
        """Run a micro-batch with records of one topic, and the micro-batches of the internal topics that it writes to."""
        self.add(topic, rows)
        self.settle()

    def process_together(self, rows: Mapping[str, list[Row]]) -> None:
        """Run a micro-batch with records of topics that one task reads, and the micro-batches that follow from it."""
        (sub,) = {self._reader[topic].id: self._reader[topic] for topic in rows}.values()
        self._run(sub, rows)
        self.settle()

    def add(self, topic: str, rows: list[Row]) -> None:
        """Queue records of one topic for a micro-batch."""
        self._waiting.append((topic, rows))

    def waiting(self) -> list[str]:
        """Return the topics whose records wait, including internal topics, in the order of arrival."""
        return list(dict.fromkeys(topic for topic, _ in self._waiting))

    def run_next(self, topic: str) -> None:
        """Run a micro-batch with those records of a topic that have waited longest."""
        index, rows = next((i, rows) for i, (name, rows) in enumerate(self._waiting) if name == topic)
        del self._waiting[index]
        self._run(self._reader[topic], {topic: rows})

    def settle(self) -> None:
        """Run micro-batches until no records wait."""
        while self._waiting:
            self.run_next(self._waiting[0][0])

    def advance_to(self, now_ms: int) -> None:
        """Set the wall clock, and run a micro-batch without records."""
        self.now_ms = now_ms
        for sub in self.plan.subtopologies:
            self._step(sub, self._task(sub))
        self.settle()

    def store(self, name: str) -> Any:
        """Return a store as the next task would see it."""
        parts = (*self.plan.subtopologies, *self.plan.global_parts)
        sub = next(part for part in parts if name in part.stores)
        memory = self._snapshots[sub.id].stores.get(name, {})
        return open_store(sub.stores[name], self._committed[sub.id], memory=memory)

    def _run(self, sub: SubTopology, rows_by_topic: Mapping[str, list[Row]]) -> None:
        task = self._task(sub)
        for topic, rows in rows_by_topic.items():
            for start in range(0, len(rows), self.chunk):
                records = columns(rows[start : start + self.chunk], first_offset=self._offsets[topic])
                self._offsets[topic] += len(records)
                task.feed(TopicPartition(topic, 0), records, self._offsets[topic])
        while self._step(sub, task):
            task = self._task(sub)

    def _task(self, sub: SubTopology) -> Task:
        if sub.id not in self._tasks:
            self._tasks[sub.id] = self._new_task(sub)
        return self._tasks[sub.id]

    def _new_task(self, sub: SubTopology) -> Task:
        common_options = {
            "application_id": self.plan.application_id,
            "stores": self._committed[sub.id],
            "snapshot": self._snapshots[sub.id],
        }
        if sub in self.plan.global_parts:
            task = global_task(sub, **common_options)
        else:
            options = {
                "global_stores": self._global,
                "partitions_of": lambda topic: 1,
                "threads": self.threads,
                "cache_bytes": self.cache_bytes,
                "taps": list(sub.nodes) if self.tapped else (),
            }
            task = Task(sub, TaskId(sub.id, 0), **common_options, **options)
        task.init(self.now_ms)
        return task

    def _step(self, sub: SubTopology, task: Task) -> bool:
        """Take a step; return whether records are left for the next step."""
        self._carry_out(sub, task.step(self.now_ms, self.budget))
        self._snapshots[sub.id] = task.snapshot()
        if self.restarts:
            self._tasks.pop(sub.id).close()
        return task.buffered_count() > 0

    def _carry_out(self, sub: SubTopology, outcome: Outcome) -> None:
        self._committed[sub.id].apply(outcome.changes, outcome.dropped_slices)
        self.passed.update({tap.node: tap.passed for tap in outcome.taps})
        self.dropped += sum(outcome.metrics.dropped.values())
        for topic, records in outcome.sends:
            rows = list(rows_of(records))
            sink = sink_of(sub, topic)
            self.sent[topic].extend(
                ms.Record(read(sink.key, key), read(sink.value, value), timestamp, headers)
                for key, value, timestamp, headers in rows
            )
            if topic in self._reader:
                self._waiting.append((topic, rows))


def columns(rows: list[Row], *, first_offset: int) -> Records:
    keys, values, timestamps, headers = map(list, zip(*rows, strict=True))
    offsets = list(range(first_offset, first_offset + len(rows)))
    return Records(keys, values, timestamps, offsets, headers if any(headers) else None)


def rows_of(records: Records) -> zip[Row]:
    headers = records.headers or [()] * len(records)
    return zip(records.keys, records.values, records.timestamps, headers, strict=True)


def sink_of(sub: SubTopology, topic: str) -> Sink:
    sinks = [node for node in sub.nodes.values() if isinstance(node, Sink)]
    return next((s for s in sinks if s.topic == topic), None) or next(s for s in sinks if callable(s.topic))


def read(serde: ms.Serde[Any], data: bytes | None) -> Any:
    return None if data is None else serde.deserialize(data)
