"""Admission is fair, stays within its limit and the end offsets, and covers every record exactly once."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.core.model.positions import Offsets
from millstream.core.ports import OffsetRange
from millstream.core.runtime.admission import admit, packed, ranges

from .engines import Visits

PARTITIONS = st.dictionaries(
    st.tuples(st.sampled_from("ab"), st.integers(0, 4)),
    st.tuples(st.integers(0, 100), st.integers(-5, 60) | st.integers(0, 5000)),
    max_size=8,
)


def offsets(partitions: dict[tuple[str, int], int]) -> Offsets:
    result: Offsets = {}
    for (topic, partition), offset in partitions.items():
        result.setdefault(topic, {})[partition] = offset
    return result


def test_a_batch_is_shared_fairly_among_partitions() -> None:
    visits = Visits()

    @settings(max_examples=100)
    @given(PARTITIONS, st.integers(0, 300))
    def shared(partitions: dict[tuple[str, int], tuple[int, int]], limit: int) -> None:
        start = {partition: begin for partition, (begin, _) in partitions.items()}
        available = {partition: max(more, 0) for partition, (_, more) in partitions.items()}
        ends = {partition: begin + more for partition, (begin, more) in partitions.items()}
        planned = admit(offsets(start), offsets(ends), limit)
        taken = {partition: planned[partition[0]][partition[1]] - begin for partition, begin in start.items()}
        assert all(0 <= taken[partition] <= available[partition] for partition in taken)
        assert sum(taken.values()) == min(max(limit, 1), sum(available.values()))
        unsatisfied = [taken[partition] for partition in taken if taken[partition] < available[partition]]
        visits["limited"] += bool(unsatisfied)
        visits["partly limited"] += 0 < len(unsatisfied) < sum(map(bool, available.values()))
        if unsatisfied:  # an unsatisfied partition gets as much as any other, up to one record
            assert max(taken.values()) <= min(unsatisfied) + 1

    shared()
    visits.demand(**{"limited": 10, "partly limited": 5})


@given(PARTITIONS, st.integers(1, 500))
def test_successive_batches_reach_the_end_offsets(
    partitions: dict[tuple[str, int], tuple[int, int]], limit: int
) -> None:
    position = offsets({partition: begin for partition, (begin, _) in partitions.items()})
    ends = offsets({partition: begin + max(more, 0) for partition, (begin, more) in partitions.items()})
    total = sum(max(more, 0) for _, more in partitions.values())
    for _ in range(-(-total // limit)):
        position = admit(position, ends, limit)
    assert position == ends
    assert admit(position, ends, limit) == position


RANGES = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 400)), max_size=8).map(
    lambda sizes: [OffsetRange("t", n, start, start + size) for n, (start, size) in enumerate(sizes)]
)


def test_readers_cover_every_offset_once() -> None:
    visits = Visits()

    @settings(max_examples=100)
    @given(RANGES, st.integers(1, 6), st.integers(1, 200))
    def covered(planned: list[OffsetRange], bins: int, smallest: int) -> None:
        readers = packed(planned, bins, smallest)
        assert len(readers) <= bins
        assert all(readers)
        assert offsets_in(part for share in readers for part in share) == offsets_in(planned)
        sizes = [sum(part.end - part.start for part in share) for share in readers]
        visits["cut"] += sum(map(len, readers)) > len(planned)
        visits["several readers"] += len(readers) > 1
        if len(readers) > 1:
            assert max(sizes) - min(sizes[:-1]) == 0  # all but the last have the same share
            assert min(sizes[:-1]) >= smallest

    covered()
    visits.demand(**{"cut": 10, "several readers": 10})


def test_ranges_that_must_be_read_whole_are_never_cut() -> None:
    visits = Visits()

    @settings(max_examples=100)
    @given(RANGES, st.sets(st.integers(0, 7)), st.integers(1, 6), st.integers(1, 200))
    def whole(planned: list[OffsetRange], in_order: set[int], bins: int, smallest: int) -> None:
        named = [r._replace(topic="calls" if r.partition in in_order else "t") for r in planned]
        readers = packed(named, bins, smallest, whole={"calls"})
        parts = [part for share in readers for part in share]
        assert len(readers) <= bins
        assert all(readers)
        assert offsets_in(parts) == offsets_in(named)
        assert {part for part in parts if part.topic == "calls"} == {r for r in named if r.topic == "calls"}
        visits["cut beside it"] += len(parts) > len(named) and any(part.topic == "calls" for part in parts)

    whole()
    visits.demand(**{"cut beside it": 10})


def offsets_in(parts: object) -> Counter[tuple[int, int]]:
    return Counter((part.partition, offset) for part in parts for offset in range(part.start, part.end))  # type: ignore[attr-defined]


@given(PARTITIONS, st.integers(1, 300))
def test_ranges_contain_exactly_the_admitted_offsets(
    partitions: dict[tuple[str, int], tuple[int, int]], limit: int
) -> None:
    start = offsets({partition: begin for partition, (begin, _) in partitions.items()})
    end = admit(
        start, offsets({partition: begin + more for partition, (begin, more) in partitions.items()}), limit
    )
    for planned in ranges(start, end):
        assert planned.start < planned.end
        start[planned.topic][planned.partition] = planned.end
    assert start == end
