"""Key groups: fixed shares of the keys of a store, by checksum.

Key groups form a trie over the checksum of the key. A micro-batch writes its changes to the 64 *top* key groups, by the last six
bits. A key group that has grown too large for one compaction step is split by two more bits: its content moves down to four key
groups. From then on it only collects changes, which move down once there are enough of them. Deeper key groups hold older changes, so
the deepest key group is read first. Without splits, a compaction step would grow with the store. With more top key groups, every
micro-batch would pay for all of them.
"""

from __future__ import annotations

import zlib

KEY_GROUPS = 64
"""Number of top key groups per store and task, a power of two. With 64, even a large micro-batch writes at most 64 segments to Spark's
state per store (about 5 ms)."""

_TOP_BITS = KEY_GROUPS.bit_length() - 1
MORE_BITS = 2
"""Number of checksum bits by which a split divides a key group."""

KeyGroup = tuple[str, int]
"""A byte store and the number of a key group: 0 to 63 for a top key group. The number of a deeper key group is a leading 1 bit
followed by the last bits of the checksum."""


def key_group(key: bytes) -> int:
    return zlib.crc32(key) & (KEY_GROUPS - 1)


def lower_group(number: int, key: bytes) -> int:
    """Return the key group below a key group to which one of its keys belongs."""
    leading = 1 << (bits_of(number) + MORE_BITS)
    return leading | zlib.crc32(key) & (leading - 1)


def top_group(number: int) -> int:
    return number & (KEY_GROUPS - 1)


def bits_of(number: int) -> int:
    return _TOP_BITS if number < KEY_GROUPS else number.bit_length() - 1


def parent_of(number: int) -> int | None:
    """Return the key group from which this one was split, or None for a top key group."""
    bits = bits_of(number) - MORE_BITS
    if bits < _TOP_BITS:
        return None
    low = number & ((1 << bits) - 1)
    return low if bits == _TOP_BITS else 1 << bits | low
