"""Keys with times: the binary keys of entries in window, session and versioned stores.

    escaped key | 00 | time (8, big endian) | ...

A zero byte ends the key, and each zero byte within the key becomes ``00 FF``. Times are not negative, so their first byte is never
``FF``. As a result, no escaped key is a prefix of another: the entries of each key form a separate range, and entries are ordered by
serialised key, then by time. Without the zero byte, the entries of key ``ab`` would be in the range of key ``a``, as in Kafka Streams.
"""

from __future__ import annotations

import struct
from typing import Final

from millstream.core.model.errors import StoreError

FOREVER: Final = (1 << 63) - 1
"""The latest possible time, ms since the epoch."""

_TIME: Final = struct.Struct(">Q")
_BEHIND: Final = b"\x80"

pack_time = _TIME.pack
"""Encodes a time, at most FOREVER + 1, as eight bytes that sort by time."""


def entry_prefix(key: bytes) -> bytes:
    r"""Return the common prefix of all entries of a serialised key.

    Example:
        >>> entry_prefix(b"a"), entry_prefix(b"a\x00b")
        (b'a\x00', b'a\x00\xffb\x00')
    """
    return key.replace(b"\x00", b"\x00\xff") + b"\x00"


def entries_end(key: bytes) -> bytes:
    """Return the exclusive end of the range of a serialised key's entries."""
    return entry_prefix(key) + _BEHIND


def split(entry: bytes, width: int) -> tuple[bytes, bytes]:
    r"""Return the serialised key of an entry and the ``width`` bytes that follow it.

    Example:
        >>> split(entry_prefix(b"a\x00b") + pack_time(7), 8)
        (b'a\x00b', b'\x00\x00\x00\x00\x00\x00\x00\x07')
    """
    end = len(entry) - width
    return entry[: end - 1].replace(b"\x00\xff", b"\x00"), entry[end:]


def time_at(entry: bytes, index: int) -> int:
    """Return the time at a byte position in an entry's key. Negative positions count from the end."""
    time: int = _TIME.unpack_from(entry, index if index >= 0 else len(entry) + index)[0]
    return time


def checked_time(store: str, what: str, time: int) -> int:
    """Return a time unchanged if it is valid for an entry.

    Raises:
        StoreError: If the time is not an int, is negative, or is too large.
    """
    if not isinstance(time, int) or not 0 <= time <= FOREVER:
        raise StoreError(
            f"store {store!r}: {what} must be a number of ms since the epoch, at least 0, not {time!r}"
        )
    return time
