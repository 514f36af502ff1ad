"""Planning under orders: what is paused is left out, and a run to the end waits for it and says so once."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import penstock as ps
from penstock.core.engine.policy import ErrorPolicies
from penstock.core.plan.layout import default_grouper, lay_out
from penstock.drivers.spark.planner import Planner
from penstock.drivers.spark.spec import SourceSpec, TopologySpec

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


class Orders:
    """What the application answers; each planning hears the next answer, and the last one again and again."""

    def __init__(self) -> None:
        self.answers: list[dict[str, Any]] = [{}]
        self.asked = 0
        self.told: Any = None

    def ask(self, question: str, data: Any) -> Any:
        self.asked += 1
        self.told = data
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.fixture
def orders() -> Orders:
    return Orders()


class Clock:
    """A clock that stands where it was put."""

    now_ms = 5

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def planner(orders: Orders, clock: Clock) -> Planner:
    builder = ps.StreamsBuilder()
    builder.stream(list(TOPICS)).to("out")
    plan = builder.build().plan("app")
    layout = lay_out(plan, TOPICS, default_grouper)
    spec = TopologySpec(plan, layout, {}, ErrorPolicies(), {"out": 1})
    known: Any = (spec, Broker(), None, orders, 1_000, 1 << 20, 1, "earliest", {})
    made = SourceSpec(*known, clock=clock)
    return Planner(made)


def begun(planner: Planner) -> dict[str, Any]:
    """Plan the first micro-batch of a run, which reads nothing."""
    return planner.next(planner.first())


def test_what_is_paused_is_left_where_it_is(planner: Planner, orders: Orders) -> None:
    start = begun(planner)
    orders.answers = [{"paused": ["in"]}]
    planned = planner.next(start)
    assert planned["topics"] == {"in": {"0": 0}, "other": {"0": 10}}
    assert planner.next(planned) is planned
    orders.answers = [{}]
    assert planner.next(planned)["topics"] == {"in": {"0": 10}, "other": {"0": 10}}


def test_a_throttled_topic_does_not_hold_up_others(planner: Planner, orders: Orders) -> None:
    start = begun(planner)
    orders.answers = [{"rates": {"in": 3}}]
    assert planner.next(start)["topics"] == {"in": {"0": 3}, "other": {"0": 10}}


def test_a_run_to_the_end_waits_for_what_is_paused_and_says_so_once(
    planner: Planner, orders: Orders, caplog: pytest.LogCaptureFixture
) -> None:
    planner.fix_end()
    start = begun(planner)
    paused: dict[str, Any] = {"paused": ["in"]}
    orders.answers = [paused]
    planned = planner.next(start)
    orders.asked, orders.answers = 0, [paused, paused, paused, {}]
    with caplog.at_level(logging.WARNING, "penstock.source"):
        resumed = planner.next(planned)
    assert orders.asked == 4
    assert resumed["topics"] == {"in": {"0": 10}, "other": {"0": 10}}
    assert caplog.messages == ["the run to the end waits until what is paused is resumed: in"]
    assert planner.next(resumed) is resumed


def test_a_run_to_the_end_can_be_stopped_while_it_waits(planner: Planner, orders: Orders) -> None:
    planner.fix_end()
    start = begun(planner)
    orders.answers = [{"paused": list(TOPICS)}, {"paused": list(TOPICS)}, {"hold": True}]
    assert planner.next(start) is start


def test_every_micro_batch_has_the_time_of_the_clock(planner: Planner, orders: Orders, clock: Clock) -> None:
    start = begun(planner)
    assert start["now_ms"] == 5
    clock.now_ms = 70
    assert planner.next(start)["now_ms"] == 70
    assert orders.told["now_ms"] == 70
