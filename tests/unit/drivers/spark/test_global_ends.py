"""End offsets of global tables: what the planner writes into an offset, and which tasks receive it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import millstream as ms
from millstream.core.model.errors import BrokerUnavailableError, OffsetsLostError
from millstream.core.model.ids import TaskId
from millstream.core.model.positions import Offsets
from millstream.core.ports import BatchId
from millstream.core.runtime.batch_plan import BatchPlan, Initialization
from millstream.core.topology.evolution import Lineage, Remembered
from millstream.core.topology.layout import lay_out
from millstream.drivers.spark import wire
from millstream.drivers.spark.control import ControlAddress
from millstream.drivers.spark.driver.placement import grouping_keys
from millstream.drivers.spark.executor.task_messages import decode_global_ends, with_global_ends
from millstream.drivers.spark.planner.global_ends import GlobalEnds, global_ends
from millstream.drivers.spark.planner.planner import Planner
from millstream.drivers.spark.spec import SourceSpec, TopologySpec
from unit.drivers.topics import FakeTopic

TOPIC = "products"


def topology(*, reads: bool = True) -> ms.Topology:
    builder = ms.StreamsBuilder()
    table = builder.global_table(TOPIC, store="goods")
    builder.stream("counted").group_by_key().count(store="counts").to_stream().map_values(str).to("counts")
    if reads:
        builder.stream("in").join(table, lambda key, value: value, lambda value, row: row).to("out")
    return builder.build()


def spec(topic: FakeTopic, *, skip_lost: bool = False, known: bool = True) -> SourceSpec:
    plan = topology().plan("app")
    layout = lay_out(plan, {"in": 2, "counted": 1})
    lineage = Lineage({}, {TOPIC: topic.id}, {})
    counts = {TOPIC: len(topic.entries)} if known else {}
    application = TopologySpec(
        plan, layout, grouping_keys(layout.tasks), ms.ErrorPolicies(), {}, lineage, counts
    )
    address = ControlAddress("/nowhere", b"")
    return SourceSpec(
        application, topic, topic, address, 100, 1 << 20, 2, "earliest", Initialization(), skip_lost=skip_lost
    )


@pytest.fixture
def topic() -> FakeTopic:
    products_topic = FakeTopic(TOPIC, 2)
    for number in range(6):
        products_topic.write(f"p{number}", "x")
    return products_topic


def not_recreated(topics: Collection[str]) -> bool:
    return False


def batch(topic: FakeTopic | None = None, *, topic_id: str = "first") -> BatchPlan:
    """Return a plan with the end offsets of a topic; without a topic, a plan without end offsets."""
    if topic is None:
        return BatchPlan(BatchId("c", 0), Remembered())
    return BatchPlan(
        BatchId("c", 0), Remembered(topic_ids={TOPIC: topic_id}), global_ends={TOPIC: topic.ends}
    )


def ends_after(ends: GlobalEnds, start: BatchPlan, recreated: Any = not_recreated) -> Offsets | None:
    planned = ends.with_ends(batch(), start, recreated)
    assert planned is not None
    return planned.global_ends


def planned(topic: FakeTopic, start: BatchPlan, **options: Any) -> Any:
    ends = GlobalEnds(spec(topic, **options))
    ends.ask()
    after = ends_after(ends, start)
    assert after is not None
    return after[TOPIC]


class TestPlanning:
    def test_writes_the_end_offsets_into_the_offset(self, topic: FakeTopic) -> None:
        assert planned(topic, batch()) == topic.ends
        start = batch(topic)
        topic.write("p1", "y")
        assert planned(topic, start) == topic.ends

    def test_adds_nothing_to_topologies_without_global_tables(self, topic: FakeTopic) -> None:
        topic.available = False
        ends = GlobalEnds(spec(topic, known=False))
        ends.ask()
        assert not ends.unknown(batch())
        assert ends_after(ends, batch()) is None

    def test_continues_with_the_known_ends_while_no_broker_answers(self, topic: FakeTopic) -> None:
        ends = GlobalEnds(spec(topic))
        start = batch(topic)
        topic.available = False
        with pytest.raises(BrokerUnavailableError):
            ends.ask()
        assert not ends.unknown(start)
        assert ends_after(ends, start) == start.global_ends

    def test_waits_for_a_broker_until_the_ends_are_known(self, topic: FakeTopic) -> None:
        ends = GlobalEnds(spec(topic))
        assert ends.unknown(batch())
        ends.ask()
        assert not ends.unknown(batch())

    def test_fails_if_a_topic_has_become_shorter(self, topic: FakeTopic) -> None:
        start = batch(topic)
        topic.entries[0].pop()
        with pytest.raises(OffsetsLostError, match="topic 'products' of a global store ends before"):
            planned(topic, start)

    def test_accepts_a_shorter_topic_if_lost_records_are_skipped(self, topic: FakeTopic) -> None:
        start = batch(topic)
        topic.entries[0].pop()
        assert planned(topic, start, skip_lost=True) == topic.ends

    def test_does_not_mistake_a_topic_with_an_open_transaction_for_a_shorter_one(
        self, topic: FakeTopic
    ) -> None:
        start = batch(topic)
        before = topic.ends
        topic.open_records = [1, 0]
        topic.write("p1", "y")
        topic.write("p0", "y")
        after = planned(topic, start)
        assert all(after[partition] >= end for partition, end in before.items())

    def test_stops_if_a_topic_was_recreated(self, topic: FakeTopic) -> None:
        start = batch(topic)
        topic.entries = [[], []]
        asked: list[set[str]] = []

        def recreated_meanwhile(topics: Collection[str]) -> bool:
            asked.append(set(topics))
            return True

        ends = GlobalEnds(spec(topic))
        ends.ask()
        assert ends.with_ends(batch(), start, recreated_meanwhile) is None
        assert asked == [{TOPIC}]

    def test_accepts_a_topic_that_was_recreated_before_the_start(self, topic: FakeTopic) -> None:
        start = batch(topic)
        topic.entries = [[], []]
        topic.id = "second"
        assert planned(topic, start) == {0: 0, 1: 0}


class TestReading:
    def test_uses_the_planned_ends(self, topic: FakeTopic) -> None:
        end = batch(topic)
        ends = topic.ends
        topic.write("p1", "y")
        assert global_ends(end, spec(topic)) == {TOPIC: ends}

    def test_uses_the_current_ends_if_the_plan_contains_none(self, topic: FakeTopic) -> None:
        assert global_ends(batch(), spec(topic)) == {TOPIC: topic.ends}

    def test_uses_no_ends_in_topologies_without_global_tables(self, topic: FakeTopic) -> None:
        assert global_ends(batch(topic), spec(topic, known=False)) is None

    def test_sends_the_ends_once_to_each_task_that_reads_a_table(self, topic: FakeTopic) -> None:
        known = spec(topic).topology
        tasks = [TaskId(1, 0), TaskId(0, 0), TaskId(1, 1), TaskId(1, 0)]
        rows = [
            wire.arrow_rows(
                [(known.groups[task], wire.RECORDS, str(task), "in", 0, "", 0, 1, "c:7", 9, 0, b"")]
            )
            for task in tasks
        ]
        rows_with_ends = pa.Table.from_batches(with_global_ends(rows, known, {TOPIC: {0: 7}})).to_pylist()
        assert [(row["task"], row["kind"]) for row in rows_with_ends] == [
            ("1_0", wire.GLOBAL),
            ("1_0", wire.RECORDS),
            ("0_0", wire.RECORDS),
            ("1_1", wire.GLOBAL),
            ("1_1", wire.RECORDS),
            ("1_0", wire.RECORDS),
        ]
        first = rows_with_ends[0]
        assert (first["group"], first["batch"], first["now_ms"], decode_global_ends(first["payload"])) == (
            known.groups[tasks[0]],
            "c:7",
            9,
            {TOPIC: {0: 7}},
        )


class Brokers:
    """The topics of one cluster. Implements ``TopicReader`` as far as the planner needs it."""

    def __init__(self, *topics: FakeTopic) -> None:
        self._topics = topics
        self.asked: list[str] = []

    def end_offsets(self, partitions: Mapping[str, int]) -> Offsets:
        self.asked.extend(partitions)
        return {name: ends for topic in self._topics for name, ends in topic.end_offsets(partitions).items()}

    def begin_offsets(self, partitions: Mapping[str, int]) -> Offsets:
        return {
            name: offsets
            for topic in self._topics
            for name, offsets in topic.begin_offsets(partitions).items()
        }

    def committed_offsets(self, partitions: Mapping[str, int]) -> Offsets:
        return {}

    def reset_offsets(self, partitions: Mapping[str, int]) -> Offsets:
        return {}


def test_a_repeated_micro_batch_uses_the_current_ends_of_a_recreated_topic(topic: FakeTopic) -> None:
    plan = replace(batch(topic, topic_id="earlier"), global_ends={TOPIC: {0: 40, 1: 40}})
    assert global_ends(plan, spec(topic)) == {TOPIC: topic.ends}
    same_topic = replace(plan, topology=Remembered(topic_ids={TOPIC: topic.id}))
    assert global_ends(same_topic, spec(topic)) == {TOPIC: {0: 40, 1: 40}}


class SilentApplication:
    """An application without orders for the planner."""

    def ask(self, question: str, data: Any) -> Any:
        return None


class TestThePlanner:
    @pytest.fixture
    def orders(self) -> FakeTopic:
        return FakeTopic("in", 2)

    @pytest.fixture
    def brokers(self, topic: FakeTopic, orders: FakeTopic) -> Brokers:
        return Brokers(orders, FakeTopic("counted", 1), topic)

    @pytest.fixture
    def planner(self, brokers: Brokers, topic: FakeTopic) -> Planner:
        # The fakes have only the methods that the planner uses.
        return Planner(replace(spec(topic), broker=brokers, control=SilentApplication()))  # type: ignore[arg-type]

    def test_plans_the_current_ends_of_the_table_with_each_micro_batch(
        self, planner: Planner, topic: FakeTopic, orders: FakeTopic
    ) -> None:
        begun = planner.next(planner.first())
        assert begun["global"] == {TOPIC: {str(p): end for p, end in topic.ends.items()}}
        topic.write("p1", "y")
        orders.write("k", "p1")
        after = planner.next(begun)
        assert after["global"] == {TOPIC: {str(p): end for p, end in topic.ends.items()}}
        assert after["batch"] == begun["batch"] + 1

    def test_plans_no_micro_batch_for_the_table_alone(self, planner: Planner, topic: FakeTopic) -> None:
        begun = planner.next(planner.first())
        topic.write("p1", "y")
        assert planner.next(begun) is begun

    def test_asks_for_the_ends_of_the_table_after_those_of_the_inputs(
        self, planner: Planner, brokers: Brokers
    ) -> None:
        start = planner.first()
        brokers.asked.clear()
        planner.next(start)
        assert brokers.asked.index(TOPIC) > brokers.asked.index("in")

    def test_starts_when_the_ends_of_the_table_are_known(self, planner: Planner, topic: FakeTopic) -> None:
        start = planner.first()
        topic.available = False
        assert planner.next(start) is start
        topic.available = True
        assert "begin" in planner.next(start)


def test_only_subtopologies_that_read_a_table_have_its_global_store() -> None:
    counting, joining = topology().plan("app").subtopologies
    assert (list(counting.global_stores), list(joining.global_stores)) == ([], ["goods"])
