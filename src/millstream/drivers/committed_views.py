"""Committed views: a local copy that another process writes, combined with its parked changes, at exactly one version."""

from __future__ import annotations

from millstream.core.model.errors import CopyMovedError
from millstream.core.ports import ByteStores, ParkedChanges, Version
from millstream.core.queries.parked_view import Parked, ParkedView
from millstream.core.state.segments.log import Manifest
from millstream.drivers.directory import CopyDirectory


class CommittedViews:
    """Adds parked changes to the views of one copy. Keeps the decoded changes for the next request.

    Args:
        directory: The directory of the copy, for its parked changes and for errors.
    """

    def __init__(self, directory: CopyDirectory) -> None:
        self._directory = directory
        self._parked: tuple[tuple[Version, ...], Parked] = ((), Parked(()))

    def committed_state(self, known: Manifest, view: ByteStores, version: Version | None) -> ByteStores:
        """Return a committed state.

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
    ) -> list[ParkedChanges]:
        parked = [self._directory.parked(each) for each in versions]
        batches = [changes for changes in parked if changes is not None]
        if len(batches) < len(parked):
            raise self._directory.moved(known.current, version)
        return batches


def missing_copy(directory: CopyDirectory, error: Exception) -> CopyMovedError:
    """Return the error for a copy whose files cannot be opened yet."""
    return CopyMovedError(f"the local copy in {directory.path} does not exist yet: {error}")
