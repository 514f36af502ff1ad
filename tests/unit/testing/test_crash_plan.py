"""The plan of a run is repeatable, spreads kills over the stream, and is fair to all targets."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.testing.crash.kill_plan import (
    SLOWABLE,
    STOPPABLE,
    TARGETS,
    Fault,
    plan_kills,
    possible_targets,
)


def test_a_seed_always_produces_the_same_plan() -> None:
    assert plan_kills(9, TARGETS, 5_000, seed=3) == plan_kills(9, TARGETS, 5_000, seed=3)
    assert plan_kills(9, TARGETS, 5_000, seed=3) != plan_kills(9, TARGETS, 5_000, seed=4)


@given(st.integers(0, 40), st.integers(1_000, 100_000), st.integers())
def test_kills_are_spread_over_the_stream_and_none_is_at_its_ends(
    kills: int, records: int, seed: int
) -> None:
    positions = [point.position for point in plan_kills(kills, TARGETS, records, seed)]
    assert len(positions) == kills
    assert positions == sorted(positions)
    assert all(0 < position < records for position in positions)


@given(st.integers(1, 40), st.integers())
def test_targets_take_turns(kills: int, seed: int) -> None:
    times = Counter(point.target for point in plan_kills(kills, TARGETS, 1_000, seed))
    assert max(times.values()) - min(times[target] for target in TARGETS) <= 1


@pytest.mark.parametrize("rebuilds", [False, True])
def test_transactions_and_lost_disks_are_targets_only_with_exactly_once(
    rebuilds: bool,
) -> None:
    at_least_once = possible_targets("at_least_once", rebuilds=rebuilds, calls=True)
    exactly_once = possible_targets("exactly_once", rebuilds=rebuilds, calls=True)
    assert {"transaction", "disk"}.isdisjoint(at_least_once)
    assert "transaction" in exactly_once
    assert ("disk" in exactly_once) == rebuilds


def test_only_an_application_that_makes_calls_has_an_async_worker() -> None:
    with_calls = possible_targets("exactly_once", rebuilds=True, calls=True, small=True)
    without = possible_targets("exactly_once", rebuilds=True, calls=False, small=True)
    assert with_calls == TARGETS
    assert set(with_calls) - set(without) == {"async-worker"}


def test_kills_wait_for_transactions_only_if_the_run_has_transactions() -> None:
    without = plan_kills(40, ["broker", "worker"], 5_000, seed=1)
    assert not any(point.in_transaction for point in without)
    waiting = [point.in_transaction for point in plan_kills(40, ["broker"], 5_000, seed=1, transactions=True)]
    assert 10 < sum(waiting) < 30
    broker_in_transactions = plan_kills(9, ["transaction"], 5_000, seed=1)
    assert all(point.in_transaction for point in broker_in_transactions)


def test_some_kills_are_stops_but_only_of_stoppable_targets() -> None:
    points = plan_kills(90, TARGETS, 5_000, seed=1, stops=(2.0, 10.0))
    stopped = [point for point in points if point.stop_s]
    assert 10 < len(stopped) < 40
    assert {point.stop_s for point in stopped} == {2.0, 10.0}
    assert {point.target for point in stopped} <= STOPPABLE
    assert {"host", "disk"}.isdisjoint(STOPPABLE)
    assert not any(point.stop_s for point in plan_kills(90, TARGETS, 5_000, seed=1))


def test_only_a_small_disk_is_filled() -> None:
    assert "space" not in possible_targets("exactly_once", rebuilds=True, calls=True)


def test_some_stops_are_slowdowns_but_only_of_processes() -> None:
    points = plan_kills(200, TARGETS, 5_000, seed=1, stops=(2.0,))
    slowed = [point for point in points if point.slow and point.stop_s]
    assert 5 < len(slowed) < sum(point.stop_s > 0 for point in points) - 5
    assert {point.target for point in slowed} <= SLOWABLE
    assert {"network", "clock"} <= STOPPABLE - SLOWABLE


@pytest.mark.parametrize("fault", ["stop", "slow"])
def test_only_the_requested_faults_are_planned(fault: Fault) -> None:
    points = plan_kills(90, TARGETS, 5_000, seed=1, stops=(2.0,), faults=[fault])
    assert all((point.stop_s > 0) == (point.target in STOPPABLE) for point in points)
    assert all(point.slow == (fault == "slow") for point in points if point.target in SLOWABLE)
    assert not any(
        point.stop_s for point in plan_kills(90, TARGETS, 5_000, seed=1, stops=(2.0,), faults=["kill"])
    )


@pytest.mark.parametrize("transactions", [False, True])
def test_some_faults_are_double_and_cover_every_moment_and_target(transactions: bool) -> None:
    points = plan_kills(200, TARGETS, 5_000, seed=1, transactions=transactions, twice=True)
    again = [point.again for point in points if point.again is not None]
    assert 30 < len(again) < 90
    assert {second.moment for second in again} == {"driver", "worker", *(["transaction"] * transactions)}
    assert {second.target for second in again} == set(TARGETS)
    assert not any(point.again for point in plan_kills(200, TARGETS, 5_000, seed=1))


def test_stops_and_double_faults_do_not_change_the_other_choices_of_a_seed() -> None:
    plain = plan_kills(40, TARGETS, 5_000, seed=1)
    more = plan_kills(40, TARGETS, 5_000, seed=1, stops=(2.0,), twice=True)
    assert [(p.target, p.position, p.delay_ms) for p in plain] == [
        (p.target, p.position, p.delay_ms) for p in more
    ]
