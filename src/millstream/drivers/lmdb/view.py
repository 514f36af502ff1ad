"""Views of a local copy in LMDB. Implement ``ByteStores`` and ``ByteReader``."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from typing import Any
from zlib import crc32

import lmdb

from millstream.core.model.errors import DamagedCopyError
from millstream.core.ports import ByteReader
from millstream.core.state.memory import NOTHING
from millstream.drivers.directory import CopyDirectory
from millstream.drivers.lmdb.pages import CHECKED_EVERY, PAGES
from millstream.drivers.lmdb.row_encoding import (
    CHECKSUM_BYTES,
    DATA_FILE,
    LONGEST_SHORT,
    PREFIX,
    SHORT_BYTES,
    WHOLE,
    long_row,
    not_above,
    not_below,
    seed_of,
    stored_key,
)

_KEY = itemgetter(0)
BROKEN = (
    lmdb.BadTxnError,
    lmdb.BadValsizeError,
    lmdb.CorruptedError,
    lmdb.CursorFullError,
    lmdb.IncompatibleError,
    lmdb.InvalidError,
    lmdb.PageFullError,
    lmdb.PageNotFoundError,
    lmdb.PanicError,
    lmdb.VersionMismatchError,
)
"""The errors that LMDB raises if its file is damaged."""


class LmdbView:
    """A consistent view of all byte stores. Implements ``ByteStores``. Valid until it is closed."""

    def __init__(self, env: Any, directory: CopyDirectory) -> None:
        self._env = env
        self._directory = directory
        self._transaction = env.begin()

    def open(self, name: str) -> ByteReader:
        try:
            database = self._env.open_db(name.encode(), txn=self._transaction, create=False)
        except lmdb.NotFoundError:
            return NOTHING
        except BROKEN as error:
            raise self._directory.damaged(f"store {name!r}: {error}") from error
        return LmdbReader(self._transaction, database, name, self._directory)

    def close(self) -> None:
        self._transaction.abort()


class LmdbReader:
    """A byte store in a view. Valid until the view is closed."""

    def __init__(self, transaction: Any, database: Any, name: str, directory: CopyDirectory) -> None:
        self._transaction = transaction
        self._database = database
        self._name = name
        self._directory = directory
        self._seed = seed_of(name)
        self._get = transaction.get
        self._unchecked = CHECKED_EVERY

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None.

        Raises:
            DamagedCopyError: If the row is damaged.
        """
        self._unchecked -= 1
        if not self._unchecked:
            self._unchecked = CHECKED_EVERY
            PAGES.trim()
        short = len(key) <= SHORT_BYTES
        stored = PREFIX + key if short else stored_key(key)
        try:
            packed: bytes | None = self._get(stored, None, self._database)
        except BROKEN as error:
            raise self._damaged(str(error)) from error
        if packed is None:
            return None
        if crc32(packed, crc32(stored, self._seed)) != WHOLE:
            raise self._damaged()
        value = packed[:-CHECKSUM_BYTES]
        return value if short else long_row(stored, value)[1]

    def scan(
        self, low: bytes | None, high: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Iterate in key order over ``low <= key < high``.

        Raises:
            DamagedCopyError: If a row is damaged.
        """
        return self._backwards(low, high) if reverse else self._forwards(low, high)

    def approximate_count(self) -> int:
        count: int = self._transaction.stat(self._database)["entries"]
        return count

    def _forwards(self, low: bytes | None, high: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        cursor = self._transaction.cursor(db=self._database)
        try:
            if not (cursor.first() if low is None else cursor.set_range(not_above(low))):
                return
            for row in self._rows(cursor.iternext(), reverse=False):
                if high is not None and row[0] >= high:
                    return
                if low is None or row[0] >= low:
                    yield row
        except BROKEN as error:
            raise self._damaged(str(error)) from error

    def _backwards(self, low: bytes | None, high: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        cursor = self._transaction.cursor(db=self._database)
        try:
            behind = high is not None and cursor.set_range(not_below(high))
            if not (cursor.prev() if behind else cursor.last()):
                return
            for row in self._rows(cursor.iterprev(), reverse=True):
                if low is not None and row[0] < low:
                    return
                if high is None or row[0] < high:
                    yield row
        except BROKEN as error:
            raise self._damaged(str(error)) from error

    def _rows(self, stored: Iterator[tuple[bytes, bytes]], *, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        """Decode stored rows in key order. Each run of long keys is sorted."""
        seed = self._seed
        run: list[tuple[bytes, bytes]] = []
        unchecked = CHECKED_EVERY
        for key, data in stored:
            if crc32(data, crc32(key, seed)) != WHOLE:
                raise self._damaged()
            short = len(key) <= LONGEST_SHORT
            if run and (short or run[0][0][:SHORT_BYTES] != key[1:LONGEST_SHORT]):
                yield from sorted(run, key=_KEY, reverse=reverse)
                run.clear()
            if short:
                yield key[1:], data[:-CHECKSUM_BYTES]
            else:
                run.append(long_row(key, data[:-CHECKSUM_BYTES]))
            unchecked -= 1
            if not unchecked:
                unchecked = CHECKED_EVERY
                PAGES.trim()
        yield from sorted(run, key=_KEY, reverse=reverse)

    def _damaged(self, what: str = "a row does not match its checksum") -> DamagedCopyError:
        return self._directory.damaged(f"{DATA_FILE}, store {self._name!r}: {what}")
