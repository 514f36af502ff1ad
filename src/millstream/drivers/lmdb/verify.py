"""Verification of an LMDB file, page by page, before LMDB opens it.

LMDB has no checksums, and a damaged page can make it miss keys, return old rows, or crash the process. A file is therefore verified
before LMDB opens it. Each row has a checksum (see ``row_encoding.py``). LMDB's structures around the rows have none, but their
consistency can be proven:

* every page contains its number and kind, and its entries fill it exactly;
* keys ascend through the whole tree, and are between the keys of the branches above them;
* each page is used once: by one tree, or by the list of free pages, so that no reference leads to an old page;
* the numbers of pages and entries, and the depth, match the root of the tree.

Damage that violates none of these rules does not change the result of any read. The format is that of LMDB 0.9 (``mdb.c``:
``MDB_meta``, ``MDB_db``, ``MDB_page``, ``MDB_node``) on 64 bits, little endian.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from millstream.drivers.lmdb.row_encoding import WHOLE, seed_of

_META_REST: Final = struct.Struct("<QQ")
_DB: Final = struct.Struct("<IHHQQQQQ")
_PAGE: Final = struct.Struct("<QHHHH")
_NODE: Final = struct.Struct("<HHHH")
_NUMBER: Final = struct.Struct("<Q")
_MAGIC: Final = 0xBEEFC0DE
_FORMAT: Final = 1
_HEAD: Final = 16
_NODE_HEAD: Final = 8
_BRANCH, _LEAF, _OVERFLOW = 1, 2, 4
_BIG, _TREE = 1, 2
_NOWHERE: Final = (1 << 64) - 1
_DEEPEST: Final = 32
_PAGE_BYTES: Final = frozenset(1 << bits for bits in range(9, 17))
_CHANGED: Final = 3


class DamagedFileError(Exception):
    """A file is damaged. The text describes the damage and its location."""


class _Db(NamedTuple):
    pad: int
    flags: int
    depth: int
    branches: int
    leaves: int
    overflows: int
    entries: int
    root: int


class _Meta(NamedTuple):
    free: _Db
    main: _Db
    last_page: int
    transaction: int


def verify(path: Path) -> None:
    """Verify an LMDB file. A missing or empty file is valid."""
    if not path.exists() or not path.stat().st_size:
        return
    for left in reversed(range(_CHANGED)):
        with path.open("rb", buffering=0) as file:
            walk = _PageWalk(file.fileno())
            try:
                walk.run()
                return
            except (DamagedFileError, struct.error, RecursionError, UnicodeDecodeError) as error:
                # if the file has changed, another process has written in the meantime: retry
                if not left or not walk.changed():
                    raise DamagedFileError(f"{path.name}: {error}") from error


class _PageWalk:
    def __init__(self, file: int) -> None:
        self._file = file
        self._head = os.pread(file, 1 << 17, 0)
        self._used: set[int] = {0, 1}
        self._last = b""
        self._floor = b""
        self._counts = [0, 0, 0, 0]

    def changed(self) -> bool:
        """Return whether another process has written to the file since it was opened."""
        size = self._size if self._size in _PAGE_BYTES else 4096
        return os.pread(self._file, 2 * size, 0) != self._head[: 2 * size]

    _size = 0

    def run(self) -> None:
        meta = self._meta()
        if os.fstat(self._file).st_size < (meta.last_page + 1) * self._size:
            raise DamagedFileError("it is shorter than its content")
        self._newest = meta
        for _, data in self._entries(meta.free, "the list of free pages", turned=True):
            count = _NUMBER.unpack_from(data)[0]
            for number in struct.unpack_from(f"<{count}Q", data, 8):
                self._mark_used(number, 1)
        names = [
            (name.decode(), _Db(*_DB.unpack(data)))
            for name, data in self._entries(meta.main, "the list of stores")
        ]
        for name, db in names:
            self._rows(name, db)

    def _meta(self) -> _Meta:
        """Return the newer of the two meta pages. Both must be intact."""
        self._size = struct.unpack_from("<I", self._head, 40)[0]
        if self._size not in _PAGE_BYTES:
            raise DamagedFileError(f"its pages have {self._size} bytes")
        metas = []
        for number in (0, 1):
            page = self._head[number * self._size : (number + 1) * self._size]
            own, _, flags, _, _ = _PAGE.unpack_from(page)
            magic, version = struct.unpack_from("<II", page, _HEAD)
            if (own, flags, magic, version) != (number, 8, _MAGIC, _FORMAT):
                raise DamagedFileError(f"page {number} is not a meta page of LMDB")
            free, main = _Db(*_DB.unpack_from(page, 40)), _Db(*_DB.unpack_from(page, 88))
            metas.append(_Meta(free, main, *_META_REST.unpack_from(page, 136)))
        older, newer = sorted(meta.transaction for meta in metas)
        newest = metas[newer % 2]
        if newer - older != bool(newer) or newest.transaction != newer or newest.free.pad != self._size:
            raise DamagedFileError("its two meta pages are inconsistent")
        return newest

    def _mark_used(self, number: int, pages: int) -> None:
        """Mark pages as used. Each page may be used only once."""
        for each in range(number, number + pages):
            if each in self._used or each > self._newest.last_page:
                raise DamagedFileError(f"page {each} is used twice, or is beyond the end")
            self._used.add(each)

    def _page(self, number: int) -> bytes:
        page = os.pread(self._file, self._size, number * self._size)
        if _PAGE.unpack_from(page)[0] != number:
            raise DamagedFileError(f"page {number} has the number of another page")
        return page

    def _tree(self, db: _Db, what: str, *, turned: bool) -> Iterator[bytes]:
        """Iterate over the leaves of a tree. At the end, check its depth and counts against its root."""
        self._last = self._floor = b""
        self._counts = [0, 0, 0, 0]
        depth = 0
        if db.root != _NOWHERE:
            depth = db.depth
            if not 0 < depth <= _DEEPEST:
                raise DamagedFileError(f"{what} has {depth} levels")
            yield from self._leaves_below(db.root, depth, turned=turned)
        if (db.depth, *db[3:7]) != (depth, *self._counts):
            raise DamagedFileError(f"{what} has different numbers of pages or rows than it states")

    def _leaves_below(self, number: int, depth: int, *, turned: bool) -> Iterator[bytes]:
        self._mark_used(number, 1)
        page = self._page(number)
        kind = _PAGE.unpack_from(page)[2]
        if kind != (_LEAF if depth == 1 else _BRANCH):
            raise DamagedFileError(f"page {number} is of the wrong kind")
        self._counts[depth == 1] += 1
        if depth == 1:
            yield page
            return
        offsets = _positions(page)
        used = 0
        for nth, offset in enumerate(offsets):
            low, middle, high, size = _NODE.unpack_from(page, offset)
            used += _NODE_HEAD + size + (size & 1)
            if nth:
                key = page[offset + _NODE_HEAD : offset + _NODE_HEAD + size]
                self._floor = key[::-1] if turned else key
                if self._floor <= self._last:
                    raise DamagedFileError(f"page {number} leads to keys out of order")
            yield from self._leaves_below(low | middle << 16 | high << 32, depth - 1, turned=turned)
        _check_filled(page, number, used)

    def _entries(self, db: _Db, what: str, *, turned: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the keys and values of one of LMDB's own trees: the list of free pages or of stores."""
        for page in self._tree(db, what, turned=turned):
            offsets, used = _positions(page), 0
            number = _PAGE.unpack_from(page)[0]
            for offset in offsets:
                low, high, flags, size = _NODE.unpack_from(page, offset)
                length = low | high << 16
                begin = offset + _NODE_HEAD
                key = page[begin : begin + size]
                self._check_key_order(key[::-1] if turned else key, number)
                here = 8 if flags & _BIG else length
                used += _NODE_HEAD + size + here + (size + here & 1)
                if flags != (_BIG if turned else _TREE) and (flags or not turned):
                    raise DamagedFileError(f"page {number} has an entry of the wrong kind")
                data = page[begin + size : begin + size + here]
                yield key, self._overflow_data(data, length) if flags & _BIG else data
            _check_filled(page, number, used)

    def _check_key_order(self, key: bytes, number: int) -> None:
        """Check that a key follows the previous one, and count it."""
        if key <= self._last or key < self._floor:
            raise DamagedFileError(f"page {number} has keys out of order")
        self._last = key
        self._counts[3] += 1

    def _overflow_data(self, data: bytes, length: int) -> bytes:
        number = _NUMBER.unpack(data)[0]
        pages = (_HEAD - 1 + length) // self._size + 1
        self._mark_used(number, pages)
        self._counts[2] += pages
        _, _, flags, low, high = _PAGE.unpack_from(self._page(number))
        if (flags, low | high << 16) != (_OVERFLOW, pages):
            raise DamagedFileError(f"page {number} is of the wrong kind")
        return os.pread(self._file, length, number * self._size + _HEAD)

    def _rows(self, name: str, db: _Db) -> None:
        if db.pad or db.flags:
            raise DamagedFileError(f"store {name!r} is of the wrong kind")
        seed, what = seed_of(name), f"store {name!r}"
        unpack, crc32 = _NODE.unpack_from, zlib.crc32
        for page in self._tree(db, what, turned=False):
            offsets = _positions(page)
            number = _PAGE.unpack_from(page)[0]
            last, used = self._last, 0
            if offsets:
                size = unpack(page, offsets[0])[3]
                if page[offsets[0] + _NODE_HEAD :][:size] < self._floor:
                    raise DamagedFileError(f"{what}, page {number}: keys are out of order")
            for offset in offsets:
                low, high, flags, size = unpack(page, offset)
                begin = offset + _NODE_HEAD
                behind = begin + size
                key = page[begin:behind]
                if key <= last:
                    raise DamagedFileError(f"{what}, page {number}: keys are out of order")
                last = key
                if flags == 0:
                    end = behind + (low | high << 16)
                    used += end - offset + (end - offset & 1)
                    whole = crc32(page[begin:end], seed) == WHOLE
                else:
                    used += _NODE_HEAD + size + 8 + (size & 1)
                    data = (
                        self._overflow_data(page[behind : behind + 8], low | high << 16)
                        if flags == _BIG
                        else b""
                    )
                    whole = crc32(data, crc32(key, seed)) == WHOLE
                if not whole:
                    raise DamagedFileError(f"{what}, page {number}: a row does not match its checksum")
            self._last = last
            self._counts[3] += len(offsets)
            _check_filled(page, number, used)


def _positions(page: bytes) -> tuple[int, ...]:
    lower = _PAGE.unpack_from(page)[3]
    return struct.unpack_from(f"<{max(lower - _HEAD, 0) // 2}H", page, _HEAD)


def _check_filled(page: bytes, number: int, used: int) -> None:
    """Raise an error if the entries of a page do not fill it exactly."""
    _, _, _, lower, upper = _PAGE.unpack_from(page)
    if lower % 2 or lower < _HEAD or lower > upper or upper + used != len(page):
        raise DamagedFileError(f"page {number} is not filled by its entries")
