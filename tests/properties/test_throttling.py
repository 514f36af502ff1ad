"""Throttling: records are read at the rate, with a burst of at most one second, and no partition starves."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.core.model.positions import Offsets
from millstream.core.runtime.throttling import Throttle

from .engines import Visits

RATES = st.integers(1, 20) | st.integers(1, 100_000)
PAUSES_MS = st.lists(st.integers(0, 60) | st.integers(0, 20_000), min_size=1, max_size=30)
MORE = st.dictionaries(st.integers(0, 3), st.integers(0, 50), max_size=4)


def total(positions: Offsets) -> int:
    return sum(positions["t"].values())


def plan(throttle: Throttle, position: Offsets, ends: Offsets) -> Offsets:
    reached = throttle.limited(position, ends)
    assert all(
        position["t"][p] <= to <= max(ends["t"][p], position["t"][p]) for p, to in reached["t"].items()
    )
    throttle.take_tokens(position, reached)
    return reached


def test_between_any_two_plans_at_most_the_rate_and_one_burst_is_read() -> None:
    visits = Visits()

    @settings(max_examples=100)
    @given(RATES, st.lists(st.tuples(PAUSES_MS.map(lambda p: p[0]), MORE), max_size=30))
    def limited(rate: int, steps: list[tuple[int, dict[int, int]]]) -> None:
        throttle, now_ms = Throttle(), 0
        position: Offsets = {"t": dict.fromkeys(range(4), 0)}
        ends: Offsets = {"t": dict.fromkeys(range(4), 0)}
        seen = [(0, 0)]
        for passed_ms, more in steps:
            now_ms += passed_ms
            for partition, count in more.items():
                ends["t"][partition] += count
            throttle.advance({"t": rate}, now_ms)
            position = plan(throttle, position, ends)
            seen.append((now_ms, total(position)))
            visits["held back"] += position != ends
            visits["not held back"] += position == ends
        for i, (began_ms, before) in enumerate(seen):
            for ended_ms, after in seen[i:]:
                assert after - before <= rate * (ended_ms - began_ms) / 1000 + rate

    limited()
    visits.demand(**{"held back": 10, "not held back": 10})


@given(RATES, PAUSES_MS)
def test_a_backlog_is_read_at_exactly_the_rate(rate: int, pauses_ms: list[int]) -> None:
    throttle, now_ms = Throttle(), 0
    position: Offsets = {"t": dict.fromkeys(range(3), 0)}
    ends: Offsets = {"t": dict.fromkeys(range(3), 1 << 60)}
    throttle.advance({"t": rate}, now_ms)
    for passed_ms in pauses_ms:
        now_ms += passed_ms
        throttle.advance({"t": rate}, now_ms)
        position = plan(throttle, position, ends)
        first_burst_kept = rate + rate * now_ms // 1000
        assert total(position) == first_burst_kept


@settings(max_examples=50)
@given(st.integers(1, 5), st.integers(20, 200), st.integers(2, 6))
def test_no_partition_starves_behind_the_backlog_of_another(rate: int, step_ms: int, partitions: int) -> None:
    throttle = Throttle()
    position: Offsets = {"t": dict.fromkeys(range(partitions), 0)}
    for now_ms in range(0, 20_000, step_ms):
        # one partition has a backlog, the others always have a record or two
        ends = {"t": {p: position["t"][p] + (10_000 if p == 0 else 1 + p % 2) for p in range(partitions)}}
        throttle.advance({"t": rate}, now_ms)
        position = plan(throttle, position, ends)
    fair = rate * 20 / partitions
    assert all(count >= fair / 2 - 1 for count in position["t"].values())
