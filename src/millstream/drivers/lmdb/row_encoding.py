"""Rows: the encoding of a byte store's keys and values in LMDB, whose keys have 1 to 511 bytes.

Every key is prefixed with one byte, because a byte store allows the empty key. A *long* key, of more than ``SHORT_BYTES``, is
stored as its first ``SHORT_BYTES`` and a digest of the whole key; the rest of the key precedes the value. Every value is followed
by a checksum of the row, seeded with the name of the byte store:

    short:  k | key                          ->  value | crc32 (4)
    long:   k | first bytes | digest (32)    ->  length of the rest (4, little endian) | rest | value | crc32 (4)

Stored long keys are longer than any stored short key, so the two cannot be confused. LMDB orders rows by key, except for long
keys with the same first bytes: these are adjacent, ordered by digest, and a scan sorts each such run.

The CRC-32 of any data followed by its own CRC-32 is a constant, so a row is checked without separating the checksum.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from operator import itemgetter
from struct import Struct
from typing import Final
from zlib import crc32

from millstream.core.ports import StoreChange

PREFIX: Final = b"k"
SHORT_BYTES: Final = 470
CHECKSUM_BYTES: Final = 4
WHOLE: Final = 0x2144DF1C
"""CRC-32 of an intact row with its checksum."""
DATA_FILE: Final = "data-3.mdb"
"""The number is the format version. A copy in another format is rebuilt."""

_KEY: Final = itemgetter(0)
_checksum: Final = Struct("<I").pack
LONGEST_SHORT: Final = len(PREFIX) + SHORT_BYTES
_DIGEST_BYTES: Final = 32
_LENGTH_BYTES: Final = 4
_BEHIND_DIGESTS: Final = b"\xff" * (_DIGEST_BYTES + 1)


def seed_of(store: str) -> int:
    """Return the seed of a byte store's checksums. It makes the check fail for rows of other byte stores."""
    return crc32(store.encode())


def stored_key(key: bytes) -> bytes:
    if len(key) <= SHORT_BYTES:
        return PREFIX + key
    return PREFIX + key[:SHORT_BYTES] + blake2b(key, digest_size=_DIGEST_BYTES).digest()


def stored_row(key: bytes, value: bytes, seed: int) -> tuple[bytes, bytes]:
    """Return the stored form of a row.

    Example:
        >>> stored, data = stored_row(b"plum", b"85", 7)
        >>> stored, data[:-CHECKSUM_BYTES], crc32(data, crc32(stored, 7)) == WHOLE
        (b'kplum', b'85', True)
    """
    if len(key) <= SHORT_BYTES:
        stored = PREFIX + key
    else:
        stored, rest = stored_key(key), key[SHORT_BYTES:]
        value = len(rest).to_bytes(_LENGTH_BYTES, "little") + rest + value
    return stored, value + _checksum(crc32(value, crc32(stored, seed)))


def stored_rows(changes: Sequence[StoreChange], seed: int) -> list[tuple[bytes, bytes]]:
    """Return the rows of changes that are sorted by key, in the order of their stored keys. Deletions are left out."""
    if max(map(len, map(_KEY, changes)), default=0) > SHORT_BYTES:
        return sorted(stored_row(key, value, seed) for key, value in changes if value is not None)
    # The same as stored_row for short keys, because a call per row would take a tenth of the time of a restore.
    return [
        (stored := PREFIX + key, value + _checksum(crc32(value, crc32(stored, seed))))
        for key, value in changes
        if value is not None
    ]


def long_row(stored: bytes, value: bytes) -> tuple[bytes, bytes]:
    behind = _LENGTH_BYTES + int.from_bytes(value[:_LENGTH_BYTES], "little")
    return stored[len(PREFIX) : LONGEST_SHORT] + value[_LENGTH_BYTES:behind], value[behind:]


def not_above(key: bytes) -> bytes:
    """Return a lower bound for the stored forms of this key and all later keys, where a forward scan starts."""
    return PREFIX + key[:SHORT_BYTES]


def not_below(key: bytes) -> bytes:
    """Return an upper bound for the stored forms of all keys before this one, where a backward scan starts."""
    return PREFIX + key if len(key) <= SHORT_BYTES else PREFIX + key[:SHORT_BYTES] + _BEHIND_DIGESTS
