"""The positions of replays contain exactly the replayed offsets, in any order of replays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.core.model.errors import MillstreamError
from millstream.edge.dead_letters.replayed import MOST_METADATA, Replayed

OFFSETS = 30
RANGES = st.tuples(st.integers(0, OFFSETS), st.integers(0, OFFSETS), st.sets(st.integers(0, OFFSETS)))


@given(st.lists(RANGES, max_size=6))
def test_replayed_offsets_behave_as_a_set(ranges: list[tuple[int, int, set[int]]]) -> None:
    replayed, expected = Replayed(), set[int]()
    for start, end, candidates in ranges:
        not_replayed = {offset for offset in candidates if start <= offset < end} - expected
        replayed = replayed.with_range(start, end, not_replayed)
        expected |= set(range(start, end)) - not_replayed
        assert {offset for offset in range(OFFSETS) if offset in replayed} == expected
        assert replayed.position == next(offset for offset in range(OFFSETS + 1) if offset not in expected)
        assert Replayed.read(replayed.position, replayed.metadata()) == replayed


@pytest.mark.parametrize(
    "metadata", ["", "taken:7", "replayed:1", "replayed:1+", "replayed:a+b", "replayed:"]
)
def test_commit_metadata_of_other_programs_is_ignored(metadata: str) -> None:
    assert Replayed.read(5, metadata) == Replayed(5)


def test_more_offsets_than_a_commit_can_hold_are_an_error() -> None:
    replayed = Replayed().with_range(0, 4 * MOST_METADATA, range(0, 4 * MOST_METADATA, 2))
    with pytest.raises(MillstreamError, match="more than the group can record"):
        replayed.metadata()
