"""Keys with times: the bytes under which window, session and versioned stores keep entries.

    escaped key | 00 | time (8, big endian) | ...

Serialised keys have any length, so putting times straight behind them would mix keys: all keys that begin with ``a``
would lie within the range of the key ``a``, and a fetch would have to read and skip them. (Kafka Streams does just that.)
So a key is closed by a zero byte, and each zero byte in it becomes ``00 FF``. As times are not negative, their first byte
is never ``FF``; so no key is the beginning of another, the entries of a key are one range of their own, and their order is
that of the serialised keys, then of the times.
"""

from __future__ import annotations

import struct
from typing import Final

from millstream.core.model.errors import StoreError

FOREVER: Final = (1 << 63) - 1
"""The last time there is, ms since the epoch."""

_TIME: Final = struct.Struct(">Q")
_BEHIND: Final = b"\x80"

pack_time = _TIME.pack
"""Gives a time, at most FOREVER + 1, as eight bytes in order."""


def closed(key: bytes) -> bytes:
    r"""Give the beginning of all entries of a serialised key.

    Example:
        >>> closed(b"a"), closed(b"a\x00b")
        (b'a\x00', b'a\x00\xffb\x00')
    """
    return key.replace(b"\x00", b"\x00\xff") + b"\x00"


def after(key: bytes) -> bytes:
    """Give the end of the entries of a serialised key: all of them, and none of the next key's, come before it."""
    return closed(key) + _BEHIND


def split(entry: bytes, width: int) -> tuple[bytes, bytes]:
    r"""Give the serialised key, and what stands behind it.

    Args:
        entry: Bytes of a key in a store.
        width: How many bytes stand behind the key.

    Example:
        >>> split(closed(b"a\x00b") + pack_time(7), 8)
        (b'a\x00b', b'\x00\x00\x00\x00\x00\x00\x00\x07')
    """
    end = len(entry) - width
    return entry[: end - 1].replace(b"\x00\xff", b"\x00"), entry[end:]


def time_at(entry: bytes, place: int) -> int:
    """Give the time at a place of an entry's key; negative places count from its end."""
    time: int = _TIME.unpack_from(entry, place if place >= 0 else len(entry) + place)[0]
    return time


def checked_time(store: str, what: str, time: int) -> int:
    """Give a time back that an entry can be put under.

    Raises:
        StoreError: If it is no int, negative, or too large.
    """
    if not isinstance(time, int) or not 0 <= time <= FOREVER:
        raise StoreError(
            f"store {store!r}: {what} is a number of ms since the epoch, at least 0, not {time!r}"
        )
    return time
