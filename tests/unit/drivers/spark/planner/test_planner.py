"""The planner: which records a micro-batch reads, under the orders of the application and with changing topics and brokers."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from datetime import timedelta
from typing import Any, ClassVar

import pytest

import millstream as ms
from millstream.core.engine.policy import ErrorPolicies
from millstream.core.model.errors import (
    BrokerUnavailableError,
    NoOffsetForPartitionError,
    TopicNotFoundError,
)
from millstream.core.model.ids import TopicPartition
from millstream.core.ports import OffsetRange, TimedOffset, TopicFacts
from millstream.core.runtime.batch_plan import BatchPlan, Initialization
from millstream.core.runtime.messages import BufferedRecords, PlanningOrders
from millstream.core.runtime.origins import begun_to_json
from millstream.core.topology.evolution import Lineage
from millstream.core.topology.layout import default_grouper, lay_out
from millstream.drivers.spark.planner.planner import Planner
from millstream.drivers.spark.planner.reads import ReadPlanner
from millstream.drivers.spark.spec import SourceSpec, TopologySpec

TOPICS = {"in": 1, "other": 1}


class Broker:
    """Two topics with ten records each; nothing is committed."""

    def end_offsets(self, counts: Any) -> Any:
        return {topic: {0: 10} for topic in counts}

    log_end_offsets = end_offsets

    def begin_offsets(self, counts: Any) -> Any:
        return {topic: {0: 0} for topic in counts}

    def committed_offsets(self, counts: Any) -> Any:
        return {}

    reset_offsets = committed_offsets


class Application:
    """An application with prepared answers: each request receives the next one, and the last one is repeated."""

    def __init__(self) -> None:
        self.answers: list[PlanningOrders] = [PlanningOrders()]
        self.asked = 0
        self.last_data: Any = None

    def ask(self, question: str, data: Any) -> Any:
        self.asked += 1
        self.last_data = data
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.fixture
def orders() -> Application:
    return Application()


class Clock:
    """A clock that the test sets."""

    now_ms = 5

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def planner(orders: Application, clock: Clock) -> Planner:
    builder = ms.StreamsBuilder()
    builder.stream(list(TOPICS)).to("out")
    return planning(builder, orders, clock)


def planning(
    builder: ms.StreamsBuilder,
    orders: Application,
    clock: Clock | None = None,
    trigger_interval_ms: int = 0,
    limit: int = 1_000,
    broker: Any = None,
) -> Planner:
    clock = clock or Clock()
    plan = builder.build().plan("app")
    layout = lay_out(plan, TOPICS, default_grouper)
    spec = TopologySpec(plan, layout, {}, ErrorPolicies(), {"out": 1})
    known: Any = (spec, broker or Broker(), None, orders, limit, 1 << 20, 1, "earliest", Initialization())
    made = SourceSpec(*known, clock=clock, trigger_interval_ms=trigger_interval_ms)
    return Planner(made)


def begun(planner: Planner) -> dict[str, Any]:
    """Plan the first micro-batch of a run, which reads nothing."""
    return planner.next(planner.first())


def test_the_plan_contains_the_tapped_nodes(planner: Planner, orders: Application) -> None:
    start = begun(planner)
    orders.answers = [PlanningOrders(taps=("in",))]
    planned = planner.next(start)
    assert planned["taps"] == ["in"]
    reads = ReadPlanner(planner._spec).reads(BatchPlan.from_json(start), BatchPlan.from_json(planned))
    assert [read.taps for read in reads] == [("in",)]
    orders.answers = [PlanningOrders()]
    assert planner.next(planned) == planned, "neither a tap nor its end starts a micro-batch"


def test_tasks_that_must_correct_their_changelogs_are_started_again_and_read_nothing(
    planner: Planner, orders: Application
) -> None:
    start = begun(planner)
    planner._spec = replace(planner._spec, initialization=Initialization(rebuild=True, new_topics=("new",)))
    orders.answers = [PlanningOrders(initialize=True)]
    planned = BatchPlan.from_json(planner.next(start))
    assert planned.initialization == Initialization(), "nothing is rebuilt or published a second time"
    before = BatchPlan.from_json(start)
    assert (planned.positions, planned.tick, planned.woken) == (before.positions, before.tick + 1, ())
    orders.answers = [PlanningOrders()]
    assert planner.next(planned.to_json())["topics"] == {"in": {"0": 10}, "other": {"0": 10}}


def test_paused_topics_keep_their_positions(planner: Planner, orders: Application) -> None:
    start = begun(planner)
    orders.answers = [PlanningOrders(paused=frozenset(["in"]))]
    planned = planner.next(start)
    assert planned["topics"] == {"in": {"0": 0}, "other": {"0": 10}}
    assert planner.next(planned) is planned
    orders.answers = [PlanningOrders()]
    assert planner.next(planned)["topics"] == {"in": {"0": 10}, "other": {"0": 10}}


def test_a_throttled_topic_does_not_hold_up_others(planner: Planner, orders: Application) -> None:
    start = begun(planner)
    orders.answers = [PlanningOrders(rates={"in": 3})]
    assert planner.next(start)["topics"] == {"in": {"0": 3}, "other": {"0": 10}}


def test_a_run_to_the_end_waits_for_paused_topics_and_logs_that_once(
    planner: Planner, orders: Application, caplog: pytest.LogCaptureFixture
) -> None:
    planner.fix_end()
    start = begun(planner)
    paused = PlanningOrders(paused=frozenset(["in"]))
    orders.answers = [paused]
    planned = planner.next(start)
    orders.asked, orders.answers = 0, [paused, paused, paused, PlanningOrders()]
    with caplog.at_level(logging.WARNING, "millstream.source"):
        resumed = planner.next(planned)
    assert orders.asked == 4
    assert resumed["topics"] == {"in": {"0": 10}, "other": {"0": 10}}
    assert caplog.messages == ["run(until='end') is waiting for paused topics: in; resume them to continue"]
    assert planner.next(resumed) is resumed


def test_a_run_to_the_end_can_be_stopped_while_it_waits(planner: Planner, orders: Application) -> None:
    planner.fix_end()
    start = begun(planner)
    orders.answers = [
        PlanningOrders(paused=frozenset(TOPICS)),
        PlanningOrders(paused=frozenset(TOPICS)),
        PlanningOrders(hold=True),
    ]
    assert planner.next(start) is start


def test_intake_is_limited_by_the_room_for_calls_behind_the_shuffle(orders: Application) -> None:
    builder = ms.StreamsBuilder()
    builder.stream("in").repartition(name="again", partitions=1).map_values_async(str.upper).to("out")
    builder.stream("other").to("out")
    planner = planning(builder, orders)
    start = begun(planner)
    orders.answers = [PlanningOrders(records=BufferedRecords(room={TopicPartition("in", 0): 0}))]
    assert planner.next(start)["topics"] == {"in": {"0": 0}, "other": {"0": 10}}
    orders.answers = [PlanningOrders(records=BufferedRecords(room={TopicPartition("in", 0): 7}))]
    assert planner.next(start)["topics"] == {"in": {"0": 7}, "other": {"0": 10}}


def re_keyed(orders: Application, limit: int) -> Planner:
    """Return a planner of a topology that re-keys behind a store and reads at most ``limit`` records per micro-batch."""
    builder = ms.StreamsBuilder()
    builder.stream("in").process(ProcessorWithAStore).repartition(name="again", partitions=1).to("out")
    planner = planning(builder, orders, limit=limit)
    planner.fix_end()
    return planner


class ProcessorWithAStore(ms.Processor[Any, Any, Any, Any]):
    stores = (ms.stores.key_value("kept", ms.serdes.string, ms.serdes.string),)

    def process(self, record: Any) -> None:
        self.context.forward(record)


AGAIN = "app-again-repartition"


def test_a_repartition_topic_is_read_completely_and_before_other_topics(orders: Application) -> None:
    planner = re_keyed(orders, 12)
    assert planner.next(begun(planner))["topics"] == {AGAIN: {"0": 10}, "in": {"0": 2}}
    planner = re_keyed(orders, 4)
    assert planner.next(begun(planner))["topics"] == {AGAIN: {"0": 10}, "in": {"0": 0}}


def test_a_repartition_topic_is_not_read_while_the_buffer_of_its_task_is_full(orders: Application) -> None:
    planner = re_keyed(orders, 1_000)
    start = begun(planner)
    orders.answers = [PlanningOrders(records=BufferedRecords({TopicPartition(AGAIN, 0): (50_000, 1, 1)}))]
    assert planner.next(start)["topics"] == {AGAIN: {"0": 0}, "in": {"0": 10}}


def test_a_micro_batch_waits_for_the_transactions_of_the_previous_one(orders: Application) -> None:
    planner = re_keyed(orders, 1_000)
    start = begun(planner)
    broker: Any = planner._spec.broker
    asked: list[Any] = []

    def beyond(counts: Any) -> Any:
        asked.append(counts)
        return {topic: {0: 10 if len(asked) > 2 else 11} for topic in counts}

    broker.log_end_offsets = beyond
    assert planner.next(start)["topics"] == {AGAIN: {"0": 10}, "in": {"0": 10}}
    assert asked == [{AGAIN: 1}] * 3


def test_no_input_topic_is_read_while_the_application_drains(planner: Planner, orders: Application) -> None:
    start = begun(planner)
    orders.answers = [PlanningOrders(intake=False)]
    assert planner.next(start) is start
    orders.answers = [PlanningOrders(intake=True)]
    assert planner.next(start)["topics"] == {"in": {"0": 10}, "other": {"0": 10}}


def test_every_micro_batch_has_the_time_of_the_clock(
    planner: Planner, orders: Application, clock: Clock
) -> None:
    start = begun(planner)
    assert start["now_ms"] == 5
    clock.now_ms = 70
    assert planner.next(start)["now_ms"] == 70
    assert orders.last_data.now_ms == 70


class TestTheTriggerInterval:
    """The broker has ten records of each topic; with a rate of three, each micro-batch reads three of one of them."""

    SOME: ClassVar = PlanningOrders(paused=frozenset(["other"]), rates={"in": 3})

    def planner(self, orders: Application, trigger_interval_ms: int) -> Planner:
        builder = ms.StreamsBuilder()
        builder.stream(list(TOPICS)).to("out")
        orders.answers = [self.SOME]
        return planning(builder, orders, trigger_interval_ms=trigger_interval_ms)

    def test_separates_the_starts_of_micro_batches(self, orders: Application) -> None:
        planner = self.planner(orders, 3_600_000)
        first = planner.next(begun(planner))
        assert first["topics"]["in"] == {"0": 3}  # the initialisation of tasks is not awaited
        orders.answers = [PlanningOrders()]
        assert planner.next(first) is first

    def test_lets_the_next_micro_batch_start_when_it_is_over(self, orders: Application) -> None:
        planner = self.planner(orders, 100)
        first = planner.next(begun(planner))
        orders.answers, orders.asked = [PlanningOrders()], 0
        while (second := planner.next(first)) is first:
            assert orders.asked < 1_000
        assert orders.asked > 1
        assert second["topics"] == {"in": {"0": 10}, "other": {"0": 10}}

    def test_does_not_delay_a_requested_commit(self, orders: Application) -> None:
        planner = self.planner(orders, 3_600_000)
        first = planner.next(begun(planner))
        orders.answers = [PlanningOrders(commit=True)]
        second = planner.next(first)
        assert second["topics"] == {"in": {"0": 10}, "other": {"0": 10}}
        orders.answers = [PlanningOrders(due=("0_0",))]
        assert planner.next(second) is second

    def test_does_not_delay_a_run_to_the_end(self, orders: Application) -> None:
        planner = self.planner(orders, 3_600_000)
        planner.fix_end()
        first = planner.next(begun(planner))
        orders.answers = [PlanningOrders()]
        assert planner.next(first)["topics"] == {"in": {"0": 10}, "other": {"0": 10}}


class Recent(Broker):
    """The record at offset 7 is the first of the last hour; the other topic has none of that time."""

    asked: ClassVar[list[int]] = []

    def offsets_at(self, counts: Any, timestamp_ms: int) -> Any:
        self.asked.append(timestamp_ms)
        return {topic: {0: 7} for topic in counts if topic == "in"}


def test_an_offset_reset_to_a_duration_starts_at_records_of_that_age(orders: Application) -> None:
    builder = ms.StreamsBuilder()
    builder.stream(list(TOPICS), offset_reset=timedelta(hours=1)).to("out")
    plan = builder.build().plan("app")
    spec = TopologySpec(plan, lay_out(plan, TOPICS, default_grouper), {}, ErrorPolicies(), {"out": 1})
    made: Any = SourceSpec(spec, Recent(), None, orders, 1_000, 1 << 20, 1, "earliest", Initialization())  # type: ignore[arg-type]
    first = Planner(made).first()
    assert first["topics"] == {"in": {"0": 7}, "other": {"0": 10}}
    assert all(0 <= first["now_ms"] - 3_600_000 - start_ms < 60_000 for start_ms in Recent.asked)


class BrokerWithCommittedOffsets(Broker):
    """Some partitions have a committed offset, optionally set by a reset."""

    def __init__(self, offsets: Any, *, by_reset: bool = False) -> None:
        self.offsets, self.by_reset = offsets, by_reset

    def committed_offsets(self, counts: Any) -> Any:
        return {topic: self.offsets[topic] for topic in counts if topic in self.offsets}

    taken_offsets = committed_offsets

    def reset_offsets(self, counts: Any) -> Any:
        return self.committed_offsets(counts) if self.by_reset else {}


class TestNoOffsetReset:
    def first(self, broker: Broker, reset: str, auto: str = "earliest", **kept: str) -> Any:
        builder = ms.StreamsBuilder()
        stream = builder.stream("in", offset_reset=reset) if reset else builder.stream("in")
        builder.stream("other").to("out")
        if kept:
            stream.to_table(store=kept["store"]).group_by(lambda k, v: (v, v)).count(store="behind")
        plan = builder.build().plan("app")
        layout = lay_out(plan, TOPICS, default_grouper)
        spec = TopologySpec(plan, layout, {}, ErrorPolicies(), {"out": 1})
        made: Any = SourceSpec(spec, broker, None, Application(), 1_000, 1 << 20, 1, auto, Initialization())  # type: ignore[arg-type]
        return Planner(made).first()["topics"]

    @pytest.mark.parametrize(("reset", "auto"), [("none", "earliest"), ("", "none")])
    def test_names_the_topic_and_partition_without_a_committed_offset(self, reset: str, auto: str) -> None:
        broker = BrokerWithCommittedOffsets({"other": {0: 5}})
        with pytest.raises(
            NoOffsetForPartitionError,
            match=r"topic 'in', partition 0: the group has no committed.*millstream reset app",
        ):
            self.first(broker, reset, auto)

    def test_starts_at_committed_offsets(self) -> None:
        assert self.first(BrokerWithCommittedOffsets({"in": {0: 4}}), "none") == {
            "in": {"0": 4},
            "other": {"0": 0},
        }

    def test_refuses_committed_offsets_if_the_stores_are_empty(self) -> None:
        with pytest.raises(
            NoOffsetForPartitionError, match="topic 'in', partition 0: there is no checkpoint"
        ):
            self.first(BrokerWithCommittedOffsets({"in": {0: 4}, "other": {0: 1}}), "none", store="table")

    def test_starts_at_the_offsets_that_a_reset_has_committed(self) -> None:
        internal = "app-behind-repartition"
        broker = BrokerWithCommittedOffsets({"in": {0: 4}, "other": {0: 1}, internal: {0: 0}}, by_reset=True)
        first = self.first(broker, "none", store="table")
        assert first == {"in": {"0": 4}, "other": {"0": 1}, internal: {"0": 0}}

    @pytest.mark.parametrize("auto", ["latest", "none"])
    def test_internal_topics_are_read_from_their_beginning(self, auto: str) -> None:
        broker = BrokerWithCommittedOffsets({"in": {0: 4}, "other": {0: 1}}, by_reset=True)
        assert self.first(broker, "", auto, store="table")["app-behind-repartition"] == {"0": 0}


def test_the_first_micro_batch_of_a_rebuild_reads_nothing_when_it_is_repeated(orders: Application) -> None:
    """Spark does not store the start of that micro-batch. It asks the planner of the next start, which does not rebuild."""
    builder = ms.StreamsBuilder()
    builder.table("in", store=ms.stores.options("rows", changelog="kafka")).to_stream().to("out")
    plan = builder.build().plan("app")
    spec = TopologySpec(plan, lay_out(plan, {"in": 1}, default_grouper), {}, ErrorPolicies(), {"out": 1})
    broker = BrokerWithCommittedOffsets({"in": {0: 7}})

    def source(*, rebuild: bool) -> Any:
        known: Any = (spec, broker, None, orders, 1_000, 1 << 20, 1, "earliest", Initialization(rebuild))
        return SourceSpec(*known)

    first = Planner(source(rebuild=True))
    planned = BatchPlan.from_json(first.next(first.first()))
    assert planned.positions == {"in": {0: 7}}
    again = source(rebuild=False)
    start = BatchPlan.from_json(Planner(again).first())
    (read,) = ReadPlanner(again).reads(start, planned)
    assert (read.ranges, read.ticks, read.initialization) == ([], ["0_0"], Initialization(rebuild=True))


class UnreliableBroker(Broker):
    """Returns the ends, and does not answer the next request once ``lost`` is set."""

    lost = False

    def _answer(self, answer: Any) -> Any:
        if self.lost:
            self.lost = False
            raise BrokerUnavailableError("gone")
        return answer

    def newest(self, partitions: Any) -> Any:
        return self._answer({partition: TimedOffset(9, 9) for partition in partitions})

    def offsets_for_times(self, times: Any) -> Any:
        return {partition: TimedOffset(ms, ms) for partition, ms in times.items() if ms < 10}

    def begin_offsets(self, counts: Any) -> Any:
        return self._answer(super().begin_offsets(counts))


def test_the_planner_waits_for_a_broker_that_is_lost_during_planning(orders: Application) -> None:
    builder = ms.StreamsBuilder()
    builder.stream("in").join(builder.table("other", store="rows"), lambda left, right: left).to("out")
    broker = UnreliableBroker()
    planner = planning(builder, orders, limit=6, broker=broker)
    first = planner.first()
    broker.lost = True
    start = planner.next(first)
    assert BatchPlan.from_json(start).initialization == Initialization(), (
        "a new checkpoint does not begin with an empty micro-batch"
    )
    broker.lost = True
    assert planner.next(start) == start
    assert planner.next(start)["topics"] == {"in": {"0": 2}, "other": {"0": 2}}


class Cluster(Broker):
    """Topics that can be deleted and recreated."""

    end = 10

    def __init__(self, **ids: str) -> None:
        self.ids = ids

    def end_offsets(self, counts: Any) -> Any:
        if not self.ids.keys() >= counts.keys():
            raise TopicNotFoundError("gone")
        return {topic: {0: self.end} for topic in counts}

    log_end_offsets = end_offsets

    def partition_counts(self, topics: Any) -> Any:
        return {topic: 1 for topic in topics if topic in self.ids}

    def topic_facts(self, topics: Any) -> Any:
        return {topic: TopicFacts(self.ids[topic], 1) for topic in topics if topic in self.ids}


class ClusterThatLosesATopic(Cluster):
    """One of its topics is deleted between two requests."""

    vanishing = ""

    def begin_offsets(self, counts: Any) -> Any:
        self.ids.pop(self.vanishing, None)
        if not self.ids.keys() >= counts.keys():
            raise TopicNotFoundError("gone")
        return super().begin_offsets(counts)


class TestTopicsOfAPattern:
    def planner(
        self, cluster: Cluster, orders: Application, *, calls: bool = False, **lineage: Any
    ) -> Planner:
        builder = ms.StreamsBuilder()
        lines = builder.stream(re.compile("[ab]"))
        (lines.map_values_async(str.upper, name="call") if calls else lines).to("out")
        plan = builder.build().plan("app", existing=cluster.ids)
        layout = lay_out(plan, dict.fromkeys(cluster.ids, 1), default_grouper)
        known = Lineage(topic_ids=cluster.ids, **lineage)
        spec = TopologySpec(plan, layout, {}, ErrorPolicies(), {"out": 1}, known)
        made: Any = SourceSpec(spec, cluster, None, orders, 1_000, 1 << 20, 1, "latest", Initialization())  # type: ignore[arg-type]
        return Planner(made)

    def test_are_read_from_their_beginning_when_they_appear(self, orders: Application) -> None:
        first = self.planner(Cluster(a="1"), orders).first()
        assert first["topics"] == {"a": {"0": 10}}
        later = self.planner(Cluster(a="1", b="2"), orders, appeared=frozenset("b"))
        assert later.next(first)["topics"] == {"a": {"0": 10}, "b": {"0": 0}}

    def test_do_not_stop_planning_when_they_are_deleted(self, orders: Application) -> None:
        cluster = Cluster(a="1", b="2")
        planner = self.planner(cluster, orders)
        start = begun(planner)
        del cluster.ids["b"]
        assert planner.next(start) is start
        without = self.planner(Cluster(a="1"), orders)
        assert without.next(start)["topics"] == {"a": {"0": 10}, "b": {"0": 10}}

    def test_may_be_deleted_while_a_micro_batch_is_planned(self, orders: Application) -> None:
        first = self.planner(Cluster(a="1"), orders).first()
        cluster = ClusterThatLosesATopic(a="1", b="2")
        planner = self.planner(cluster, orders, appeared=frozenset("b"))
        cluster.vanishing = "b"
        assert planner.next(first) is first

    def test_are_new_topics_when_they_are_recreated(self, orders: Application) -> None:
        start = begun(self.planner(Cluster(a="1", b="2"), orders))
        again = self.planner(Cluster(a="1", b="other"), orders)
        assert again.next(start)["topics"] == {"a": {"0": 10}, "b": {"0": 0}}

    @pytest.mark.parametrize("calls", [True, False])
    def test_tasks_with_progress_learn_that_a_topic_was_recreated(
        self, orders: Application, *, calls: bool
    ) -> None:
        start = begun(self.planner(Cluster(a="1", b="2"), orders, calls=calls))
        again = self.planner(Cluster(a="1", b="other"), orders, calls=calls)
        plans = BatchPlan.from_json(start), BatchPlan.from_json(again.next(start))
        reads = ReadPlanner(again._spec).reads(*plans)
        assert [ticks for read in reads for ticks in read.ticks] == ["0_0"]
        back = [OffsetRange("b", 0, 0, 0)] if calls else []
        assert [(read.ranges, read.back) for read in reads if read.back or read.ranges] == (
            [([], back)] if calls else []
        )


class TestAnInterruptedMicroBatch:
    """It was planned with b from 10 to 20, and is repeated when topics have changed."""

    pattern = TestTopicsOfAPattern()

    @pytest.fixture
    def interrupted(self, orders: Application) -> tuple[BatchPlan, BatchPlan]:
        cluster = Cluster(a="1", b="2")
        planner = self.pattern.planner(cluster, orders)
        start = begun(planner)
        cluster.end = 20
        return BatchPlan.from_json(start), BatchPlan.from_json(planner.next(start))

    def test_reads_no_records_of_a_recreated_topic(
        self, orders: Application, interrupted: tuple[BatchPlan, BatchPlan]
    ) -> None:
        start, planned = interrupted
        again = self.pattern.planner(Cluster(a="1", b="other"), orders)
        (read,) = again._reads.reads(start, planned)
        assert read.ranges == [OffsetRange("a", 0, 10, 20)], "the offsets are those of the old topic"
        assert again.next(planned.to_json())["topics"] == {"a": {"0": 20}, "b": {"0": 0}}

    def test_skips_a_missing_topic_and_continues_it_when_it_is_back(
        self, orders: Application, interrupted: tuple[BatchPlan, BatchPlan]
    ) -> None:
        start, planned = interrupted
        cluster = Cluster(a="1")
        cluster.end = 20
        without = self.pattern.planner(cluster, orders)
        (read,) = without._reads.reads(start, planned)
        assert read.ranges == [OffsetRange("a", 0, 10, 20)]
        orders.answers = [PlanningOrders(hold=True), PlanningOrders()]
        assert without.next(planned.to_json()) == planned.to_json(), "Spark compares the text"
        assert (orders.last_data.left_out, orders.last_data.positions["b"]) == (True, {0: 10})
        following = without.next(planned.to_json())
        assert following["topics"] == {"a": {"0": 20}, "b": {"0": 10}}
        without.next(following)
        assert not orders.last_data.left_out
        back = self.pattern.planner(Cluster(a="1", b="2"), orders)
        assert back.next(following)["topics"] == {"a": {"0": 20}, "b": {"0": 10}}

    def test_skips_nothing_if_its_topics_have_not_changed(
        self, orders: Application, interrupted: tuple[BatchPlan, BatchPlan]
    ) -> None:
        again = self.pattern.planner(Cluster(a="1", b="2"), orders)
        again._reads.reads(*interrupted)
        assert again.next(interrupted[1].to_json())["topics"] == {"a": {"0": 20}, "b": {"0": 20}}
        assert not orders.last_data.left_out


class TestPartitionTimesOfReaders:
    """They are in the offset of a micro-batch, so that a repeated micro-batch starts with the same times."""

    def planner(self, orders: Application, **source: Any) -> Planner:
        builder = ms.StreamsBuilder()
        builder.stream("in", **source).to("out")
        builder.stream("other").to("out")
        return planning(builder, orders)

    def test_are_the_reported_times_and_never_go_back(self, orders: Application) -> None:
        planner = self.planner(orders, timestamp=ms.timestamps.use_partition_time)
        start = begun(planner)
        assert start["times"] == {}
        orders.answers = [PlanningOrders(times={"in": {0: 70}, "other": {0: 9}}, rates={"in": 3})]
        planned = planner.next(start)
        assert planned["times"] == {"in": {"0": 70}}
        orders.answers = [PlanningOrders(times={"in": {0: 60}})]
        assert planner.next(planned)["times"] == {"in": {"0": 70}}

    def test_are_those_of_the_checkpoint_until_the_tasks_have_reported(self, orders: Application) -> None:
        before = self.planner(orders, timestamp=ms.timestamps.use_partition_time)
        first = before.next(before.first())
        orders.answers = [PlanningOrders(times={"in": {0: 70}})]
        planned = before.next(first)
        orders.answers = [PlanningOrders()]
        again = self.planner(orders, timestamp=ms.timestamps.use_partition_time)
        assert again.next(planned)["times"] == {"in": {"0": 70}}

    def test_are_not_written_if_no_reader_extracts_timestamps(self, orders: Application) -> None:
        planner = self.planner(orders)
        orders.answers = [PlanningOrders(times={"in": {0: 70}})]
        assert "times" not in begun(planner)


class TestOrigins:
    """An offset contains the starts of all micro-batches of which a record may be unfinished behind the shuffle."""

    def planner(self, orders: Application) -> Planner:
        builder = ms.StreamsBuilder()
        builder.stream("in").repartition(name="again").map_values_async(str.upper).to("out")
        builder.stream("other").to("out")
        return planning(builder, orders)

    def test_are_sent_to_the_application_once_all_tasks_have_reported(self, orders: Application) -> None:
        planner = self.planner(orders)
        start = begun(planner)
        assert (start["origins"], orders.last_data.origins) == ([], None)
        orders.answers = [PlanningOrders(rates={"in": 3})]
        planned = planner.next(start)
        assert planned["origins"] == [[planned["batch"], {"in": {"0": 0}}]]
        planner.next(planned)
        assert begun_to_json(orders.last_data.origins) == planned["origins"]

    def test_survive_a_restart_until_the_unfinished_records_are_known(self, orders: Application) -> None:
        before = self.planner(orders)
        orders.answers = [PlanningOrders(rates={"in": 3})]
        planned = before.next(begun(before))
        orders.answers = [PlanningOrders(oldest={})]
        after = self.planner(orders)
        again = after.next(planned)
        assert again["origins"] == planned["origins"]
        orders.answers = [PlanningOrders(oldest={"in": planned["batch"]})]
        last = after.next(again)
        assert last["origins"] == [*planned["origins"], [last["batch"], {"in": {"0": 3}}]]

    def test_are_not_written_if_no_record_can_stay_unfinished(self, planner: Planner) -> None:
        assert "origins" not in planner.next(begun(planner))
