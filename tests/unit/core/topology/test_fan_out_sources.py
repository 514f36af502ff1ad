"""Sources that read split partitions: fan-out topics join the tasks of the partitions that were split."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest

import millstream as ms
from millstream.core.model.errors import SettingsError, TopologyError
from millstream.core.model.positions import Offsets
from millstream.core.topology.evolution import Remembered, appeared, parts_from_json
from millstream.core.topology.layout import Layout, lay_out
from millstream.core.topology.plan import Plan
from millstream.core.topology.routing import check_routing, routing_of
from millstream.edge.planning.plans import check_fan_out, check_split_topics
from millstream.edge.settings.settings import Settings

P = ms.TopicPartition
EXISTING = {
    "orders": 2,
    "rates": 2,
    "orders-fanout": 1,
    "orders-fanout-1": 3,
    "rates-fanout-0": 4,
    "other": 9,
}
REQUIRED_SETTINGS: dict[str, Any] = {"bootstrap_servers": "localhost:1", "state_dir": "/nowhere"}


def join_topology(*, repartitioned: bool = False) -> ms.Topology:
    builder = ms.StreamsBuilder()
    rates = builder.table("rates")
    orders = builder.stream("orders", fan_out=True)
    if repartitioned:
        orders = orders.select_key(lambda key, value: value)
    orders.join(rates, lambda order, rate: order + rate).to("out")
    return builder.build()


def laid_out(plan: Plan) -> Layout:
    return lay_out(plan, EXISTING)


def tasks(layout: Layout) -> dict[str, list[str]]:
    return {str(task): sorted(map(str, group)) for task, group in layout.tasks.items()}


def test_fan_out_topics_of_split_partitions_are_read_with_the_source_topic() -> None:
    topology = join_topology()
    assert topology.plan().external_topics == ("rates", "orders")
    plan = topology.plan(existing=EXISTING)
    assert plan.external_topics == ("rates", "orders", "orders-fanout-1")
    assert plan.split_topics == ("orders",)
    assert plan.chosen_topics == {"orders-fanout-1"}
    assert plan.topics_vary
    assert not plan.has_patterns


def test_partitions_of_a_fan_out_topic_belong_to_the_task_of_the_split_partition() -> None:
    plan = join_topology().plan(existing=EXISTING)
    assert tasks(laid_out(plan)) == {
        "0_0": ["orders-0", "rates-0"],
        "0_1": ["orders-1", "orders-fanout-1-0", "orders-fanout-1-1", "orders-fanout-1-2", "rates-1"],
    }


def test_a_grouper_receives_only_the_partitions_of_the_original_topics() -> None:
    def reversed_groups(partitions: Mapping[str, int]) -> Sequence[frozenset[ms.TopicPartition]]:
        assert partitions == {"orders": 2, "rates": 2}
        return [frozenset(P(topic, number) for topic in partitions) for number in (1, 0)]

    layout = lay_out(join_topology().plan(existing=EXISTING), EXISTING, reversed_groups)
    assert {P("orders-fanout-1", 2), P("orders", 1)} <= layout.tasks[ms.TaskId(0, 0)]


def test_fan_out_topics_do_not_affect_the_partition_count_of_a_repartition() -> None:
    plan = join_topology(repartitioned=True).plan(existing={**EXISTING, "orders-fanout-1": 50})
    layout = laid_out(plan)
    assert [layout.partitions[topic] for topic in plan.internal_topics] == [2]


def test_state_stays_in_its_task_when_a_partition_is_split() -> None:
    before, after = join_topology().plan(), join_topology().plan(existing=EXISTING)
    check_routing(routing_of(before, laid_out(before)), routing_of(after, laid_out(after)))


@pytest.mark.parametrize(
    ("positions", "new"),
    [
        ({}, []),
        ({"orders": {0: 5}}, ["orders-fanout-1"]),
        ({"orders": {0: 5}, "orders-fanout-1": {0: 1}}, []),
    ],
)
def test_a_new_fan_out_topic_is_read_from_its_beginning_if_the_partition_was_read_before(
    positions: Offsets, new: Collection[str]
) -> None:
    before = Remembered(parts=parts_from_json({"0": [["orders", "rates"], [], 2]}), positions=positions)
    assert appeared(join_topology().plan(existing=EXISTING), before) == set(new)


def test_a_pattern_cannot_be_read_with_fan_out() -> None:
    with pytest.raises(TopologyError, match=r"match 'orders-\.\*', so fan_out=True does not fit"):
        ms.StreamsBuilder().stream(re.compile("orders-.*"), fan_out=True)


def test_streams_of_one_topic_must_agree_about_fan_out() -> None:
    builder = ms.StreamsBuilder()
    builder.stream("orders", fan_out=True)
    with pytest.raises(TopologyError, match=r"fan_out=True and by .* with fan_out=False"):
        builder.stream("orders")


def test_a_split_topic_cannot_be_read_without_fan_out() -> None:
    builder = ms.StreamsBuilder()
    builder.stream("orders").to("out")
    plan = builder.build().plan()
    with pytest.raises(TopologyError, match="Read topic 'orders' with fan_out=True"):
        check_split_topics(plan, EXISTING)
    check_split_topics(plan, EXISTING.keys() - {"orders-fanout-1"})
    check_split_topics(join_topology().plan(existing=EXISTING), EXISTING.keys() - {"rates-fanout-0"})


def test_a_split_topic_cannot_be_a_global_table() -> None:
    builder = ms.StreamsBuilder()
    builder.global_table("orders")
    builder.stream("rates").to("out")
    with pytest.raises(TopologyError, match="A global table would not read"):
        check_split_topics(builder.build().plan(), EXISTING)


def test_reading_with_fan_out_requires_committed_records() -> None:
    with pytest.raises(SettingsError, match="isolation_level='read_committed'"):
        check_fan_out(join_topology().plan(), Settings(**REQUIRED_SETTINGS))
    check_fan_out(join_topology().plan(), Settings(**REQUIRED_SETTINGS, isolation_level="read_committed"))
    check_fan_out(join_topology().plan(), Settings(**REQUIRED_SETTINGS, processing_guarantee="exactly_once"))


def plan_with_sink(*, fan_out: bool) -> Plan:
    builder = ms.StreamsBuilder()
    builder.stream("other").to("orders", fan_out=fan_out)
    return builder.build().plan()


def test_a_split_topic_cannot_be_written_without_fan_out() -> None:
    with pytest.raises(TopologyError, match="Write topic 'orders' with fan_out=True"):
        check_split_topics(plan_with_sink(fan_out=False), EXISTING)
    check_split_topics(plan_with_sink(fan_out=True), EXISTING)


def test_writing_with_fan_out_requires_at_least_once() -> None:
    with pytest.raises(SettingsError, match="processing_guarantee='at_least_once'"):
        check_fan_out(
            plan_with_sink(fan_out=True), Settings(**REQUIRED_SETTINGS, processing_guarantee="exactly_once")
        )
    check_fan_out(plan_with_sink(fan_out=True), Settings(**REQUIRED_SETTINGS))


def test_a_function_that_chooses_topics_cannot_be_combined_with_fan_out() -> None:
    with pytest.raises(TopologyError, match="topics that a function chooses, so fan_out=True does not fit"):
        ms.StreamsBuilder().stream("other").to(lambda key, value, context: value, fan_out=True)
