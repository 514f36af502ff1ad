"""Tasks behind a repartition topic process all inputs in timestamp order, in micro-batches that are planned and run as on Spark.

A model of the broker holds the logs; planner, reader and tasks are the real ones. Each input has a few partitions with ordered
timestamps and gaps of different lengths; the micro-batches have any size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from millstream.core.engine.records.merging import WRITER_HEADER, merged_by_time
from millstream.core.engine.records.queue import MERGED
from millstream.core.engine.records.readiness import InputFacts
from millstream.core.engine.step_outcome import Outcome, Snapshot
from millstream.core.engine.task import Task
from millstream.core.model.ids import TaskId, TopicPartition
from millstream.core.model.positions import Offsets
from millstream.core.model.record import Records
from millstream.core.ports import BatchId, OffsetRange, TimedOffset
from millstream.core.runtime.batch_plan import BatchPlan
from millstream.core.runtime.inputs import WaitSettings, informed
from millstream.core.runtime.messages import BufferedRecords
from millstream.core.runtime.remaining_inputs import TaskInput, lets_tasks_continue
from millstream.core.state.memory import MemoryStores
from millstream.core.topology.evolution import Remembered
from millstream.core.topology.layout import lay_out
from millstream.drivers.spark.planner.input_planner import InputPlanner, Outlook, TaskInputPlanner
from millstream.drivers.spark.planner.repartitions import Repartitions
from unit.helpers import forwarding

from .engines import Visits

TOPICS = {"a": 3, "b": 2}
WAITS = WaitSettings()


class Forwarder(ms.Processor):
    stores = (ms.stores.key_value("kept", ms.serdes.string, ms.serdes.int64),)

    def process(self, record: Any) -> None:
        self.context.forward(record)


def one_repartition(builder: ms.StreamsBuilder) -> None:
    repartitioned = builder.stream("a").process(Forwarder).repartition(name="again", partitions=2)
    repartitioned.process(forwarding(lambda c, r: r.value)).to("out")


def repartition_merged_with_a_topic(builder: ms.StreamsBuilder) -> None:
    repartitioned = builder.stream("a").process(Forwarder).repartition(name="again", partitions=2)
    repartitioned.merge(builder.stream("b")).process(forwarding(lambda c, r: r.value)).to("out")


def two_repartitions(builder: ms.StreamsBuilder) -> None:
    repartitioned = builder.stream("a").process(Forwarder).repartition(name="again", partitions=2)
    repartitioned_twice = repartitioned.process(forwarding(lambda c, r: r.value)).repartition(
        name="third", partitions=2
    )
    repartitioned_twice.merge(builder.stream("b")).process(forwarding(lambda c, r: r.value)).to("out")


def repartition_read_by_its_writers(builder: ms.StreamsBuilder) -> None:
    """Read the repartition topic in the tasks that write it, because both processors share a store."""
    repartitioned = builder.stream("a").process(Forwarder).repartition(name="again", partitions=3)
    repartitioned.process(Forwarder).to("out")


TOPOLOGIES = [one_repartition, repartition_merged_with_a_topic, two_repartitions]


class Broker:
    """A model of the broker: logs with a time index."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        self.logs = {TopicPartition(t, p): Records(headers=[]) for t, n in counts.items() for p in range(n)}

    def append(
        self, partition: TopicPartition, key: bytes, value: bytes, timestamp: int, headers: Any = ()
    ) -> None:
        log = self.logs[partition]
        log.extend(Records([key], [value], [timestamp], [len(log)], [headers]))

    def ends(self) -> Offsets:
        ends: Offsets = {}
        for partition, log in self.logs.items():
            ends.setdefault(partition.topic, {})[partition.partition] = len(log)
        return ends

    def read(self, planned: OffsetRange) -> Records:
        log = self.logs[TopicPartition(planned.topic, planned.partition)]
        columns = (log.keys, log.values, log.timestamps, log.offsets, log.headers)
        return Records(*(column[planned.start : planned.end] for column in columns))  # type: ignore[index]

    def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, TimedOffset]:
        found = {
            p: next((TimedOffset(n, t) for n, t in enumerate(self.logs[p].timestamps) if t >= time_ms), None)
            for p, time_ms in times.items()
        }
        return {p: timed for p, timed in found.items() if timed is not None}

    def newest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, TimedOffset]:
        logs = {p: self.logs[p].timestamps for p in partitions if self.logs[p].timestamps}
        return {p: TimedOffset(log.index(max(log)), max(log)) for p, log in logs.items()}


class Application:
    """An application on the model of the broker, which runs one micro-batch after the other."""

    def __init__(self, define: Any, limit: int) -> None:
        builder = ms.StreamsBuilder()
        define(builder)
        self.plan = builder.build().plan("app")
        self.layout = lay_out(self.plan, {t: TOPICS[t] for t in self.plan.external_topics})
        self.broker = Broker({t: self.layout.partitions[t] for t in self.plan.broker_topics})
        topology = SimpleNamespace(plan=self.plan, layout=self.layout)
        limits = {"waits": WAITS, "max_records": limit, "max_bytes": 1 << 20}
        spec: Any = SimpleNamespace(topology=topology, fetcher=self.broker, **limits)
        self.repartitions = Repartitions(spec)
        self.planner = InputPlanner(self.plan, self.layout, WAITS, self.broker)
        self.task_inputs = TaskInputPlanner(self.plan, self.layout, WAITS)
        self.inputs = informed(self.plan, self.layout, waits=True)
        self.positions: Offsets = {t: dict.fromkeys(p, 0) for t, p in self.broker.ends().items()}
        self.offset = BatchPlan(BatchId("5f3a", 0), Remembered())
        self.snapshots: dict[TaskId, Snapshot] = {}
        self.buffered: dict[TopicPartition, tuple[int, int, int]] = {}
        self.taken: dict[TaskId, list[int]] = {}
        self.enforced = 0
        self.largest = 0

    def batch(self, *, begin: bool = False) -> bool:
        """Run a micro-batch; return whether there was anything to do."""
        ends, records = self.broker.ends(), BufferedRecords(dict(self.buffered))
        allowed = {} if begin else self.repartitions.without_full(self.positions, ends, records)
        admitted = self.positions if begin else self.repartitions.admitted(self.positions, allowed, 10.0)
        before = self.offset.inputs
        outlook = Outlook(self.positions, admitted, allowed, ends, records, (), True, 10.0, before)
        planned, left = self.planner.planned(outlook) if self.planner.active else (admitted, None)
        continues = left is not None and bool(records.buffered) and lets_tasks_continue(before, left)
        if planned == self.positions and not continues and not begin:
            return False
        offset = replace(self.offset, inputs=left)
        ranges = [
            OffsetRange(t, p, self.positions[t][p], end)
            for t, partitions in planned.items()
            for p, end in partitions.items()
            if end > self.positions[t][p]
        ]
        ticked = [str(task) for task in self.layout.tasks] if begin else []
        messages = dict(self.task_inputs.messages(self.offset, offset, ranges, ticked))
        self.positions, self.offset = planned, offset
        outcomes = [(task, self.run(task, ranges, messages)) for task in self.layout.tasks]
        for task, outcome in reversed(outcomes):  # outcomes may arrive in any order
            if outcome is not None:
                self.carry_out(task, outcome)
        return True

    def run(
        self, task_id: TaskId, ranges: list[OffsetRange], messages: Mapping[str, TaskInput]
    ) -> Outcome | None:
        task_ranges = [
            r for r in ranges if TopicPartition(r.topic, r.partition) in self.layout.tasks[task_id]
        ]
        if not task_ranges and str(task_id) not in messages:
            return None
        sub = self.plan.subtopologies[task_id.subtopology]
        snapshot = self.snapshots.get(task_id)
        task = Task(sub, task_id, application_id="app", stores=MemoryStores(), snapshot=snapshot)
        task.init(0)
        if task_id in self.inputs:
            inputs, message = self.inputs[task_id], messages.get(str(task_id))
            task.inform(
                InputFacts(tuple(i.partition for i in inputs)) if message is None else message.facts(inputs)
            )
        for r in task_ranges:
            read, lane = self.broker.read(r), ""
            if r.topic in self.plan.repartition_topics:
                (read,), lane = merged_by_time([read]), MERGED
            task.feed(TopicPartition(r.topic, r.partition), read, r.end, lane=lane)
        outcome = task.step(0)
        self.snapshots[task_id] = task.snapshot()
        return outcome

    def carry_out(self, task: TaskId, outcome: Outcome) -> None:
        self.enforced += outcome.metrics.enforced
        self.buffered = {
            partition: n for partition, n in self.buffered.items() if partition not in self.layout.tasks[task]
        }
        self.buffered.update({q.partition: tuple(records) for q, records in outcome.buffered.items()})
        self.largest = max(self.largest, sum(count for count, *_ in self.buffered.values()))
        for topic, sent in outcome.sends:
            if topic == "out":
                self.taken.setdefault(task, []).extend(sent.timestamps)
                continue
            for key, value, timestamp in zip(sent.keys, sent.values, sent.timestamps):
                partition = TopicPartition(topic, int(key or b"0") % self.layout.partitions[topic])
                header = ((WRITER_HEADER, str(task).encode()),)
                self.broker.append(partition, key or b"0", value or b"", timestamp, header)


GAPS = st.lists(st.sampled_from([1, 1, 2, 40]), max_size=60)


def test_tasks_behind_a_repartition_topic_process_records_in_timestamp_order() -> None:
    visits = Visits()
    partitions = [TopicPartition(t, p) for t, n in TOPICS.items() for p in range(n)]

    @settings(max_examples=150, deadline=None)
    @given(
        st.sampled_from([*TOPOLOGIES, repartition_read_by_its_writers]),
        st.tuples(*[GAPS] * len(partitions)),
        st.integers(1, 60),
    )
    def backlog(define: Any, gaps: tuple[list[int], ...], limit: int) -> None:
        app = Application(define, limit)
        expected = []
        for number, (partition, steps) in enumerate(zip(partitions, gaps)):
            timestamp = 10 * number
            for step in steps if partition in app.broker.logs else ():
                timestamp += step * 10  # no two partitions share a timestamp
                app.broker.append(partition, b"%d" % (timestamp // 10), b"v", timestamp + number)
                expected.append(timestamp + number)
        app.batch(begin=True)
        batches = 0
        while app.batch():
            batches += 1
            assert batches < 2_000
        for taken in app.taken.values():
            assert taken == sorted(taken) or define is repartition_read_by_its_writers
        assert sorted(time for taken in app.taken.values() for time in taken) == sorted(expected)
        assert not app.buffered
        visits[define.__name__] += batches > 4 and len(app.taken) > 1
        visits["buffered"] += app.largest > 0

    backlog()
    visits.demand(**{define.__name__: 5 for define in TOPOLOGIES}, buffered=5)
