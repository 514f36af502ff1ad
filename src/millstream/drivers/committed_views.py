"""Committed views: a local copy that another process writes, combined with its parked changes, at exactly one version."""

from __future__ import annotations

from abc import ABC, abstractmethod

from millstream.core.model.errors import CopyMovedError
from millstream.core.ports import ByteStores, Version
from millstream.core.state.memory import MemoryStores
from millstream.core.state.segments.log import Manifest
from millstream.drivers.directory import CopyDirectory, ParkedColumns
from millstream.drivers.parked_view import Parked, ParkedView


class CopyQueries(ABC):
    """Reads one task's local copy: the part of ``CopyReader`` that does not depend on the engine.

    Args:
        directory: The directory of the copy, for its parked changes and for errors.
    """

    def __init__(self, directory: str) -> None:
        self._directory = CopyDirectory(directory)
        self._shown: ByteStores | None = None
        self._version: Version | None = None
        self._parked: tuple[tuple[Version, ...], Parked] = ((), Parked(()))
        """The changes of the last request, kept for the next one."""

    def view(self, known: Manifest) -> ByteStores:
        """Return a view of a committed state, valid until the next call of a method.

        Raises:
            CopyMovedError: If the copy does not have that state: it is being restored, or is already ahead.
        """
        if self._shown is not None and self._version == known.current:
            return self._shown
        if known.version == 0:
            self.release()
            return MemoryStores()
        self._shown = self._opened_at(known)
        self._version = known.current
        return self._shown

    @abstractmethod
    def release(self) -> None: ...

    @abstractmethod
    def _opened_at(self, known: Manifest) -> ByteStores:
        """Return a view of a committed state in place of the one that is shown."""

    def _committed(self, known: Manifest, view: ByteStores, version: Version | None) -> ByteStores:
        """Add parked changes to a view.

        Args:
            version: The version of the view. None if it is empty.

        Raises:
            CopyMovedError: If the copy is ahead of that state, or parked changes do not lead to it.
        """
        if version == known.current:
            return view
        if version is not None and not known.remembers(version):
            raise self._directory.moved(known.current, version)
        versions = tuple(known.versions_after(version))
        if not versions:
            raise self._directory.moved(known.current, version)
        if self._parked[0] != versions:
            self._parked = versions, Parked(self._batches(versions, known, version))
        return ParkedView(view, self._parked[1])

    def _batches(
        self, versions: tuple[Version, ...], known: Manifest, version: Version | None
    ) -> list[ParkedColumns]:
        parked = [self._directory.parked_columns(each) for each in versions]
        batches = [changes for changes in parked if changes is not None]
        if len(batches) < len(parked):
            raise self._directory.moved(known.current, version)
        return batches

    def _missing(self, error: Exception) -> CopyMovedError:
        """Return the error for a copy whose files cannot be opened yet."""
        return CopyMovedError(f"the local copy in {self._directory.path} does not exist yet: {error}")
