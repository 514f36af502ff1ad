"""The local copy of a task's byte stores in LMDB. Implements ``LocalCopy``.

Spark's Python workers take turns, so any worker of a host must be able to open any task's stores quickly. LMDB opens in 0.5 ms, is
shared by memory map, and allows many readers besides one writer. The copy is a cache of committed state that can always be rebuilt
from the log, so it is never synced to disk.

The memory limit of a copy bounds the resident pages of the map (see ``pages.py``) and the dirty pages of a transaction, which LMDB keeps
on the heap until the commit. Writing a random key dirties a page of forty times the key's size, so changes are written in transactions
of limited size.

``row_encoding.py`` describes how keys of any length are stored.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import lmdb

from millstream.core.model.errors import DamagedCopyError, StoreError
from millstream.core.ports import DEFAULT_MEMORY_BYTES, ByteReader, ByteStores, StoreChange, Version
from millstream.drivers.directory import (
    MISSING,
    OTHER_FORMAT,
    CopyDirectory,
    DirectoryCopy,
    in_parts,
    log,
    on_its_way,
    version_from_bytes,
    version_to_bytes,
)
from millstream.drivers.lmdb.pages import CHECKED_EVERY, PAGES
from millstream.drivers.lmdb.row_encoding import (
    DATA_FILE,
    seed_of,
    stored_key,
    stored_row,
    stored_rows,
)
from millstream.drivers.lmdb.verify import DamagedFileError, verify
from millstream.drivers.lmdb.view import BROKEN, LmdbReader, LmdbView

_META = "/version"  # no store can have this name
_VERSION = b"version"
_MAP_SIZE = 64 << 30
_MAX_STORES = 1024
_DATA_FILES, _LOCK = "data*.mdb", f"{DATA_FILE}-lock"
_VERIFIED = "verified"
"""File that names the run that has verified the data file, and the data file's inode. A truncated file is ignored."""
_LOCK_BYTES = 1 << 16
_PAGE_BYTES = 4096
_PAGES_SHARE = 3 / 8
"""Fraction of the memory for mapped pages."""
_CHANGES_SHARE = 1 / 8
"""Fraction of the memory for the dirty pages of one transaction."""


_OPEN: dict[str, LmdbCopy] = {}
"""By directory, the most recently used last."""
_MOST_OPEN = 1_000
"""Each open copy takes ``_MAP_SIZE`` of the address space of the process, which has room for 2,047, and three file descriptors."""


def open_local_copy(directory: str, memory_bytes: int = DEFAULT_MEMORY_BYTES, run: str = "") -> LmdbCopy:
    """Open the local copy in a directory. LMDB requires that a process opens each file only once.

    Args:
        run: Id of the application's run. The first process of a run that opens a copy verifies its file.
    """
    PAGES.most_bytes = int(memory_bytes * _PAGES_SHARE)
    copy = _OPEN.pop(directory, None)
    if copy is None or not copy.alive():
        _close_unused()
        copy = LmdbCopy(directory, memory_bytes, run)
    _OPEN[directory] = copy
    return copy


def _close_unused() -> None:
    """Close the copies that were not used for the longest time, to make room for another one."""
    for directory in list(_OPEN)[: max(len(_OPEN) + 1 - _MOST_OPEN, 0)]:
        if _OPEN[directory]._view is None:
            _OPEN.pop(directory).close()


class LmdbCopy(DirectoryCopy):
    """A task's LMDB environment, with one named database per byte store. Owned by the process that opened it."""

    exclusive = False

    def __init__(self, directory: str, memory_bytes: int = DEFAULT_MEMORY_BYTES, run: str = "") -> None:
        self._run = run
        super().__init__(CopyDirectory(directory))
        self._budget = int(memory_bytes * _CHANGES_SHARE)
        self._view: LmdbView | None = None
        self._seen: tuple[Version | None, ...] = ()  # empty from close_view() until the next version()
        self._env: Any = self._open_verified()

    def alive(self) -> bool:
        """Return whether the open files are still those in the directory."""
        try:
            return self._env is not None and os.stat(self.directory.path / DATA_FILE).st_ino == self._inode
        except OSError:
            return False

    def close(self) -> None:
        """Close the files, which stay as they are. The copy can no longer be used."""
        if self._env is not None:
            self._env.close()
            self._env = None

    def version(self) -> Version | None:
        """Return the version of the content, or None for an empty copy.

        Until :meth:`close_view`, reads and writes are based on this version and on the versions applied to it.
        """
        try:
            with self._env.begin() as transaction:
                self._seen = (_version(self._meta(transaction)),)
        except DamagedCopyError:
            self._throw_away()
            self._seen = (None,)
        return self._seen[0]

    def apply(
        self, changes: Mapping[str, Iterable[StoreChange]], version: Version, dropped: Collection[str] = ()
    ) -> None:
        """Drop byte stores, write the changes of committed micro-batches, and set the version. No view may be open.

        Raises:
            CopyMovedError: If another process has written or recreated the copy since :meth:`version`.
            DamagedCopyError: If the copy is damaged. The copy is now empty.
        """
        *before, last = in_parts(changes, self._budget, _PAGE_BYTES)
        try:
            unfinished = version
            if before:
                unfinished = on_its_way(self._seen[0] if self._seen else self.version(), version)
            self._make_room(len(changes))
            for part in before:
                self._write(part, unfinished, ())
            self._write(last, version, dropped)
        except BROKEN as error:
            damage = self.directory.damaged(str(error))
            self._throw_away()
            raise damage from error
        except lmdb.MapFullError as error:
            self.close()
            raise self._map_full_error() from error
        except lmdb.Error as error:
            self.close()  # the next micro-batch opens it again
            raise self.directory.unusable_error(error) from error

    def wipe(self) -> None:
        self._env.close()
        self.directory.clear(MISSING)
        self._env = self._open_verified()
        self._seen = (None,)

    def names(self) -> frozenset[str]:
        with self._env.begin() as transaction:
            names = [bytes(name).decode() for name, _ in transaction.cursor()]
        return frozenset(name for name in names if name != _META)

    def open_view(self) -> ByteStores:
        self._view = LmdbView(self._env, self.directory)
        self._check(self._view.open(_META))
        return self._view

    def close_view(self) -> None:
        """Close the view of :meth:`open_view` and release memory above the limit.

        Raises:
            DamagedCopyError: If the copy is damaged. The copy is now empty.
        """
        if self._view is not None:
            self._view.close()
            self._view = None
        self._seen = ()
        PAGES.trim()
        error = self.directory.damage
        if error is not None:
            self._throw_away()
            raise error

    def _write(
        self, changes: Mapping[str, list[StoreChange]], version: Version, dropped: Collection[str]
    ) -> None:
        databases = {store: self._database(store) for store in changes}
        existing = self.names().intersection(dropped) if dropped else ()
        gone = {name: self._database(name) for name in existing}
        meta = self._database(_META)
        with self._env.begin(write=True) as transaction:
            self._check(self._meta(transaction))
            for database in gone.values():
                transaction.drop(database)
            for store, items in changes.items():
                _put(transaction, databases[store], items, seed_of(store))
            transaction.put(*stored_row(_VERSION, version_to_bytes(version), seed_of(_META)), db=meta)
        if self._seen:
            self._seen = (version,)
        for name in gone:
            del self._databases[name]
        PAGES.trim()

    def _meta(self, transaction: Any) -> ByteReader:
        return LmdbReader(transaction, self._databases[_META], _META, self.directory)

    def _check(self, meta: ByteReader) -> None:
        if self._seen and (current := _version(meta)) != self._seen[0]:
            raise self.directory.moved(self._seen[0], current)

    def _map_full_error(self) -> StoreError:
        return StoreError(
            f"the local copy in {self.directory.path} has reached {_MAP_SIZE >> 30} GiB, the limit of LMDB for the stores of a task. Nothing "
            "is lost: start the application with store_engine='rocksdb', or with engine='rocksdb' on its large stores; their copies are "
            "rebuilt from the log"
        )

    def _throw_away(self) -> None:
        self._env.close()
        self.directory.throw_away()
        self._env = self._open_verified()

    def _open_verified(self) -> Any:
        """Open the environment. A damaged file is deleted."""
        self.directory.prepare()
        if any(file.name != DATA_FILE for file in self.directory.path.glob(_DATA_FILES)):
            self.directory.clear(OTHER_FORMAT)
        try:
            try:
                if not self._is_verified():
                    verify(self.directory.path / DATA_FILE)
                env = self._environment()
            except (DamagedFileError, *BROKEN) as error:
                log.warning("%s", self.directory.damaged(str(error)))
                self.directory.throw_away()
                env = self._environment()
            self._inode = os.stat(self.directory.path / DATA_FILE).st_ino
            if self._run and not self._is_verified():
                (self.directory.path / _VERIFIED).write_text(f"{self._run} {self._inode}")
            self._databases = {_META: env.open_db(_META.encode())}
            return env
        except (OSError, lmdb.Error) as error:
            raise self.directory.unusable_error(error) from error

    def _is_verified(self) -> bool:
        try:
            inode = os.stat(self.directory.path / DATA_FILE).st_ino
            return bool(self._run) and (self.directory.path / _VERIFIED).read_text() == f"{self._run} {inode}"
        except (OSError, UnicodeDecodeError):
            return False

    def _environment(self) -> Any:
        _reserve(self.directory.path / _LOCK)
        env = environment_of(self.directory.path / DATA_FILE)
        env.reader_check()
        return env

    def _make_room(self, wanted: int) -> None:
        """Reopen the environment when its table of handles is nearly full, because dropped slices do not free their handles."""
        if len(self._databases) + wanted > _MAX_STORES // 2:
            before = self._inode
            self._env.close()
            self._env = self._open_verified()
            if self._seen and self._inode != before:
                # Raise even if the versions are equal, as they are if both processes restore from an empty copy.
                raise self.directory.moved(self._seen[0], self.version())

    def _database(self, store: str) -> Any:
        if store not in self._databases:
            self._databases[store] = self._env.open_db(store.encode())
        return self._databases[store]


def environment_of(file: Path, *, readonly: bool = False) -> Any:
    """Open the environment of a data file. LMDB requires that a process opens each file only once."""
    return lmdb.open(
        str(file),
        subdir=False,
        map_size=_MAP_SIZE,
        max_dbs=_MAX_STORES,
        sync=False,
        metasync=False,
        max_readers=512,
        readahead=False,
        readonly=readonly,
    )


def version_of(view: LmdbView) -> Version | None:
    """Return the version of the content of a view, or None for an empty copy."""
    return _version(view.open(_META))


def _version(meta: ByteReader) -> Version | None:
    stored = meta.get(_VERSION)
    return None if stored is None else version_from_bytes(stored)


def _reserve(lock: Path) -> None:
    """Create the lock file with all its bytes. LMDB would create a sparse file, and a write to it on a full disk kills the process."""
    if not lock.exists():
        lock.write_bytes(bytes(_LOCK_BYTES))


def _put(transaction: Any, database: Any, ordered: list[StoreChange], seed: int) -> None:
    """Write changes of a store in key order. Changes after the last key are appended, at half the cost."""
    entries = stored_rows(ordered, seed)
    if entries:
        cursor = transaction.cursor(db=database)
        if not cursor.last() or cursor.key() < entries[0][0]:
            cursor.putmulti(entries, append=True)  # maps no pages but those of the last key
        else:
            for start in range(0, len(entries), CHECKED_EVERY):
                cursor.putmulti(entries[start : start + CHECKED_EVERY])
                PAGES.trim()
    if len(entries) < len(ordered):
        gone = [stored_key(key) for key, value in ordered if value is None]
        for count, key in enumerate(gone, 1):
            transaction.delete(key, db=database)
            if count % CHECKED_EVERY == 0:
                PAGES.trim()
