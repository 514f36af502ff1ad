"""Segments are decoded as they were encoded, and damage is detected."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.core.model.errors import StoreError
from millstream.drivers.segments import decode, encode

CHANGES = st.dictionaries(st.binary(max_size=6), st.none() | st.binary(max_size=10), max_size=20)


@given(CHANGES)
def test_a_segment_is_read_as_written(changes: dict[bytes, bytes | None]) -> None:
    assert decode(encode(list(changes.items())), "here") == sorted(
        changes.items(), key=lambda change: change[0]
    )


@given(CHANGES, st.data())
def test_damage_of_a_segment_is_detected(changes: dict[bytes, bytes | None], data: st.DataObject) -> None:
    written = bytearray(encode(list(changes.items())))
    written[data.draw(st.integers(0, len(written) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(StoreError, match="segment 7"):
        decode(bytes(written), "segment 7")
    with pytest.raises(StoreError, match="segment 7"):
        decode(bytes(written[: data.draw(st.integers(0, len(written) - 1))]), "segment 7")
