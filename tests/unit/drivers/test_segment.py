from __future__ import annotations

import pytest

from millstream.core.model.errors import StoreError
from millstream.drivers.segments import decode, encode

CHANGES: list[tuple[bytes, bytes | None]] = [
    (b"b", None),
    (b"a", b"1"),
    (b"", b""),
    (b"c" * 300, b"x" * 70_000),
]


def test_a_segment_is_read_as_written_in_key_order() -> None:
    assert decode(encode(CHANGES), "here") == sorted(CHANGES)


def test_an_empty_value_is_not_a_deletion() -> None:
    assert decode(encode([(b"a", b""), (b"b", None)]), "here") == [(b"a", b""), (b"b", None)]


def test_a_segment_may_be_empty() -> None:
    assert decode(encode([]), "here") == []


def test_a_segment_does_not_depend_on_the_order_of_the_changes() -> None:
    assert encode(CHANGES) == encode(CHANGES[::-1])


@pytest.mark.parametrize("position", [0, 3, 4, 5, 9, -1])
def test_a_flipped_bit_is_detected(position: int) -> None:
    data = bytearray(encode([(b"a", b"1"), (b"b", None)]))
    data[position] ^= 0x10
    with pytest.raises(
        StoreError, match=r"the log is damaged: segment 7 of \d+ bytes does not match its checksum"
    ):
        decode(bytes(data), "segment 7")


@pytest.mark.parametrize("size", [0, 3, 8, 9, 15])
def test_a_truncated_segment_is_detected(size: int) -> None:
    with pytest.raises(StoreError, match=rf"segment 7 of {size} bytes does not match"):
        decode(encode([(b"a", b"1")])[:size], "segment 7")


def test_a_segment_in_a_newer_format_is_refused() -> None:
    import struct
    import zlib

    rest = struct.pack("<BI", 2, 0)
    with pytest.raises(
        StoreError,
        match=r"written by a newer Millstream: segment 7 has format 2, and this version reads format 1",
    ):
        decode(struct.pack("<I", zlib.crc32(rest)) + rest, "segment 7")


def test_the_format_of_segments_is_stable() -> None:
    assert encode([(b"b", None), (b"a", b"1"), (b"", b"")]).hex() == (
        "b154745b01030000000000000001000000010000000000000001000000ffffffff616231"
    )
