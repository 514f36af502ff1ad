"""The automatic number of workers: when it changes, and when it does not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from millstream.core.runtime.auto_parallelism import (
    AutoParallelism,
    Load,
    WorkersChange,
    allowed_worker_counts,
    decided,
    most_workers,
    with_cost,
)

MOST = 8


def even(seconds: float, work: float, waiting: int = 100) -> Load:
    """Return a load that is spread evenly over any number of workers."""
    return Load(seconds, {workers: work / workers for workers in allowed_worker_counts(16)}, waiting)


def changes(state: AutoParallelism, loads: Iterable[Load], most: int = MOST) -> list[WorkersChange]:
    decisions = []
    for load in loads:
        state, change = decided(state, load, most)
        if change is not None:
            assert state.workers == change.workers
            decisions.append(change)
    return decisions


def settled(workers: int) -> AutoParallelism:
    return replace(AutoParallelism.of(workers), settled_s=1_000.0)


def test_workers_are_added_when_micro_batches_wait_for_the_busiest_worker() -> None:
    (change,) = changes(settled(1), [even(2, 1.8)] * 3)
    assert change == WorkersChange(
        2,
        "the number of workers changes from 1 to 2: the busiest worker processes for 90% of the time, and 100 records wait",
    )


@pytest.mark.parametrize(
    "load",
    [
        even(2, 1.8, waiting=0),
        even(2, 1.1),
        Load(2, {1: 1.8, 2: 1.7, 4: 1.7, 8: 1.7}, 100),
        even(0, 0),
    ],
    ids=["nothing waits", "other things take the time", "one key range has the work", "no time"],
)
def test_workers_are_not_added_when_they_do_not_help(load: Load) -> None:
    assert changes(settled(1), [load] * 20) == []


def test_a_number_of_workers_that_does_not_help_is_skipped() -> None:
    load = Load(2, {1: 1.8, 2: 1.8, 4: 0.9, 8: 0.5}, 100)
    assert [change.workers for change in changes(settled(1), [load] * 3)] == [4]


def test_consecutive_loads_must_agree_for_some_time() -> None:
    high, middle = even(2, 1.8), even(2, 1.1)
    assert changes(settled(1), [high, high, middle] * 5) == []
    assert changes(settled(1), [even(0.5, 0.45)] * 5) == []
    assert len(changes(settled(1), [even(0.5, 0.45)] * 6)) == 1


def test_workers_are_removed_when_fewer_suffice() -> None:
    (change,) = changes(settled(8), [even(1, 0.5, waiting=0)] * 15)
    assert change == WorkersChange(
        2,
        "the number of workers changes from 8 to 2: with 2, the busiest worker would process for 25% of the time",
    )
    assert changes(settled(8), [even(1, 0.5, waiting=0)] * 14) == []
    assert [each.workers for each in changes(settled(8), [even(1, 0, waiting=0)] * 15)] == [1]


def test_the_largest_number_of_workers_that_recent_loads_need_is_kept() -> None:
    loads = [even(1, 0.0)] * 7 + [even(1, 1.0)] + [even(1, 0.0)] * 7
    assert [change.workers for change in changes(settled(8), loads)] == [4]


def test_a_change_waits_until_the_previous_change_has_paid_off() -> None:
    state, change = settled(1), None
    state = with_cost(state, 8.0)
    for _ in range(3):
        state, change = decided(state, even(2, 1.8), MOST)
    assert change is not None
    after = 0.0
    change = None
    while change is None:
        state, change = decided(state, even(2, 3.8), MOST)
        after += 2
    assert after == 40


def test_the_first_change_after_a_start_waits_too() -> None:
    assert changes(AutoParallelism.of(1), [even(2, 1.8)] * 4) == []
    assert len(changes(AutoParallelism.of(1), [even(2, 1.8)] * 5)) == 1


def test_workers_beyond_the_number_of_cores_are_removed_under_any_load() -> None:
    loads = [even(2, 30)] * 8
    (change,) = changes(settled(16), loads, most=4)
    assert change == WorkersChange(
        4, "the number of workers changes from 16 to 4: there are cores and key ranges for 4"
    )


def test_the_maximum_may_fall_between_two_loads() -> None:
    state, decisions = settled(8), []
    for most, load in ((8, even(8, 5)), (8, even(8, 5)), (2, even(8, 5))):
        state, change = decided(state, load, most)
        decisions.append(change and change.workers)
    assert decisions == [None, None, 2]


def test_the_maximum_is_a_power_of_two_within_ranges_and_cores() -> None:
    assert [most_workers(ranges, cores) for ranges, cores in ((16, 5), (4, 64), (1, 8), (16, 0))] == [
        4,
        4,
        1,
        1,
    ]
