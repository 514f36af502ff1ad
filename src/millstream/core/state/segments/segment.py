"""Segments: encoded changes of a store, for the log.

A segment contains changes of one store and key group, in key order, at most one per key. Format, little endian:

    crc32 of the rest (4) | format (1) | number of changes n (4) | n key lengths (4 each) | n value lengths (4 each, -1
    for a deletion) | keys | values

Segments are compressed when they are written to Spark's state, not here.
"""

from __future__ import annotations

import struct
import sys
import zlib
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, pairwise
from operator import itemgetter
from typing import NamedTuple

from millstream.core.model.errors import StoreError
from millstream.core.ports import StoreChange

_FORMAT = 1
_HEAD = struct.Struct("<IBI")
_KEY = itemgetter(0)


def encode(changes: Sequence[StoreChange]) -> bytes:
    """Encode changes, at most one per key, as a segment."""
    ordered = sorted(changes, key=_KEY)
    keys = [key for key, _ in ordered]
    values = [value for _, value in ordered]
    key_sizes = array("i", map(len, keys))
    value_sizes = array("i", (-1 if value is None else len(value) for value in values))
    return assembled(key_sizes, value_sizes, [*keys, *(value for value in values if value)])


def assembled(
    key_sizes: array[int], value_sizes: array[int], keys_and_values: Iterable[bytes | memoryview]
) -> bytes:
    """Return the segment of changes that are in key order.

    Args:
        value_sizes: Lengths of the values, -1 for a deletion.
        keys_and_values: The bytes of all keys, and then of all values, in any number of parts.
    """
    head = _HEAD.pack(0, _FORMAT, len(key_sizes))[4:]
    rest = b"".join((head, _little(key_sizes), _little(value_sizes), *keys_and_values))
    return struct.pack("<I", zlib.crc32(rest)) + rest


class SegmentLayout(NamedTuple):
    """Where the keys and values of a segment are.

    Attributes:
        key_sizes: Lengths of the keys.
        value_sizes: Lengths of the values, -1 for a deletion.
        start: Position of the first key. The keys follow each other, and then the values.
    """

    key_sizes: array[int]
    value_sizes: array[int]
    start: int


def layout(data: bytes, where: str) -> SegmentLayout:
    """Verify a segment and return its layout; ``where`` names it in errors."""
    if len(data) < _HEAD.size or zlib.crc32(memoryview(data)[4:]) != _HEAD.unpack_from(data)[0]:
        raise StoreError(
            f"the log is damaged: {where} of {len(data)} bytes does not match its checksum. Restore the checkpoint from a "
            "backup, or start over with another checkpoint_location"
        )
    _, version, count = _HEAD.unpack_from(data)
    if version != _FORMAT:
        raise StoreError(
            f"the log was written by a newer Millstream: {where} has format {version}, and this version reads format "
            f"{_FORMAT}; upgrade this installation"
        )
    start = _HEAD.size + 8 * count
    sizes = _sizes(data[_HEAD.size : start])
    return SegmentLayout(sizes[:count], sizes[count:], start)


def decode(data: bytes, where: str) -> list[StoreChange]:
    """Decode a segment; ``where`` names it in errors."""
    key_sizes, value_sizes, start = layout(data, where)
    sizes = chain(key_sizes, (max(size, 0) for size in value_sizes))
    parts = [data[first:last] for first, last in pairwise(accumulate(sizes, initial=start))]
    values = parts[len(key_sizes) :]
    return [(key, None if size < 0 else value) for key, size, value in zip(parts, value_sizes, values)]


def _sizes(encoded: bytes) -> array[int]:
    sizes = array("i")
    sizes.frombytes(encoded)
    if sys.byteorder == "big":
        sizes.byteswap()
    return sizes


def _little(sizes: array[int]) -> bytes:
    if sys.byteorder == "big":
        sizes.byteswap()
    return sizes.tobytes()
