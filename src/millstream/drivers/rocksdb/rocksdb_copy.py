"""The local copy of a task's byte stores in RocksDB. Implements ``LocalCopy``, ``ByteStores`` and ``ByteReader``.

Only one process at a time can open a RocksDB database, and Spark's Python workers take turns. The database is therefore opened when a
micro-batch first needs it, and closed at the end of the micro-batch, which takes a few ms. A worker that finds it locked waits:
either the other worker is about to finish, or Spark has abandoned it while it was still running.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from millstream.core.model.errors import StoreError
from millstream.core.ports import DEFAULT_MEMORY_BYTES, ByteReader, ByteStores, StoreChange, Version
from millstream.core.state.memory import NOTHING
from millstream.drivers.directory import (
    MISSING,
    CopyDirectory,
    DirectoryCopy,
    in_parts,
    log,
    on_its_way,
    version_from_bytes,
)
from millstream.drivers.rocksdb.rocksdb_database import VERSION, Database
from millstream.drivers.rocksdb.rocksdb_options import options

DATABASE: Final = "rocksdb"
"""Name of the database in the directory of a copy."""
_HOLDER = "holder"
_LOCK_WAIT_S = 10.0
_POLL_S = 0.02
_LOG_AFTER_S = 1.0
_LOCKED = ("lock file", "lock hold")
_NO_ROOM = ("No space left", "File too large", "quota")
_ENTRY_BYTES = 200
_CHANGES_SHARE = 1 / 8
"""Fraction of the memory for one write batch."""

_OPEN: dict[str, RocksCopy] = {}


def open_local_copy(directory: str, memory_bytes: int = DEFAULT_MEMORY_BYTES, run: str = "") -> RocksCopy:
    """Return this process's local copy for a directory. Its files are opened on first use.

    Args:
        run: Id of the application's run. Not used, because RocksDB verifies each block that it reads.
    """
    copy = _OPEN.get(directory)
    if copy is None:
        copy = _OPEN[directory] = RocksCopy(directory, memory_bytes)
    copy.close_view()  # a failed micro-batch may have left it open, and the directory may have been replaced
    copy.directory.prepare()
    return copy


class RocksCopy(DirectoryCopy):
    """A task's RocksDB database, with one column family per byte store. Locks the files from first use to ``close_view``."""

    exclusive = True

    def __init__(self, directory: str, memory_bytes: int = DEFAULT_MEMORY_BYTES) -> None:
        super().__init__(CopyDirectory(directory))
        self._budget = int(memory_bytes * _CHANGES_SHARE)
        self._options = options(memory_bytes)
        self._database: Database | None = None
        self._view: RocksView | None = None

    def version(self) -> Version | None:
        database = self._ensure_open()
        try:
            stored = database.meta.get(VERSION)
        except Exception as error:  # rocksdict has no error class for RocksDB's errors
            raise self._discard_failed_copy(error) from error
        return None if stored is None else version_from_bytes(stored)

    def apply(
        self, changes: Mapping[str, Iterable[StoreChange]], version: Version, dropped: Collection[str] = ()
    ) -> None:
        """Drop byte stores, write the changes of committed micro-batches, and set the version. No view may be open.

        Raises:
            StoreError: If the disk is full, the directory is not writable, or another process has the database open.
        """
        *before, last = in_parts(changes, self._budget, _ENTRY_BYTES)
        database = self._ensure_open()
        try:
            unfinished = on_its_way(self.version(), version) if before else version
            for part in before:
                database.write(part, unfinished, ())
            database.write(last, version, dropped)
        except Exception as error:  # rocksdict has no error class for RocksDB's errors
            raise self._discard_failed_copy(error) from error

    def wipe(self) -> None:
        self._ensure_open()  # ensures that no other process has the database open
        self._close_database()
        self.directory.clear(MISSING)

    def names(self) -> frozenset[str]:
        return frozenset(self._ensure_open().numbers)

    def open_view(self) -> ByteStores:
        """Open a consistent view. No process writes before :meth:`close_view`."""
        self._view = RocksView(self._ensure_open(), self.directory)
        return self._view

    def close_view(self) -> None:
        """Close the view of :meth:`open_view` and the database, so that another process can open it.

        Raises:
            DamagedCopyError: If the copy is damaged. The copy is now empty.
        """
        if self._view is not None:
            self._view.close()
            self._view = None
        self._close_database()
        error = self.directory.damage
        if error is not None:
            self.directory.throw_away()
            raise error

    def _close_database(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def _discard_failed_copy(self, error: Exception) -> StoreError:
        self._close_database()
        failed = _failure(self.directory, error)
        self.directory.throw_away()
        return failed

    def _ensure_open(self) -> Database:
        if self._database is None:
            database = self._open_exclusively()
            try:
                (self.directory.path / _HOLDER).write_text(str(os.getpid()))
            except OSError as error:
                database.close()
                raise self.directory.unusable_error(error) from error
            self._database = database
        return self._database

    def _open_exclusively(self) -> Database:
        """Wait until no other process has the database open, and open it. A damaged database is deleted."""
        path = str(self.directory.path / DATABASE)
        began, logged, damaged = time.monotonic(), False, False
        while True:
            try:
                return Database(path, self._options)
            except Exception as error:  # rocksdict has no error class for RocksDB's errors
                if not any(sign in str(error) for sign in _LOCKED):
                    if damaged or any(sign in str(error) for sign in _NO_ROOM):
                        raise self.directory.unusable_error(error) from error
                    damaged = True
                    log.warning("%s", self.directory.damaged(str(error)))
                    self.directory.throw_away()
                    continue
            waited = time.monotonic() - began
            if waited > _LOCK_WAIT_S:
                raise StoreError(
                    f"the local copy in {self.directory.path} has been in use by {self._holder()} for {waited:.0f} s. It is "
                    "a worker that Spark has abandoned, or another application with the same id and state_dir: end that process, then start again"
                )
            if waited > _LOG_AFTER_S and not logged:
                logged = True
                log.warning("waiting for the local copy in %s: in use by %s", path, self._holder())
            time.sleep(_POLL_S)

    def _holder(self) -> str:
        try:
            return f"process {int((self.directory.path / _HOLDER).read_text())}"
        except (OSError, ValueError):
            return "another process"


def _failure(directory: CopyDirectory, error: Exception) -> StoreError:
    """Return the error for an error of RocksDB. Unless it concerns disk space or locks, the copy is damaged."""
    if any(sign in str(error) for sign in (*_NO_ROOM, *_LOCKED)):
        return directory.unusable_error(error)
    return directory.damaged(str(error))


class RocksView:
    """A consistent view of all byte stores. Implements ``ByteStores``. Valid until it is closed."""

    def __init__(self, database: Database, directory: CopyDirectory) -> None:
        self._database: Database | None = database
        self._directory = directory
        self._open_references: weakref.WeakSet[RocksReader | _Scan] = weakref.WeakSet()

    def open(self, name: str) -> ByteReader:
        assert self._database is not None
        if name not in self._database.numbers:
            return NOTHING
        reader = RocksReader(self._database.family(name), self._directory, self._open_references)
        self._open_references.add(reader)
        return reader

    def close(self) -> None:
        """Close the view. Its readers and scans drop their references, so that the database can close."""
        for reference in list(self._open_references):
            reference.close()
        self._database = None


class RocksReader:
    """A byte store in a view. Valid until the view is closed."""

    def __init__(
        self, family: Any, directory: CopyDirectory, references: weakref.WeakSet[Any] | None = None
    ) -> None:
        self._family = family
        self._directory = directory
        self._open_references = weakref.WeakSet() if references is None else references

    def get(self, key: bytes) -> bytes | None:
        try:
            value: bytes | None = self._family.get(key)
        except Exception as error:  # rocksdict has no error class for RocksDB's errors
            raise _failure(self._directory, error) from error
        return value

    def scan(
        self, low: bytes | None, high: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        scan = _Scan(self._family.iter(), self._directory, low, high, reverse=reverse)
        self._open_references.add(scan)
        return scan

    def approximate_count(self) -> int:
        """Return RocksDB's estimate of the number of keys. Overwritten keys may be counted more than once."""
        count: int = self._family.property_int_value("rocksdb.estimate-num-keys")
        return count

    def close(self) -> None:
        self._family = None


class _Scan:
    """An iterator that can drop its reference to the database before its end."""

    def __init__(
        self,
        cursor: Any,
        directory: CopyDirectory,
        low: bytes | None,
        high: bytes | None,
        *,
        reverse: bool,
    ) -> None:
        self._cursor = cursor
        self._directory = directory
        self._low, self._high = low, high
        self._step = cursor.prev if reverse else cursor.next
        self._inside = self._is_above_low if reverse else self._is_below_high
        if reverse:
            cursor.seek_to_last() if high is None else cursor.seek_for_prev(high)
            if high is not None and cursor.valid() and cursor.key() == high:
                cursor.prev()
        else:
            cursor.seek_to_first() if low is None else cursor.seek(low)

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        return self

    def __next__(self) -> tuple[bytes, bytes]:
        cursor = self._cursor
        if cursor is None:
            raise StopIteration
        if not cursor.valid():
            self._end(cursor)
        entry: tuple[bytes, bytes] = cursor.key(), cursor.value()
        if not self._inside(entry[0]):
            self._end(cursor)
        self._step()
        return entry

    def close(self) -> None:
        self._cursor = self._step = None

    def _end(self, cursor: Any) -> None:
        self.close()
        try:
            cursor.status()
        except Exception as error:  # rocksdict has no error class for RocksDB's errors
            raise _failure(self._directory, error) from error
        raise StopIteration

    def _is_below_high(self, key: bytes) -> bool:
        return self._high is None or key < self._high

    def _is_above_low(self, key: bytes) -> bool:
        return self._low is None or key >= self._low
