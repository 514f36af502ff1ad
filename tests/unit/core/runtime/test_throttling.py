"""Throttling: how many records a token bucket admits, second by second."""

from __future__ import annotations

import pytest

from millstream.core.model.positions import Offsets
from millstream.core.runtime.throttling import Throttle

FAR: Offsets = {"t": {0: 1_000_000}}


def planned(throttle: Throttle, positions: Offsets, ends: Offsets) -> Offsets:
    """Plan as far as the throttle allows, and take the tokens."""
    reached = throttle.limited(positions, ends)
    throttle.take_tokens(positions, reached)
    return reached


@pytest.mark.parametrize(
    ("times_ms", "counts"),
    [
        ([0], [10]),
        ([0, 0], [10, 0]),
        ([0, 99, 100, 1_000], [10, 0, 1, 9]),
        ([0, 5_000, 5_001], [10, 50, 0]),
    ],
    ids=["a second's burst", "nothing twice", "as tokens come", "a long micro-batch counts in full"],
)
def test_records_are_planned_as_tokens_come(times_ms: list[int], counts: list[int]) -> None:
    throttle, positions = Throttle(), {"t": {0: 0}}
    for now_ms, count in zip(times_ms, counts):
        throttle.advance({"t": 10}, now_ms)
        reached = planned(throttle, positions, FAR)
        assert reached["t"][0] - positions["t"][0] == count
        positions = reached


def test_unused_tokens_are_kept_for_only_one_second() -> None:
    throttle, positions = Throttle(), {"t": {0: 0}}
    for now_ms in range(0, 60_000, 100):
        throttle.advance({"t": 10}, now_ms)
        assert planned(throttle, positions, positions) == positions
    throttle.advance({"t": 10}, 60_000)
    assert planned(throttle, positions, FAR) == {"t": {0: 11}}


def test_a_lower_rate_applies_at_once_and_a_limit_can_be_lifted() -> None:
    throttle, positions = Throttle(), {"t": {0: 0}}
    throttle.advance({"t": 1_000}, 0)
    throttle.advance({"t": 2}, 500)
    assert planned(throttle, positions, FAR) == {"t": {0: 3}}
    throttle.advance({}, 600)
    assert planned(throttle, positions, FAR) == FAR


def test_other_topics_are_not_limited_and_paused_topics_stay_excluded() -> None:
    throttle = Throttle()
    throttle.advance({"t": 2, "paused": 2}, 0)
    positions = {"t": {0: 0, 1: 0}, "u": {0: 0}, "paused": {0: 0}}
    assert throttle.limited(positions, {"t": {0: 9, 1: 9, 2: 9}, "u": {0: 9}}) == {
        "t": {0: 1, 1: 1},
        "u": {0: 9},
    }


def test_partitions_share_the_tokens_and_take_turns_with_single_ones() -> None:
    throttle, positions = Throttle(), {"t": {0: 0, 1: 0, 2: 0}}
    ends = {"t": {0: 1_000, 1: 1, 2: 1_000}}
    throttle.advance({"t": 10}, 0)
    positions = planned(throttle, positions, ends)
    assert positions == {"t": {0: 5, 1: 1, 2: 4}}
    for second in range(100, 500, 100):  # one token at a time
        throttle.advance({"t": 10}, second)
        positions = planned(throttle, positions, ends)
    assert positions == {"t": {0: 7, 1: 1, 2: 6}}


def test_the_time_in_which_records_are_held_back_is_measured() -> None:
    throttle, positions = Throttle(), {"t": {0: 0}}
    throttle.advance({"t": 1}, 0)
    positions = planned(throttle, positions, {"t": {0: 1}})
    throttle.advance({"t": 1}, 400)
    assert throttle.take_held_back_ms() == 0
    planned(throttle, positions, {"t": {0: 2}})
    throttle.advance({"t": 1}, 700)
    assert throttle.take_held_back_ms() == 300
    assert throttle.take_held_back_ms() == 0


def test_fan_out_topics_share_the_rate_of_the_topic_that_was_split() -> None:
    throttle = Throttle({"t-fanout-0": "t"})
    throttle.advance({"t": 10, "u": 1}, 0)
    positions = {"t": {0: 5, 1: 0}, "t-fanout-0": {0: 0, 1: 0}, "u": {0: 0}}
    ends = {"t": {0: 5, 1: 90}, "t-fanout-0": {0: 90, 1: 90}, "u": {0: 90}}
    reached = planned(throttle, positions, ends)
    assert reached == {"t": {0: 5, 1: 4}, "t-fanout-0": {0: 3, 1: 3}, "u": {0: 1}}
    throttle.advance({"t": 10}, 200)
    assert planned(throttle, reached, ends) == {"t": {0: 5, 1: 4}, "t-fanout-0": {0: 4, 1: 4}, "u": {0: 90}}
