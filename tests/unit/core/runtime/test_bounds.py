"""How far a run reads that ends after a number of records."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millstream.core.runtime.bounds import first_records

PARTITIONS = st.dictionaries(st.integers(0, 3), st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=4)
TOPICS = st.dictionaries(st.sampled_from("ab"), PARTITIONS, max_size=2)


@given(TOPICS, st.none() | st.integers(1, 60))
def test_evenly_and_never_more(topics: dict[str, dict[int, tuple[int, int]]], records: int | None) -> None:
    positions = {topic: {p: begin for p, (begin, _) in of.items()} for topic, of in topics.items()}
    ends = {topic: {p: end for p, (_, end) in of.items()} for topic, of in topics.items()}
    planned = first_records(positions, ends, records)
    available = {(t, p): max(0, ends[t][p] - positions[t][p]) for t in ends for p in ends[t]}
    taken = {(t, p): planned[t][p] - positions[t][p] for t in ends for p in ends[t]}
    assert all(0 <= taken[partition] <= available[partition] for partition in available)
    wanted = sum(available.values()) if records is None else min(records, sum(available.values()))
    assert sum(taken.values()) == wanted
    cut = [taken[partition] for partition in available if taken[partition] < available[partition]]
    assert not cut or max(taken.values()) - min(cut) <= 1, (
        "only an exhausted partition may contribute fewer records"
    )
