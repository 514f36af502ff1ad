"""The local copy of a task's byte stores in LMDB. Implements ``LocalCopy``, ``ByteStores`` and ``ByteReader``.

Why LMDB: Spark's Python workers take turns, so any worker of a host must be able to open any task's stores at once; LMDB
opens in half a millisecond, is shared by memory map, and allows many readers beside one writer. It is a cache of
committed state and can always be rebuilt from the log, so it is never synced to disk.

Two things are bounded by the memory that a copy may take: the pages of the map that are resident (see ``pages.py``), and the
pages that one transaction changes, which LMDB holds on the heap until the commit. A change of a random key changes a page,
forty times its own size; so changes are written in transactions of limited size.

How keys of any length fit into LMDB is in ``rows.py``.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

import lmdb

from penstock.core.ports import ByteReader, ByteStores, Changes, ParkedChanges, StoreChange, Version
from penstock.core.state.memory import NOTHING
from penstock.drivers.directory import (
    DAMAGED,
    DEFAULT_MEMORY_BYTES,
    MISSING,
    OTHER_FORMAT,
    CopyDirectory,
    in_parts,
    on_its_way,
    version_from_bytes,
    version_to_bytes,
)
from penstock.drivers.lmdb.pages import MappedPages
from penstock.drivers.lmdb.rows import (
    DATA_FILE,
    LONGEST_SHORT,
    SHORT_BYTES,
    not_above,
    not_below,
    row_of,
    stored_key,
    stored_row,
)

_META = "/version"  # no store can have this name
_VERSION = b"version"
_MAP_SIZE = 64 << 30
_MAX_STORES = 1024
_PARKED_VERSIONS = 2
_KEY = itemgetter(0)
_DATA_FILES, _LOCK = "data*.mdb", f"{DATA_FILE}-lock"
_LOCK_BYTES = 1 << 16
_PAGE_BYTES = 4096
_CHECKED_EVERY = 256
_PAGES_SHARE = 3 / 8
"""The part of the memory that mapped pages may take."""
_CHANGES_SHARE = 1 / 8
"""The part of the memory that the pages of one transaction may take."""

_BROKEN = (lmdb.CorruptedError, lmdb.InvalidError, lmdb.PageNotFoundError, lmdb.VersionMismatchError)

_OPEN: dict[str, LmdbCopy] = {}
_PAGES = MappedPages(int(DEFAULT_MEMORY_BYTES * _PAGES_SHARE))


def open_local_copy(directory: str, memory_bytes: int = DEFAULT_MEMORY_BYTES) -> LmdbCopy:
    """Open the local copy in a directory; one per process and directory, as LMDB demands.

    Args:
        directory: Where the files lie.
        memory_bytes: How much memory of this process its copies may take.

    Raises:
        StoreError: If the directory cannot be written.
    """
    _PAGES.most_bytes = int(memory_bytes * _PAGES_SHARE)
    copy = _OPEN.get(directory)
    if copy is None or not copy.alive():
        copy = _OPEN[directory] = LmdbCopy(directory, memory_bytes)
    return copy


class LmdbCopy:
    """One LMDB environment per task, one named database per byte store. Owned by the process that opened it."""

    exclusive = False

    def __init__(self, directory: str, memory_bytes: int = DEFAULT_MEMORY_BYTES) -> None:
        self._directory = CopyDirectory(directory, _PARKED_VERSIONS)
        self._budget = int(memory_bytes * _CHANGES_SHARE)
        self._view: LmdbView | None = None
        self._env: Any = self._opened()

    def alive(self) -> bool:
        """Tell whether the files that were opened are still the ones in the directory."""
        try:
            return self._env is not None and os.stat(self._directory.path / DATA_FILE).st_ino == self._inode
        except OSError:
            return False

    def version(self) -> Version | None:
        """Give the version of the content, None for an empty copy."""
        with self._env.begin(db=self._database(_META)) as transaction:
            stored = transaction.get(_VERSION)
        return None if stored is None else version_from_bytes(stored)

    def why_empty(self) -> str:
        """Say why an empty copy is empty, for people."""
        return self._directory.why_empty

    def apply(
        self, changes: Mapping[str, Iterable[StoreChange]], version: Version, dropped: Collection[str] = ()
    ) -> None:
        """Drop byte stores, write changes of committed batches, and set their version. No view may be open.

        Raises:
            StoreError: If the disk is full or the directory cannot be written.
        """
        *before, last = in_parts(changes, self._budget, _PAGE_BYTES)
        try:
            unfinished = on_its_way(self.version(), version) if before else version
            self._make_room(len(changes))
            for part in before:
                self._write(part, unfinished, ())
            self._write(last, version, dropped)
        except lmdb.Error as error:
            self._leave(broken=isinstance(error, _BROKEN))
            raise self._directory.failed(error) from error

    def wipe(self) -> None:
        """Remove everything, before a rebuild from the log."""
        self._env.close()
        self._directory.clear(MISSING)
        self._env = self._opened()

    def names(self) -> frozenset[str]:
        """Give the names of the byte stores that exist."""
        with self._env.begin() as transaction:
            names = [bytes(name).decode() for name, _ in transaction.cursor()]
        return frozenset(name for name in names if name != _META)

    def open_view(self) -> ByteStores:
        """Open one consistent view."""
        self._view = LmdbView(self._env)
        return self._view

    def close_view(self) -> None:
        """End the view that :meth:`open_view` gave, and give back the memory that is above the limit."""
        if self._view is not None:
            self._view.close()
            self._view = None
        _PAGES.trim()

    def park(self, version: Version, changes: Changes, dropped: Collection[str] = ()) -> None:
        """Keep the changes of a batch that is not committed yet beside the copy; those of long ago are removed."""
        self._directory.park(version, changes, dropped)

    def parked(self, version: Version) -> ParkedChanges | None:
        """Give the parked changes of exactly this version, if they are here and whole."""
        return self._directory.parked(version)

    def _write(
        self, changes: Mapping[str, list[StoreChange]], version: Version, dropped: Collection[str]
    ) -> None:
        databases = {store: self._database(store) for store in changes}
        there = self.names().intersection(dropped) if dropped else ()
        gone = {name: self._database(name) for name in there}
        meta = self._database(_META)
        with self._env.begin(write=True) as transaction:
            for database in gone.values():
                transaction.drop(database)
            for store, items in changes.items():
                _put(transaction, databases[store], items)
            transaction.put(_VERSION, version_to_bytes(version), db=meta)
        for name in gone:
            del self._databases[name]
        _PAGES.trim()

    def _leave(self, *, broken: bool) -> None:
        """Close after an error, so that the next batch opens anew; what is broken is rebuilt then."""
        self._env.close()
        self._env = None
        if broken:
            self._directory.clear(DAMAGED)

    def _opened(self) -> Any:
        self._directory.prepare()
        if any(file.name != DATA_FILE for file in self._directory.path.glob(_DATA_FILES)):
            self._directory.clear(OTHER_FORMAT)
        try:
            try:
                env = self._environment()
            except _BROKEN:
                self._directory.clear(DAMAGED)
                env = self._environment()
            self._inode = os.stat(self._directory.path / DATA_FILE).st_ino
            self._databases = {_META: env.open_db(_META.encode())}
            return env
        except (OSError, lmdb.Error) as error:
            raise self._directory.failed(error) from error

    def _environment(self) -> Any:
        _reserve(self._directory.path / _LOCK)
        env = lmdb.open(
            str(self._directory.path / DATA_FILE),
            subdir=False,
            map_size=_MAP_SIZE,
            max_dbs=_MAX_STORES,
            sync=False,
            metasync=False,
            max_readers=512,
            readahead=False,
        )
        env.reader_check()
        told = env.info()
        needed = (told["last_pgno"] + 1) * env.stat()["psize"]
        if told["last_txnid"] and os.stat(self._directory.path / DATA_FILE).st_size < needed:
            env.close()  # a page behind the end of the file would kill the process that reads it
            raise lmdb.CorruptedError("the data file is shorter than its content")
        return env

    def _make_room(self, wanted: int) -> None:
        """Open the environment anew when its table of handles is nearly full; dropped slices leave theirs behind."""
        if len(self._databases) + wanted > _MAX_STORES // 2:
            self._env.close()
            self._env = self._opened()

    def _database(self, store: str) -> Any:
        if store not in self._databases:
            self._databases[store] = self._env.open_db(store.encode())
        return self._databases[store]


def _reserve(lock: Path) -> None:
    """Make the lock file with all its bytes: LMDB would make a hole, and filling that on a full disk kills the process."""
    if not lock.exists():
        lock.write_bytes(bytes(_LOCK_BYTES))


def _put(transaction: Any, database: Any, ordered: list[StoreChange]) -> None:
    """Write changes of one store in the order of their keys; behind the last key they are appended, at half the cost."""
    entries = [stored_row(key, value) for key, value in ordered if value is not None]
    if entries:
        if max(map(len, map(_KEY, entries))) > LONGEST_SHORT:
            entries.sort()
        cursor = transaction.cursor(db=database)
        behind = not cursor.last() or cursor.key() < entries[0][0]
        for at in range(0, len(entries), _CHECKED_EVERY):
            cursor.putmulti(entries[at : at + _CHECKED_EVERY], append=behind)
            _PAGES.trim()
    if len(entries) < len(ordered):
        gone = [stored_key(key) for key, value in ordered if value is None]
        for count, key in enumerate(gone, 1):
            transaction.delete(key, db=database)
            if count % _CHECKED_EVERY == 0:
                _PAGES.trim()


class LmdbView:
    """One moment of all byte stores. Implements ``ByteStores``; valid until it is closed."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self._transaction = env.begin()

    def open(self, name: str) -> ByteReader:
        """Give a byte store; one that does not exist is empty."""
        try:
            database = self._env.open_db(name.encode(), txn=self._transaction, create=False)
        except lmdb.NotFoundError:
            return NOTHING
        return LmdbReader(self._transaction, database)

    def close(self) -> None:
        """End the view."""
        self._transaction.abort()


class LmdbReader:
    """One byte store in one view. Valid until the view is closed."""

    def __init__(self, transaction: Any, database: Any) -> None:
        self._transaction = transaction
        self._database = database
        self._get = transaction.get
        self._unchecked = _CHECKED_EVERY

    def get(self, key: bytes) -> bytes | None:
        """Give the value of a key, or None."""
        self._unchecked -= 1
        if not self._unchecked:
            self._unchecked = _CHECKED_EVERY
            _PAGES.trim()
        stored = stored_key(key)
        found: bytes | None = self._get(stored, None, self._database)
        return None if found is None else row_of(stored, found)[1]

    def scan(
        self, low: bytes | None, high: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Iterate in key order over ``low <= key < high``."""
        cursor = self._transaction.cursor(db=self._database)
        return _backwards(cursor, low, high) if reverse else _forwards(cursor, low, high)

    def approximate_count(self) -> int:
        """Give the number of keys."""
        count: int = self._transaction.stat(self._database)["entries"]
        return count


def _forwards(cursor: Any, low: bytes | None, high: bytes | None) -> Iterator[tuple[bytes, bytes]]:
    if not (cursor.first() if low is None else cursor.set_range(not_above(low))):
        return
    for row in _rows(cursor.iternext(), reverse=False):
        if high is not None and row[0] >= high:
            return
        if low is None or row[0] >= low:
            yield row


def _backwards(cursor: Any, low: bytes | None, high: bytes | None) -> Iterator[tuple[bytes, bytes]]:
    behind = high is not None and cursor.set_range(not_below(high))
    if not (cursor.prev() if behind else cursor.last()):
        return
    for row in _rows(cursor.iterprev(), reverse=True):
        if low is not None and row[0] < low:
            return
        if high is None or row[0] < high:
            yield row


def _rows(stored: Iterator[tuple[bytes, bytes]], *, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
    """Iterate over the rows that LMDB gives, in the order of their keys: each run of long ones is sorted."""
    run: list[tuple[bytes, bytes]] = []
    for count, (key, data) in enumerate(stored, 1):
        row = row_of(key, data)
        if run and (len(key) <= LONGEST_SHORT or run[0][0][:SHORT_BYTES] != row[0][:SHORT_BYTES]):
            yield from sorted(run, key=_KEY, reverse=reverse)
            run.clear()
        if len(key) <= LONGEST_SHORT:
            yield row
        else:
            run.append(row)
        if count % _CHECKED_EVERY == 0:
            _PAGES.trim()
    yield from sorted(run, key=_KEY, reverse=reverse)
