"""Reads a store that a task keeps in memory, from another process of its host. Implements ``CopyReader``.

The reader has its own copy of the content. It starts with the file that the task writes on request, and applies the parked changes.
If it is behind the oldest parked changes, it requests the content again.
"""

from __future__ import annotations

from millstream.core.model.errors import StoreError
from millstream.core.ports import ByteStores, Version
from millstream.core.state.memory import MemoryStores
from millstream.core.state.segments.log import Manifest
from millstream.drivers.directory import CopyDirectory
from millstream.drivers.memory.content_file import PARKED_VERSIONS, contents, want_content
from millstream.drivers.parked_view import Parked, ParkedView


class MemoryQueries:
    def __init__(self, directory: str) -> None:
        self._directory = CopyDirectory(directory, PARKED_VERSIONS)
        self._stores = MemoryStores()
        self._version: Version | None = None
        self._shown: ByteStores = self._stores

    def view(self, known: Manifest) -> ByteStores:
        """Return a committed state, valid until the next call of a method.

        Raises:
            CopyMovedError: If the task has not written the content yet, or the state is older than the reader's copy.
        """
        if known.version == 0:
            return MemoryStores()
        if self._version == known.current:
            return self._shown
        if self._apply_parked(known):
            return self._shown_now()
        for version, content in contents(self._directory):
            self._stores, self._version = MemoryStores(), version
            self._stores.apply(content)
            if self._apply_parked(known):
                return self._shown_now()
        want_content(self._directory)
        raise self._directory.moved(known.current, self._version)

    def newest(self) -> Manifest:
        """Raise an error, because a copy without parked changes cannot be followed from outside its process.

        Raises:
            StoreError: Always.
        """
        raise StoreError(
            "a global store with the engine 'memory' cannot be queried, because each worker keeps it in its own memory; use "
            "the engine 'lmdb' or 'rocksdb' for it"
        )

    def release(self) -> None:
        """Do nothing, because later requests continue from this copy."""

    def close(self) -> None:
        self._stores, self._version = MemoryStores(), None
        self._shown = self._stores

    def _shown_now(self) -> ByteStores:
        """Return a new object. Readers opened on an earlier object keep the earlier state."""
        self._shown = ParkedView(self._stores, Parked(()))
        return self._shown

    def _apply_parked(self, known: Manifest) -> bool:
        """Apply parked changes up to a committed state. Return whether it was reached."""
        if self._version is not None and not known.remembers(self._version):
            return False
        for version in known.versions_after(self._version):
            parked = self._directory.parked(version)
            if parked is None:
                return False
            if self._version is None:
                self._stores = MemoryStores()
            self._stores.apply(parked.changes, parked.dropped)
            self._version = version
        return self._version == known.current
