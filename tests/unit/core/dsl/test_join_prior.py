"""join_prior of KIP-28: each record is joined with the older records of the other stream that arrived before it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from millstream.core.model.errors import TopologyError
from millstream.testing import TopologyTestDriver

Step = tuple[str, str, int]
"""Side, key and timestamp of a record."""

steps = st.lists(
    st.tuples(st.sampled_from(["left", "right"]), st.sampled_from("ab"), st.integers(0, 40)), max_size=25
)


def joined(windows: ms.JoinWindows, steps: list[Step]) -> list[tuple[str, int]]:
    builder = ms.StreamsBuilder()
    left, right = builder.stream("left"), builder.stream("right")
    left.join_prior(right, lambda a, b: f"{a}+{b}", windows=windows).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        for number, (side, key, timestamp) in enumerate(steps):
            driver.pipe(side, key, f"{side[0]}{number}", timestamp)
        return [(record.value, record.timestamp) for record in driver.read("out")]


@given(steps=steps, before=st.integers(-5, 20), length=st.integers(0, 20))
def test_the_results_equal_those_computed_from_a_list_of_earlier_records(
    steps: list[Step], before: int, length: int
) -> None:
    after = length - before
    expected = []
    for number, (side, key, timestamp) in enumerate(steps):
        earlier = [
            (earlier_timestamp, other)
            for other, (other_side, other_key, earlier_timestamp) in enumerate(steps[:number])
            if other_side != side and other_key == key and earlier_timestamp < timestamp
        ]
        for earlier_timestamp, other in sorted(earlier):
            left, right = (timestamp, earlier_timestamp) if side == "left" else (earlier_timestamp, timestamp)
            if left - before <= right <= left + after:
                texts = (f"l{number}", f"r{other}") if side == "left" else (f"l{other}", f"r{number}")
                expected.append(("+".join(texts), timestamp))
    # The grace exceeds all timestamps, so each record is stored as long as it can be joined.
    assert joined(ms.JoinWindows(before, after, grace=1000), steps) == expected


def test_records_with_equal_timestamps_or_out_of_order_are_not_joined() -> None:
    windows = ms.JoinWindows(100, 100, grace=100)
    assert joined(windows, [("left", "a", 5), ("right", "a", 5)]) == []
    assert joined(windows, [("left", "a", 6), ("right", "a", 5)]) == []
    assert joined(windows, [("left", "a", 5), ("right", "a", 6)]) == [("l0+r1", 6)]


def test_the_joiner_may_take_the_key() -> None:
    builder = ms.StreamsBuilder()
    left, right = builder.stream("left"), builder.stream("right")
    windows = ms.JoinWindows(10, 10, grace=0)
    left.join_prior(right, lambda k, a, b: f"{k}:{a}{b}", windows=windows, with_key=True).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        driver.pipe("right", "k", "r", 1)
        driver.pipe("left", "k", "l", 2)
        assert [record.value for record in driver.read("out")] == ["k:lr"]


def test_join_prior_requires_two_streams_and_windows() -> None:
    builder = ms.StreamsBuilder()
    stream: Any = builder.stream("in")
    with pytest.raises(
        TopologyError, match=r"other must be KStream, not a KTable; .* joined with a table by join\(\)"
    ):
        stream.join_prior(builder.table("table"), lambda a, b: a, windows=ms.JoinWindows(1, 1, 1))
    with pytest.raises(TopologyError, match="needs windows"):
        stream.join_prior(builder.stream("other"), lambda a, b: a)
