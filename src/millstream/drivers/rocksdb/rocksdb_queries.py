"""Reads a task's local copy in RocksDB from another process of its host, while the task's processes write it. Implements ``CopyReader``.

The database is opened read-only, without its lock, in the state of its last flush: all column families have the same version. All files
are opened at once, so the view remains complete when the writer deletes files. The changes of the newest committed micro-batches may still
be parked beside the copy. The view includes them. Opening takes a few milliseconds, so an open database is used as long as parked changes
lead from it to the committed state.

Rejected: a secondary instance of RocksDB. It follows the writer, but reads the write-ahead log, which is disabled here, and needs a
directory.
"""

from __future__ import annotations

from typing import Any

import rocksdict

from millstream.core.model.errors import CopyMovedError
from millstream.core.ports import ByteReader, ByteStores, Version
from millstream.core.state.memory import NOTHING, MemoryStores
from millstream.core.state.segments.log import Manifest
from millstream.drivers.committed_views import CommittedViews, missing_copy
from millstream.drivers.directory import CopyDirectory, version_from_bytes
from millstream.drivers.rocksdb.rocksdb_copy import DATABASE, RocksReader
from millstream.drivers.rocksdb.rocksdb_database import VERSION, families, store_numbers
from millstream.drivers.rocksdb.rocksdb_options import reading_options


class RocksQueries:
    """Reads one task's local copy.

    A database that was not read between two releases is closed, because it keeps deleted files on the disk.
    """

    def __init__(self, directory: str) -> None:
        self._directory = CopyDirectory(directory)
        self._views = CommittedViews(self._directory)
        self._database: _ReadOnly | None = None
        self._shown: ByteStores | None = None
        self._version: Version | None = None

    def view(self, known: Manifest) -> ByteStores:
        """Return a view of a committed state, valid until the next call of a method.

        Raises:
            CopyMovedError: If the copy does not have that state: it is being restored, or is already ahead.
        """
        if self._shown is not None and self._version == known.current:
            return self._shown
        if known.version == 0:
            return MemoryStores()
        self._shown = self._committed_state(known)
        self._version = known.current
        return self._shown

    def newest(self) -> Manifest:
        self.close()
        self._database = self._open_read_only()
        known = self._directory.only(self._database.version)
        self._shown, self._version = self._database, known.current
        return known

    def release(self) -> None:
        if self._shown is None:
            self._database = None
        self._shown = self._version = None

    def close(self) -> None:
        self._database = self._shown = self._version = None

    def _committed_state(self, known: Manifest) -> ByteStores:
        if self._database is not None:
            try:
                return self._views.committed_state(known, self._database, self._database.version)
            except CopyMovedError:
                self.close()
        self._database = self._open_read_only()
        return self._views.committed_state(known, self._database, self._database.version)

    def _open_read_only(self) -> _ReadOnly:
        try:
            return _ReadOnly(self._directory)
        except Exception as error:  # rocksdict has no error class for RocksDB's errors
            raise missing_copy(self._directory, error) from None


class _ReadOnly:
    """A database in the state of its opening. Implements ``ByteStores``. It closes with the last reference to it.

    Attributes:
        version: The version of its content. None if it is empty.
    """

    def __init__(self, directory: CopyDirectory) -> None:
        path = str(directory.path / DATABASE)
        opened = reading_options()
        access = rocksdict.AccessType.read_only()
        known = families(path, opened)  # the writer may create more of them before they are opened
        self._meta = rocksdict.Rdict(path, opened, known, access_type=access)
        self._numbers = store_numbers(self._meta, known)
        self._directory = directory
        stored: Any = self._meta.get(VERSION)
        self.version = None if stored is None else version_from_bytes(stored)

    def open(self, name: str) -> ByteReader:
        if name not in self._numbers:
            return NOTHING
        return RocksReader(self._meta.get_column_family(self._numbers[name]), self._directory)
