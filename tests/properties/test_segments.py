"""Segments: what is encoded is decoded, and merging is what a dict does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.core.model.errors import StoreError
from millstream.core.state.segments.key_groups import KEY_GROUPS, by_key_group, key_group
from millstream.core.state.segments.segment import decode, encode, merge

CHANGES = st.dictionaries(st.binary(max_size=6), st.none() | st.binary(max_size=10), max_size=20)


@given(CHANGES)
def test_is_read_as_written(changes: dict[bytes, bytes | None]) -> None:
    assert decode(encode(list(changes.items())), "here") == sorted(
        changes.items(), key=lambda change: change[0]
    )


@given(st.lists(CHANGES, max_size=6))
def test_merging_is_updating(batches: list[dict[bytes, bytes | None]]) -> None:
    model: dict[bytes, bytes | None] = {}
    for batch in batches:
        model.update(batch)
    merged = merge([list(batch.items()) for batch in batches])
    assert dict(merged) == model
    assert len(merged) == len(model)


@given(st.lists(CHANGES, min_size=2, max_size=5), st.integers(1, 4))
def test_merging_in_steps_is_merging_at_once(batches: list[dict[bytes, bytes | None]], cut: int) -> None:
    parts = [list(batch.items()) for batch in batches]
    assert dict(merge([merge(parts[:cut]), merge(parts[cut:])])) == dict(merge(parts))


@given(CHANGES)
def test_key_groups_are_a_partition(changes: dict[bytes, bytes | None]) -> None:
    groups = by_key_group(changes.items())
    assert dict(change for part in groups.values() for change in part) == changes
    assert all(
        0 <= group < KEY_GROUPS and key_group(key) == group
        for group, part in groups.items()
        for key, _ in part
    )


@given(CHANGES, st.data())
def test_damage_is_found(changes: dict[bytes, bytes | None], data: st.DataObject) -> None:
    written = bytearray(encode(list(changes.items())))
    written[data.draw(st.integers(0, len(written) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(StoreError, match="segment 7"):
        decode(bytes(written), "segment 7")
    with pytest.raises(StoreError, match="segment 7"):
        decode(bytes(written[: data.draw(st.integers(0, len(written) - 1))]), "segment 7")
