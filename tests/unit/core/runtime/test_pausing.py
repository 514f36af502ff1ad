"""Pausing: which topics a pause request selects, and which sub-topologies then rest."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import millstream as ms
from millstream.core.model.errors import ControlError
from millstream.core.runtime.pausing import chosen_topics, resting
from millstream.core.topology.plan import Plan

INTERNAL = "app-words-repartition"


def two_parts_and_a_shuffle() -> Plan:
    """Sub-topology 0 reads lines and notes and feeds 1 through the shuffle; 2 reads orders and prices."""
    builder = ms.StreamsBuilder()
    words = builder.stream(["lines", "notes"]).select_key(lambda _, value: value)
    words.repartition(name="words").to_table(store="words")
    orders, prices = builder.stream("orders"), builder.stream("prices")
    orders.merge(prices).group_by_key().count(store="counts").to_stream().to("out")
    return builder.build().plan("app")


def behind_a_store() -> Plan:
    """Sub-topology 0 reads people and feeds 1 through a topic on the broker."""
    builder = ms.StreamsBuilder()
    people = builder.table("people", key=ms.serdes.string, value=ms.serdes.string, store="people")
    regions = people.group_by(lambda key, value: (value, key), name="words")
    regions.count(store="regions").to_stream().to("out")
    return builder.build().plan("app")


def test_the_plans_read_the_topics_that_these_tests_assume() -> None:
    plan = two_parts_and_a_shuffle()
    assert plan.broker_topics == ("lines", "notes", "orders", "prices")
    assert plan.internal_topics[INTERNAL].through_shuffle
    assert behind_a_store().broker_topics == ("people", INTERNAL)


@pytest.mark.parametrize(
    ("topics", "subtopologies", "chosen"),
    [
        (None, None, {"lines", "notes", "orders", "prices"}),
        (["lines"], None, {"lines"}),
        (None, [2], {"orders", "prices"}),
        (["lines"], [2], {"lines", "orders", "prices"}),
        ([], None, set()),
        (None, [], set()),
    ],
    ids=["everything", "a topic", "a sub-topology", "both", "no topic", "no sub-topology"],
)
def test_a_pause_request_selects_topics(
    topics: Sequence[str] | None, subtopologies: Sequence[int] | None, chosen: set[str]
) -> None:
    assert chosen_topics(two_parts_and_a_shuffle(), topics, subtopologies) == chosen


def test_an_internal_topic_on_the_broker_is_paused_by_its_name_or_its_reader() -> None:
    assert chosen_topics(behind_a_store(), [INTERNAL]) == {INTERNAL}
    assert chosen_topics(behind_a_store(), None, [1]) == {INTERNAL}


@pytest.mark.parametrize(
    ("topics", "subtopologies", "expected"),
    [
        (["lines", "line"], None, "does not read 'line' from the broker; it reads 'lines', 'notes', 'orders', 'prices'"),
        ([INTERNAL], None, f"does not read '{INTERNAL}'"),
        (None, [3], "has no sub-topology 3; it has 0, 1, 2"),
        (None, [1], "reads only from Spark's shuffle; name the sub-topologies that feed it: sub-topology 0"),
    ],
    ids=["unknown topic", "the shuffle", "unknown sub-topology", "behind the shuffle"],
)  # fmt: skip
def test_unknown_names_are_refused_with_a_list_of_the_known_names(
    topics: Sequence[str] | None, subtopologies: Sequence[int] | None, expected: str
) -> None:
    with pytest.raises(ControlError) as caught:
        chosen_topics(two_parts_and_a_shuffle(), topics, subtopologies)
    assert expected in str(caught.value)


def test_a_single_string_is_not_a_list_of_topics() -> None:
    with pytest.raises(TypeError, match=r"such as \['lines'\]"):
        chosen_topics(two_parts_and_a_shuffle(), "lines")


@pytest.mark.parametrize(
    ("paused", "rests"),
    [
        ([], set()),
        (["lines"], set()),
        (["lines", "notes"], {0, 1}),
        (["orders"], set()),
        (["orders", "prices"], {2}),
        (["lines", "notes", "orders", "prices"], {0, 1, 2}),
    ],
    ids=["nothing", "one of two", "and what it feeds", "one of two again", "without a shuffle", "everything"],
)
def test_a_sub_topology_rests_when_no_record_can_reach_it(paused: list[str], rests: set[int]) -> None:
    assert resting(two_parts_and_a_shuffle(), paused) == rests


def test_a_sub_topology_that_reads_an_internal_broker_topic_rests_when_the_topic_is_paused() -> None:
    assert resting(behind_a_store(), ["people"]) == {0}
    assert resting(behind_a_store(), [INTERNAL]) == {1}
    assert resting(behind_a_store(), ["people", INTERNAL]) == {0, 1}


def test_a_fan_out_topic_follows_the_topic_that_was_split() -> None:
    builder = ms.StreamsBuilder()
    builder.stream("orders", fan_out=True).group_by_key().count(store="counts").to_stream().to("out")
    plan = builder.build().plan("app", existing=["orders", "orders-fanout-0"])
    assert chosen_topics(plan) == chosen_topics(plan, None, [0]) == {"orders"}
    with pytest.raises(
        ControlError, match="does not read 'orders-fanout-0' from the broker; it reads 'orders'"
    ):
        chosen_topics(plan, ["orders-fanout-0"])
    assert resting(plan, ["orders"]) == {0}
