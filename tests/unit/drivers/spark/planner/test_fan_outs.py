"""Planning split partitions: a micro-batch reads one epoch, and the next one only when the epoch has been processed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

import millstream as ms
from millstream.core.engine.policy import ErrorPolicies
from millstream.core.engine.records.readiness import FOREVER
from millstream.core.engine.task import Task
from millstream.core.fanout.epochs import History
from millstream.core.fanout.reading import EpochRead
from millstream.core.model.ids import TaskId, TopicPartition
from millstream.core.model.positions import Offsets
from millstream.core.model.record import Records
from millstream.core.ports import OffsetRange, TimedOffset
from millstream.core.runtime.batch_plan import BatchPlan, Initialization
from millstream.core.runtime.inputs import WaitSettings, informed
from millstream.core.runtime.messages import BufferedRecords, PlanningOrders
from millstream.core.state.memory import MemoryStores
from millstream.core.topology.layout import lay_out
from millstream.drivers.spark.planner import fan_outs
from millstream.drivers.spark.planner.planner import Planner
from millstream.drivers.spark.planner.reads import ReadPlanner
from millstream.drivers.spark.spec import SourceSpec, TopologySpec

PRIMARY = TopicPartition("orders", 0)
LOG = "orders-fanout-0"
SPLIT = History.new(PRIMARY).changed(2, {PRIMARY: 6, TopicPartition(LOG, 0): 0, TopicPartition(LOG, 1): 0})
MERGED = SPLIT.changed(1, {PRIMARY: 6, TopicPartition(LOG, 0): 3, TopicPartition(LOG, 1): 2})


class Cluster:
    """A broker with a partition that was split at offset 6 and merged again, and the application's answers."""

    def __init__(self) -> None:
        self.ends: Offsets = {"orders": {0: 10}, LOG: {0: 3, 1: 2}}
        self.history = MERGED
        self.orders = PlanningOrders()
        self.requested_topics: list[tuple[str, ...]] = []
        self.reported_epochs: list[tuple[EpochRead, ...]] = []
        self.existing = {"orders": 1, LOG: 2}
        self.committed: Offsets = {}

    def ask(self, question: str, data: Any) -> Any:
        if question == "topics":
            self.requested_topics.append(data)
        if question == "epochs":
            self.reported_epochs.append(data)
        return self.orders

    def histories(self) -> tuple[History, ...]:
        return (self.history,)

    def partition_counts(self, topics: Any) -> dict[str, int]:
        return {topic: count for topic, count in self.existing.items() if topic in topics}

    def end_offsets(self, counts: Any) -> Any:
        return {topic: self.ends[topic] for topic in counts}

    log_end_offsets = end_offsets

    def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, TimedOffset]:
        """The time of a record is ten times its offset."""
        first = {partition: -(-time_ms // 10) for partition, time_ms in times.items()}
        return {
            p: TimedOffset(offset, 10 * offset)
            for p, offset in first.items()
            if offset < self.ends[p.topic][p.partition]
        }

    def newest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, TimedOffset]:
        last = {p: self.ends[p.topic][p.partition] - 1 for p in partitions}
        return {p: TimedOffset(offset, 10 * offset) for p, offset in last.items()}

    def begin_offsets(self, counts: Any) -> Any:
        return {topic: dict.fromkeys(range(count), 0) for topic, count in counts.items()}

    def committed_offsets(self, counts: Any) -> Any:
        return self.committed

    def reset_offsets(self, counts: Any) -> Any:
        return {}


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def planner(cluster: Cluster, *known: str, counts: bool = True, reset: str = "earliest") -> Planner:
    builder = ms.StreamsBuilder()
    orders = builder.stream("orders", fan_out=True)
    (orders.group_by_key().count(store="counts").to_stream() if counts else orders).to("out")
    return Planner(source_spec(cluster, builder, *known, reset=reset))


def source_spec(
    cluster: Cluster,
    builder: ms.StreamsBuilder,
    *known: str,
    reset: str = "earliest",
    limit: int = 1_000,
    **more: Any,
) -> SourceSpec:
    plan = builder.build().plan("app", existing=known)
    spec = TopologySpec(plan, lay_out(plan, cluster.existing), {}, ErrorPolicies(), {"out": 1})
    arguments: Any = (spec, cluster, None, cluster, limit, 1 << 20, 1, reset, Initialization())
    return SourceSpec(*arguments, epochs=cluster, **more)


def read_by(planner: Planner, batches: int) -> list[Offsets]:
    """Return the positions at the end of each micro-batch; the first one of a run reads nothing."""
    now = planner.next(planner.first())
    read = []
    for _ in range(batches):
        now = planner.next(now)
        read.append(BatchPlan.from_json(now).positions)
    return read


def test_epochs_are_read_in_order(cluster: Cluster) -> None:
    assert read_by(planner(cluster, LOG), 4) == [
        {"orders": {0: 6}, LOG: {0: 0, 1: 0}},
        {"orders": {0: 6}, LOG: {0: 3, 1: 2}},
        {"orders": {0: 10}, LOG: {0: 3, 1: 2}},
        {"orders": {0: 10}, LOG: {0: 3, 1: 2}},
    ]


def test_the_application_learns_which_epoch_is_read(cluster: Cluster) -> None:
    read_by(planner(cluster, LOG), 4)
    assert [(read.history, read.epoch.number) for [read] in cluster.reported_epochs] == [
        (MERGED, 0),
        (MERGED, 1),
        (MERGED, 2),
    ]


def test_records_that_a_task_has_not_processed_hold_back_the_next_epoch(cluster: Cluster) -> None:
    cluster.orders = PlanningOrders(records=BufferedRecords({PRIMARY: (1, 9, 5)}))
    assert read_by(planner(cluster, LOG), 2)[-1] == {"orders": {0: 6}, LOG: {0: 0, 1: 0}}


def test_a_pause_of_the_topic_pauses_its_fan_out_topics(cluster: Cluster) -> None:
    cluster.history, cluster.ends["orders"] = SPLIT, {0: 6}
    planning = planner(cluster, LOG)
    now = planning.next(planning.next(planning.first()))
    cluster.orders = PlanningOrders(paused=frozenset(["orders"]))
    assert planning.next(now) is now


def test_fan_out_topics_that_the_query_does_not_read_are_requested(cluster: Cluster) -> None:
    planning = planner(cluster)
    assert read_by(planning, 3)[-1] == {"orders": {0: 6}}
    assert cluster.requested_topics == [(LOG,)]  # at most once a second


class WaitingTask:
    """A task that waits for empty inputs without limit, and the micro-batches that its planner plans."""

    def __init__(self, cluster: Cluster, *others: str, limit: int = 1_000) -> None:
        builder = ms.StreamsBuilder()
        stream = builder.stream("orders", fan_out=True)
        for other in others:
            stream = stream.merge(builder.stream(other))
        newest = stream.group_by_key().reduce(lambda _, value: value, store="newest")
        newest.to_stream().to("out")
        self._cluster = cluster
        self._spec = source_spec(cluster, builder, LOG, limit=limit, waits=WaitSettings(FOREVER))
        self._planner, self._reads = Planner(self._spec), ReadPlanner(self._spec)
        self._now = self._planner.first()
        plan, task = self._spec.topology.plan, TaskId(0, 0)
        self._inputs = informed(plan, self._spec.topology.layout, waits=True)[task]
        sub, stores = plan.subtopologies[0], MemoryStores()
        self._task = Task(sub, task, application_id="app", stores=stores, max_task_idle_ms=FOREVER)
        self._task.init(0)

    def run(self, batches: int) -> list[str]:
        """Return the values in the order in which they are processed."""
        return [value for _ in range(batches) for value in self._batch()]

    def _batch(self) -> list[str]:
        start, self._now = self._now, self._planner.next(self._now)
        sent: list[str] = []
        for read in self._reads.reads(BatchPlan.from_json(start), BatchPlan.from_json(self._now)):
            for part in read.ranges:
                records = times_of(part)
                self._task.feed(TopicPartition(part.topic, part.partition), records, part.end)
            for _, message in read.inputs:
                self._task.inform(message.facts(self._inputs))
        outcome = self._task.step(0)
        for _, records in outcome.sends:
            sent += [(value or b"").decode() for value in records.values]
        buffered = {queue.partition: (*size,) for queue, size in outcome.buffered.items()}
        self._cluster.orders = PlanningOrders(records=BufferedRecords(buffered))
        return sent


def times_of(part: OffsetRange) -> Records:
    """Return records whose time is ten times the offset; the value is the log and the offset."""
    offsets = range(part.start, part.end)
    values = [f"{part.topic}-{part.partition} {offset}".encode() for offset in offsets]
    return Records([b"k"] * len(offsets), values, [10 * offset for offset in offsets], list(offsets))


@pytest.mark.parametrize("limit", [1, 2, 1_000])
def test_a_task_that_waits_without_limit_processes_a_split_and_a_merge(cluster: Cluster, limit: int) -> None:
    """It used to wait for the logs of epochs that were not being read, which receive no records."""
    processed = WaitingTask(cluster, limit=limit).run(30)
    assert processed[:6] == [f"orders-0 {offset}" for offset in range(6)]
    assert sorted(processed[6:11]) == [f"{LOG}-0 0", f"{LOG}-0 1", f"{LOG}-0 2", f"{LOG}-1 0", f"{LOG}-1 1"]
    assert processed[11:] == [f"orders-0 {offset}" for offset in range(6, 10)]


def test_a_task_waits_for_the_next_epoch_before_it_processes_later_records_of_another_topic(
    cluster: Cluster,
) -> None:
    cluster.existing["other"], cluster.ends["other"] = 1, {0: 10}
    processed = WaitingTask(cluster, "other").run(10)
    assert processed.index("orders-0 6") < processed.index("other-0 7")
    assert len(processed) == 24  # the last one waits, because the other topic is empty


def test_a_fan_out_topic_without_epochs_delays_nothing(cluster: Cluster) -> None:
    """A split that was cancelled leaves such a topic."""
    cluster.history, cluster.ends[LOG] = History.new(PRIMARY), {0: 0, 1: 0}
    assert len(WaitingTask(cluster).run(3)) == 10


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(fan_outs.time, "monotonic", lambda: now[0])
    return now


def test_deleted_logs_count_as_read(cluster: Cluster, clock: list[float]) -> None:
    del cluster.existing[LOG]
    planning = planner(cluster)
    assert read_by(planning, 2)[-1] == {"orders": {0: 6}}
    clock[0] += 10
    assert read_by(planning, 2)[-1] == {"orders": {0: 10}}
    assert cluster.requested_topics == []


def test_logs_that_a_broker_does_not_list_for_a_moment_are_not_skipped(
    cluster: Cluster, clock: list[float]
) -> None:
    """One answer of a broker that had just started was enough for their records never to be read."""
    planning, log = planner(cluster), cluster.existing.pop(LOG)
    assert read_by(planning, 2)[-1] == {"orders": {0: 6}}
    cluster.existing[LOG], clock[0] = log, 11.0
    assert read_by(planning, 2)[-1] == {"orders": {0: 6}}
    del cluster.existing[LOG]
    assert read_by(planning, 2)[-1] == {"orders": {0: 6}}
    assert cluster.requested_topics == [(LOG,)]


@pytest.mark.parametrize("reset", ["latest", "none"])
def test_no_offset_reset_skips_records_after_a_known_position(cluster: Cluster, reset: str) -> None:
    cluster.committed = {"orders": {0: 4}}
    first = planner(cluster, LOG, counts=False, reset=reset).first()
    assert BatchPlan.from_json(first).positions == {"orders": {0: 4}, LOG: {0: 0, 1: 0}}


def test_an_offset_reset_skips_split_partitions_as_a_whole(cluster: Cluster) -> None:
    first = planner(cluster, LOG, counts=False, reset="latest").first()
    assert BatchPlan.from_json(first).positions == {"orders": {0: 10}, LOG: {0: 3, 1: 2}}
