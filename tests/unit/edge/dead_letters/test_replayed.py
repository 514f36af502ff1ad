"""Positions of replays: exactly the replayed offsets are stored, in any order of replays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.core.model.errors import MillstreamError
from millstream.edge.dead_letters.replayed import MOST_METADATA, Replayed

OFFSETS = 30
RANGES = st.tuples(st.integers(0, OFFSETS), st.integers(0, OFFSETS), st.sets(st.integers(0, OFFSETS)))


@given(st.lists(RANGES, max_size=6))
def test_as_a_set_of_offsets(ranges: list[tuple[int, int, set[int]]]) -> None:
    done, expected = Replayed(), set[int]()
    for start, end, some in ranges:
        left = {offset for offset in some if start <= offset < end} - expected
        done = done.with_range(start, end, left)
        expected |= set(range(start, end)) - left
        assert {offset for offset in range(OFFSETS) if offset in done} == expected
        assert done.position == next(offset for offset in range(OFFSETS + 1) if offset not in expected)
        assert Replayed.read(done.position, done.metadata()) == done


@pytest.mark.parametrize(
    "metadata", ["", "taken:7", "replayed:1", "replayed:1+", "replayed:a+b", "replayed:"]
)
def test_metadata_of_others_means_nothing(metadata: str) -> None:
    assert Replayed.read(5, metadata) == Replayed(5)


def test_more_than_a_commit_can_hold() -> None:
    done = Replayed().with_range(0, 4 * MOST_METADATA, range(0, 4 * MOST_METADATA, 2))
    with pytest.raises(MillstreamError, match="more than the group can record"):
        done.metadata()
