from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.core.ports import OffsetRange
from millstream.core.runtime.admission import admit, first_records, packed, ranges

PARTITIONS = st.dictionaries(st.integers(0, 3), st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=4)
TOPICS = st.dictionaries(st.sampled_from("ab"), PARTITIONS, max_size=2)


@pytest.mark.parametrize(
    ("ends", "limit", "expected"),
    [
        ({0: 100, 1: 100}, 1000, {0: 100, 1: 100}),
        ({0: 100, 1: 100}, 100, {0: 50, 1: 50}),
        ({0: 10, 1: 1000}, 100, {0: 10, 1: 90}),
        ({0: 0, 1: 1000}, 100, {0: 0, 1: 100}),
        ({0: 5, 1: 40, 2: 1000}, 100, {0: 5, 1: 40, 2: 55}),
        ({0: 1, 1: 1, 2: 1}, 2, {0: 1, 1: 1, 2: 0}),
        ({0: 10}, 0, {0: 1}),
    ],
    ids=[
        "all fits",
        "halves",
        "rest goes on",
        "nothing there",
        "three",
        "fewer than partitions",
        "at least one",
    ],
)
def test_a_batch_is_shared_fairly_among_partitions(
    ends: dict[int, int], limit: int, expected: dict[int, int]
) -> None:
    assert admit({"t": dict.fromkeys(ends, 0)}, {"t": ends}, limit) == {"t": expected}


def test_each_partition_continues_from_its_own_position() -> None:
    start = {"a": {0: 7}, "b": {0: 100, 1: 3}}
    assert admit(start, {"a": {0: 9}, "b": {0: 100, 1: 5}}, 100) == {"a": {0: 9}, "b": {0: 100, 1: 5}}
    assert start == {"a": {0: 7}, "b": {0: 100, 1: 3}}


def test_a_position_never_moves_back_and_does_not_move_without_an_end_offset() -> None:
    assert admit({"t": {0: 10, 1: 5}}, {"t": {0: 4}}, 100) == {"t": {0: 10, 1: 5}}
    assert admit({"t": {0: 10}}, {}, 100) == {"t": {0: 10}}


def test_ranges_cover_the_offsets_between_two_positions() -> None:
    start, end = {"t": {0: 3, 1: 5}}, {"t": {0: 9, 1: 5}, "new": {0: 2}}
    assert ranges(start, end) == [OffsetRange("t", 0, 3, 9)]
    assert ranges(end, end) == []


def test_small_ranges_share_one_reader() -> None:
    planned = [OffsetRange("t", 0, 0, 10), OffsetRange("t", 1, 5, 9)]
    assert packed(planned, bins=8) == [planned]


def test_a_large_range_is_cut() -> None:
    assert packed([OffsetRange("t", 0, 100, 20_100)], bins=4) == [
        [OffsetRange("t", 0, 100, 5_100)],
        [OffsetRange("t", 0, 5_100, 10_100)],
        [OffsetRange("t", 0, 10_100, 15_100)],
        [OffsetRange("t", 0, 15_100, 20_100)],
    ]


def test_readers_get_equal_shares() -> None:
    planned = [OffsetRange("t", 0, 0, 90), OffsetRange("t", 1, 0, 20), OffsetRange("t", 2, 0, 10)]
    shares = packed(planned, bins=3, smallest=1)
    assert [sum(r.end - r.start for r in share) for share in shares] == [40, 40, 40]


def test_without_ranges_there_are_no_readers() -> None:
    assert packed([], bins=4) == []


def test_a_range_that_must_be_read_whole_is_not_cut() -> None:
    whole = [OffsetRange("calls", 0, 0, 40_000)]
    assert packed(whole, bins=4, whole={"calls"}) == [whole]


def test_ranges_that_can_be_cut_fill_up_the_readers_of_whole_ranges() -> None:
    planned = [
        OffsetRange("free", 0, 0, 60),
        OffsetRange("calls", 0, 0, 50),
        OffsetRange("calls", 1, 0, 20),
        OffsetRange("calls", 2, 0, 20),
    ]
    readers = packed(planned, bins=3, smallest=1, whole={"calls"})
    assert readers == [
        [OffsetRange("calls", 0, 0, 50)],
        [OffsetRange("calls", 1, 0, 20), OffsetRange("free", 0, 0, 30)],
        [OffsetRange("calls", 2, 0, 20), OffsetRange("free", 0, 30, 60)],
    ]


@given(TOPICS, st.none() | st.integers(1, 60))
def test_a_run_with_a_limit_reads_evenly_and_never_more(
    topics: dict[str, dict[int, tuple[int, int]]], records: int | None
) -> None:
    positions = {topic: {p: begin for p, (begin, _) in of.items()} for topic, of in topics.items()}
    ends = {topic: {p: end for p, (_, end) in of.items()} for topic, of in topics.items()}
    planned = first_records(positions, ends, records)
    available = {(t, p): max(0, ends[t][p] - positions[t][p]) for t in ends for p in ends[t]}
    taken = {(t, p): planned[t][p] - positions[t][p] for t in ends for p in ends[t]}
    assert all(0 <= taken[partition] <= available[partition] for partition in available)
    expected_total = sum(available.values()) if records is None else min(records, sum(available.values()))
    assert sum(taken.values()) == expected_total
    cut = [taken[partition] for partition in available if taken[partition] < available[partition]]
    assert not cut or max(taken.values()) - min(cut) <= 1, (
        "only an exhausted partition may contribute fewer records"
    )
