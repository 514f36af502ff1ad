"""Key groups: fixed shares of the keys of a store, by checksum.

Key groups form a trie over the checksum of the key. A micro-batch's changes are written to the 64 *top* key groups, by the last
six bits. A key group that has become too large for one step of compaction is split by two more bits: its content moves
down to four key groups. From then on it only collects changes, which move down when there are enough of them. Changes get
older from a top key group downwards, so the deepest key group is read first. Without the split, a step would grow with the
store; with more top key groups, every micro-batch would pay for all of them.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from millstream.core.ports import StoreChange

KEY_GROUPS = 64
"""Top key groups per store and task: a power of two. 64 keeps the segments of a large micro-batch at 64 state writes per store
(about 5 ms)."""

_TOP_BITS = KEY_GROUPS.bit_length() - 1
MORE_BITS = 2
"""Number of checksum bits by which a split divides a key group."""

KeyGroup = tuple[str, int]
"""A byte store and the number of a key group: 0 to 63 for a top key group; for deeper ones, a leading 1 bit followed by the
last bits of the checksum."""


def key_group(key: bytes) -> int:
    return zlib.crc32(key) & (KEY_GROUPS - 1)


def by_key_group(changes: Iterable[StoreChange]) -> dict[int, list[StoreChange]]:
    groups: dict[int, list[StoreChange]] = {}
    for change in changes:
        groups.setdefault(key_group(change[0]), []).append(change)
    return groups


def by_lower_group(number: int, changes: Iterable[StoreChange]) -> dict[int, list[StoreChange]]:
    """Split the changes of a key group by the key groups below it.

    Example:
        >>> sorted(by_lower_group(5, [(b"%d" % n, None) for n in range(5000) if key_group(b"%d" % n) == 5]))
        [261, 325, 389, 453]
    """
    leading = 1 << (bits_of(number) + MORE_BITS)
    groups: dict[int, list[StoreChange]] = {}
    for change in changes:
        groups.setdefault(leading | zlib.crc32(change[0]) & (leading - 1), []).append(change)
    return groups


def top_group(number: int) -> int:
    return number & (KEY_GROUPS - 1)


def bits_of(number: int) -> int:
    return _TOP_BITS if number < KEY_GROUPS else number.bit_length() - 1


def above(number: int) -> int | None:
    """Return the key group that this one was split from, or None for a top key group."""
    bits = bits_of(number) - MORE_BITS
    if bits < _TOP_BITS:
        return None
    low = number & ((1 << bits) - 1)
    return low if bits == _TOP_BITS else 1 << bits | low
