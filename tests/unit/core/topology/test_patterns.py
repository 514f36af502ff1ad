"""Patterns: the topics that they match, refused patterns, and patterns in checkpoints."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

import millstream as ms
from millstream.core.model.errors import TopicNotFoundError, TopologyError
from millstream.core.topology.evolution import ComparedPart, Remembered, appeared, continued, parts_of
from millstream.core.topology.layout import lay_out

ORDERS = re.compile("orders-.*")


def counting(pattern: re.Pattern[str] = ORDERS) -> ms.Topology:
    builder = ms.StreamsBuilder()
    builder.stream(pattern).group_by_key().count(store="counts").to_stream().to("out", value=ms.serdes.int64)
    return builder.build()


class TestAPattern:
    def test_matches_whole_topic_names(self) -> None:
        plan = counting().plan("app", existing=["orders-us", "orders-eu", "my-orders-eu", "orders"])
        assert plan.external_topics == ("orders-eu", "orders-us")
        assert plan.chosen_topics == {"orders-eu", "orders-us"}

    def test_does_not_match_internal_topics(self) -> None:
        existing = ["__consumer_offsets", "app-counts-changelog", "app-x-repartition", "app-commits", "a"]
        assert counting(re.compile(".*")).plan("app", existing=existing).external_topics == ("a",)

    def test_matches_no_topics_before_the_existing_ones_are_known(self) -> None:
        plan = counting().plan("app")
        assert plan.external_topics == ()
        assert lay_out(plan, {}).tasks == {}

    def test_is_shown_in_descriptions_and_diagrams(self) -> None:
        topology = counting()
        assert "Source: KSTREAM-SOURCE-0000000000 (topics: orders-.*)" in topology.describe()
        assert "reads  topics that match orders-.*" in str(topology.plan("app"))
        assert "orders-.*" in topology.dot()


@pytest.mark.parametrize(
    "build",
    [
        lambda: ms.Topology().add_source("a", "orders-eu").add_source("b", ORDERS),
        lambda: ms.Topology().add_source("a", ORDERS).add_source("b", ["x", "orders-eu"]),
    ],
)
def test_a_pattern_that_matches_a_topic_of_another_source_is_refused(build: Callable[[], object]) -> None:
    with pytest.raises(
        TopologyError, match=r"'orders-eu' has two sources, 'a' and 'b': the pattern 'orders-"
    ):
        build()


def test_two_patterns_that_match_one_topic_are_refused_once_the_topic_exists() -> None:
    topology = ms.Topology().add_source("a", ORDERS).add_source("b", re.compile(".*-eu"))
    topology.plan(existing=["orders-us", "clicks-eu"])
    with pytest.raises(
        TopologyError, match=r"'orders-eu' would have two sources: 'a', and 'b' by its pattern"
    ):
        topology.plan(existing=["orders-eu"])


def test_a_repartition_downstream_of_a_pattern_needs_a_matching_topic_for_its_partition_count() -> None:
    builder = ms.StreamsBuilder()
    builder.stream(ORDERS).group_by(lambda _, v: v).count(store="counts")
    topology = builder.build()
    with pytest.raises(TopicNotFoundError, match="no topic matches the pattern upstream of repartition"):
        lay_out(topology.plan("app"), {})
    plan = topology.plan("app", existing=["orders-eu", "orders-us"])
    assert lay_out(plan, {"orders-eu": 2, "orders-us": 3}).partitions["app-counts-repartition"] == 3


class TestACheckpoint:
    def test_keeps_its_state_when_no_matched_topic_remains(self) -> None:
        old = counting().plan("app", existing=["orders-2025"])
        parts = parts_of(old, lay_out(old, {"orders-2025": 2}), {})
        assert parts == {0: ComparedPart(("orders-2025", "/orders-.*/"), ("counts",), 2)}
        plan_without_topics = counting().plan("app")
        assert parts_of(continued(plan_without_topics, parts), lay_out(plan_without_topics, {}), parts)[
            0
        ] == ComparedPart(("/orders-.*/",), ("counts",), 2)

    def test_identifies_a_subtopology_without_stores_by_its_pattern(self) -> None:
        topology = ms.Topology().add_source("new", "other").add_source("in", ORDERS)
        plan = continued(
            topology.plan("app", existing=["orders-b"]), {0: ComparedPart(("/orders-.*/",), (), 1)}
        )
        assert plan.subtopologies[0].source_topics == ("orders-b",)

    def test_shows_which_topics_are_new(self) -> None:
        plan = counting().plan("app", existing=["orders-a", "orders-b"])
        known = Remembered(
            parts={0: ComparedPart(("orders-a", "/orders-.*/"), (), 1)}, positions={"orders-a": {0: 7}}
        )
        assert appeared(plan, known) == {"orders-b"}
        assert appeared(plan, Remembered(positions={"orders-a": {0: 7}})) == set()
