"""Key groups: shares of the keys of a store, by checksum.

Key groups form a trie over the checksum of the key. At the top is the key group of the whole store, to which a micro-batch with few
changes writes one segment. A micro-batch with many changes writes to the 64 key groups below it, by the last six bits. A key group that
has grown too large for one compaction step is split: its content moves down, to the 64 key groups below the whole store or, by two more
bits, to four. From then on it only collects changes, which move down once there are enough of them. Deeper key groups hold older
changes, so the deepest key group is read first. Without splits, a compaction step would grow with the store.
"""

from __future__ import annotations

import zlib
from functools import cache

WHOLE_STORE = -1
"""The number of the key group with all keys of a store."""

KEY_GROUPS = 64
"""Number of key groups directly below the whole store, a power of two. With 64, even a large micro-batch writes at most 64 segments to
Spark's state per store (about 5 ms)."""

_FIRST_BITS = KEY_GROUPS.bit_length() - 1
MORE_BITS = 2
"""Number of checksum bits by which a split divides a key group below the whole store."""

KeyGroup = tuple[str, int]
"""A byte store and the number of a key group: -1 for the whole store, 0 to 63 for the key groups below it. The number of a deeper key
group is a leading 1 bit followed by the last bits of the checksum."""


def key_group(key: bytes) -> int:
    """Return the key group directly below the whole store to which a key belongs."""
    return zlib.crc32(key) & (KEY_GROUPS - 1)


def lower_group(number: int, key: bytes) -> int:
    """Return the key group below a key group to which one of its keys belongs."""
    if number == WHOLE_STORE:
        return key_group(key)
    leading = 1 << (bits_of(number) + MORE_BITS)
    return leading | zlib.crc32(key) & (leading - 1)


def bits_of(number: int) -> int:
    """Return the number of checksum bits that the keys of a key group have in common."""
    if number == WHOLE_STORE:
        return 0
    return _FIRST_BITS if number < KEY_GROUPS else number.bit_length() - 1


@cache
def groups_above(number: int) -> tuple[int, ...]:
    """Return the key groups that were split until this one was reached, the whole store last."""
    if number == WHOLE_STORE:
        return ()
    if number < KEY_GROUPS:
        return (WHOLE_STORE,)
    parent = raised(number, 1)
    return parent, *groups_above(parent)


def raised(number: int, splits: int) -> int:
    """Return the key group that is ``splits`` splits above, but not the whole store unless it is given."""
    if number == WHOLE_STORE:
        return number
    bits = max(bits_of(number) - splits * MORE_BITS, _FIRST_BITS)
    low = number & ((1 << bits) - 1)
    return low if bits == _FIRST_BITS else 1 << bits | low
