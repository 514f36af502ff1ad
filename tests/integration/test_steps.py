"""The steps in which recordings are played on Spark: their batches, times and restarts, tested without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from .clock import HandClock
from .steps import runs, steps_of
from .test_golden_recordings import CLOCKED, lanes_of

SEEDS = [1, 2, 3]


@pytest.mark.parametrize("seed", SEEDS)
def test_every_lane_takes_its_batches_in_order_and_at_its_times(seed: int) -> None:
    lanes = lanes_of("app", seed)
    steps = steps_of([*lanes.values()])
    assert [step.now_ms for step in steps] == sorted(step.now_ms for step in steps)
    for scenario, lane in lanes.items():
        taken = [(step.batches[lane.prefix], step.now_ms) for step in steps if lane.prefix in step.batches]
        assert [batch for batch, _ in taken] == list(range(len(lane.recording.batches)))
        if scenario in CLOCKED:
            assert [now for _, now in taken] == lane.times()


@pytest.mark.parametrize("seed", SEEDS)
def test_every_lane_has_records_before_and_after_a_restart(seed: int) -> None:
    lanes = lanes_of("app", seed)
    steps = steps_of([*lanes.values()])
    for lane in lanes.values():
        with_records = {
            number
            for number, step in enumerate(steps)
            if lane.prefix in step.batches and lane.entries(step.batches[lane.prefix])
        }
        assert sum(not with_records.isdisjoint(run) for run in runs(len(steps))) > 1, lane.scenario


def test_the_hand_clock_returns_the_time_that_was_set(tmp_path: Path) -> None:
    clock = HandClock(tmp_path / "clock")
    assert clock() == 0
    clock.set(1_000)
    assert clock() == 1_000
