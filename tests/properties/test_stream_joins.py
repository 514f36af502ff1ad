"""Joins of two streams, with records in any order and micro-batches of any size, equal a brute-force model.

The model has no stores and no micro-batches: it looks at all pairs of records, and then at the records without a partner.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from golden.micro_batches import MicroBatches

Event = tuple[str, str, str, int]
"""Side, key, value and timestamp of a record."""

Results = Counter[tuple[str, str, int]]
"""Key, value and timestamp of each result."""

events = st.lists(
    st.tuples(st.sampled_from(["left", "right"]), st.sampled_from("ab"), st.integers(0, 60)), max_size=40
).map(lambda rows: [(side, key, f"{side[0]}{i}", time) for i, (side, key, time) in enumerate(rows)])
windows = st.builds(ms.JoinWindows, st.integers(0, 20), st.integers(0, 20), st.integers(0, 20))
sizes = st.integers(1, 10)
KINDS = ["join", "left_join", "outer_join"]
WAITS = {"join": (), "left_join": ("left",), "outer_join": ("left", "right")}
FLUSH: Event = ("left", "z", "z", 1000)
"""A record after which all windows are closed."""


def paired(left: str | None, right: str | None) -> str:
    return f"{left}+{right}"


def results(kind: str, within: ms.JoinWindows, given: list[Event], size: int) -> Results:
    """Join records in micro-batches of at most a size, each with records of one side."""
    builder = ms.StreamsBuilder()
    join = getattr(builder.stream("left"), kind)
    join(builder.stream("right"), paired, windows=within).to("out")
    runner = MicroBatches(builder.build(), "app", chunk=3, budget=None)
    for side, run in groupby(given, key=lambda event: event[0]):
        rows = [(key.encode(), value.encode(), time, ()) for _, key, value, time in run]
        for start in range(0, len(rows), size):
            runner.process(side, rows[start : start + size])
    return Counter((r.key, r.value, r.timestamp) for r in runner.sent["out"])


def model(kind: str, within: ms.JoinWindows, rows: list[Event], waits: tuple[str, ...]) -> Results:
    """Join by brute force: all pairs, then the records without a partner; at the end, all windows are closed.

    Args:
        kind: The method of the join.
        within: The windows of the join.
        rows: The records.
        waits: The sides whose records are joined only while their windows are open.
    """
    times, found, alone, now = within.times, Results(), set(range(len(rows))), -1
    ends = {"left": times.closes(left=True), "right": times.closes(left=False)}
    newest = {"left": -1, "right": -1}
    retention = times.before + times.after + times.grace
    for i, (side, key, value, time) in enumerate(rows):
        now = max(now, time)
        for j, (other, its_key, its_value, then) in enumerate(rows[:i]):
            left, right = (time, then) if side == "left" else (then, time)
            kept = then > newest[other] - retention and (other not in waits or then + ends[other] >= now)
            near = left - times.before <= right <= left + times.after
            if other != side and its_key == key and near and kept:
                pair = (value, its_value) if side == "left" else (its_value, value)
                found[key, paired(*pair), max(time, then)] += 1
                alone -= {i, j}
        newest[side] = max(newest[side], time)
    return found + Counter(without_partner(rows[i]) for i in alone if rows[i][0] in WAITS[kind])


def without_partner(event: Event) -> tuple[str, str, int]:
    side, key, value, time = event
    return key, paired(value, None) if side == "left" else paired(None, value), time


@pytest.mark.parametrize("kind", KINDS)
@given(rows=events, within=windows, size=sizes)
def test_a_record_has_results_with_its_partners_or_one_without_a_partner(
    kind: str, rows: list[Event], within: ms.JoinWindows, size: int
) -> None:
    assert results(kind, within, [*rows, FLUSH], size) == model(kind, within, rows, WAITS[kind])


@pytest.mark.parametrize("kind", KINDS)
@given(rows=events, within=windows, size=sizes)
def test_with_early_unmatched_results_a_record_may_have_one_without_a_partner_too_early(
    kind: str, rows: list[Event], within: ms.JoinWindows, size: int
) -> None:
    found = results(kind, replace(within, unmatched="early"), [*rows, FLUSH], size)
    expected = model(kind, within, rows, waits=())
    too_early = found - expected
    assert not expected - found
    assert too_early <= Counter(without_partner(event) for event in rows if event[0] in WAITS[kind])
