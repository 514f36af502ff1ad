"""Reads a task's local copy in LMDB from another process of its host, while the task's processes write it. Implements ``CopyReader``.

LMDB gives every reader a consistent view and does not block the writer. The changes of the newest committed micro-batches may still be
parked beside the copy. The view includes them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import lmdb

from millstream.core.ports import ByteStores, Version
from millstream.core.state.memory import MemoryStores
from millstream.core.state.segments.log import Manifest
from millstream.drivers.committed_views import CommittedViews, missing_copy
from millstream.drivers.directory import CopyDirectory
from millstream.drivers.lmdb.lmdb_copy import environment_of, version_of
from millstream.drivers.lmdb.row_encoding import DATA_FILE
from millstream.drivers.lmdb.view import BROKEN, LmdbView


class LmdbQueries:
    """Reads one task's local copy.

    A view remains open for further requests until the next one is opened or :meth:`release` is called, because an open view prevents LMDB
    from reusing the pages that it sees.
    """

    def __init__(self, directory: str) -> None:
        self._directory = CopyDirectory(directory)
        self._views = CommittedViews(self._directory)
        self._env: Any = None
        self._inode = -1
        self._view: LmdbView | None = None
        self._shown: ByteStores | None = None
        self._version: Version | None = None

    def view(self, known: Manifest) -> ByteStores:
        """Return a view of a committed state, valid until the next call of a method.

        Raises:
            CopyMovedError: If the copy does not have that state: it is being restored, or is already ahead.
        """
        if self._shown is not None and self._version == known.current:
            return self._shown
        self.release()
        if known.version == 0:
            return MemoryStores()
        return self._open_view(lambda version: known)

    def newest(self) -> Manifest:
        self.release()
        self._open_view(self._directory.only)
        assert self._version is not None
        return self._directory.only(self._version)

    def _open_view(self, wanted: Callable[[Version | None], Manifest]) -> ByteStores:
        """Open a view of the state that ``wanted`` returns for the version of the copy."""
        self._view = LmdbView(self._environment(), self._directory)
        try:
            version = version_of(self._view)
            known = wanted(version)
            self._shown = self._views.committed_state(known, self._view, version)
        except BROKEN as error:
            raise self._directory.damaged(str(error)) from error
        finally:
            if self._shown is None:
                self.release()
        self._version = known.current
        return self._shown

    def release(self) -> None:
        self._shown = self._version = None
        if self._view is not None:
            self._view.close()
            self._view = None

    def close(self) -> None:
        self.release()
        if self._env is not None:
            self._env.close()
            self._env = None

    def _environment(self) -> Any:
        """Return the open environment. Reopen it if its file was replaced."""
        file = self._directory.path / DATA_FILE
        try:
            inode = os.stat(file).st_ino
            if inode != self._inode:
                self.close()
            if self._env is None:
                self._env, self._inode = environment_of(file, readonly=True), inode
        except (OSError, lmdb.Error) as error:
            raise missing_copy(self._directory, error) from None
        return self._env
