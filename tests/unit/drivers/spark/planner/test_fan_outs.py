"""Planning split partitions: a micro-batch reads one epoch, and the next one only when the epoch has been processed."""

from __future__ import annotations

from typing import Any

import pytest

import millstream as ms
from millstream.core.engine.policy import ErrorPolicies
from millstream.core.fanout.epochs import History
from millstream.core.fanout.reading import EpochRead
from millstream.core.model.ids import TopicPartition
from millstream.core.model.positions import Offsets
from millstream.core.runtime.batch_plan import BatchPlan, Initialization
from millstream.core.runtime.messages import BufferedRecords, PlanningOrders
from millstream.core.topology.layout import lay_out
from millstream.drivers.spark.planner import fan_outs
from millstream.drivers.spark.planner.planner import Planner
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
        self.asked_for: list[tuple[str, ...]] = []
        self.told: list[tuple[EpochRead, ...]] = []
        self.existing = {"orders": 1, LOG: 2}
        self.committed: Offsets = {}

    def ask(self, question: str, data: Any) -> Any:
        if question == "topics":
            self.asked_for.append(data)
        if question == "epochs":
            self.told.append(data)
        return self.orders

    def histories(self) -> tuple[History, ...]:
        return (self.history,)

    def partition_counts(self, topics: Any) -> dict[str, int]:
        return {topic: count for topic, count in self.existing.items() if topic in topics}

    def end_offsets(self, counts: Any) -> Any:
        return {topic: self.ends[topic] for topic in counts}

    log_end_offsets = end_offsets

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
    plan = builder.build().plan("app", existing=known)
    spec = TopologySpec(plan, lay_out(plan, cluster.existing), {}, ErrorPolicies(), {"out": 1})
    made: Any = (spec, cluster, None, cluster, 1_000, 1 << 20, 1, reset, Initialization())
    return Planner(SourceSpec(*made, epochs=cluster))


def read_by(planner: Planner, batches: int) -> list[Offsets]:
    """Return the positions at the end of each micro-batch; the first one of a run reads nothing."""
    now = planner.next(planner.first())
    read = []
    for _ in range(batches):
        now = planner.next(now)
        read.append(BatchPlan.from_json(now).positions)
    return read


def test_epochs_are_read_one_after_the_other(cluster: Cluster) -> None:
    assert read_by(planner(cluster, LOG), 4) == [
        {"orders": {0: 6}, LOG: {0: 0, 1: 0}},
        {"orders": {0: 6}, LOG: {0: 3, 1: 2}},
        {"orders": {0: 10}, LOG: {0: 3, 1: 2}},
        {"orders": {0: 10}, LOG: {0: 3, 1: 2}},
    ]


def test_the_application_is_told_which_epoch_is_read(cluster: Cluster) -> None:
    read_by(planner(cluster, LOG), 4)
    assert [(read.history, read.epoch.number) for [read] in cluster.told] == [
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


def test_the_application_is_asked_for_logs_that_the_query_does_not_read(cluster: Cluster) -> None:
    planning = planner(cluster)
    assert read_by(planning, 3)[-1] == {"orders": {0: 6}}
    assert cluster.asked_for == [(LOG,)]  # once a second


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
    assert cluster.asked_for == []


def test_logs_that_a_broker_does_not_list_for_a_moment_are_not_skipped(
    cluster: Cluster, clock: list[float]
) -> None:
    """Their records were never read: one answer of a broker that had just started was enough."""
    planning, log = planner(cluster), cluster.existing.pop(LOG)
    assert read_by(planning, 2)[-1] == {"orders": {0: 6}}
    cluster.existing[LOG], clock[0] = log, 11.0
    assert read_by(planning, 2)[-1] == {"orders": {0: 6}}
    del cluster.existing[LOG]
    assert read_by(planning, 2)[-1] == {"orders": {0: 6}}
    assert cluster.asked_for == [(LOG,)]


@pytest.mark.parametrize("reset", ["latest", "none"])
def test_no_offset_reset_skips_what_follows_a_known_position(cluster: Cluster, reset: str) -> None:
    cluster.committed = {"orders": {0: 4}}
    first = planner(cluster, LOG, counts=False, reset=reset).first()
    assert BatchPlan.from_json(first).positions == {"orders": {0: 4}, LOG: {0: 0, 1: 0}}


def test_an_offset_reset_skips_split_partitions_as_a_whole(cluster: Cluster) -> None:
    first = planner(cluster, LOG, counts=False, reset="latest").first()
    assert BatchPlan.from_json(first).positions == {"orders": {0: 10}, LOG: {0: 3, 1: 2}}
