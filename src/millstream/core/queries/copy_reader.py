"""The shape of what reads a task's local copy for queries, on this host or on another."""

from __future__ import annotations

from typing import Protocol

from millstream.core.ports import ByteStores
from millstream.core.state.segments.log import Manifest


class CopyReader(Protocol):
    """Reads one task's local copy of one engine. Used by one thread at a time."""

    def view(self, known: Manifest) -> ByteStores:
        """Return a view of a committed state, valid until the next call of a method.

        Args:
            known: Version and history of the committed state; segments are not needed.

        Raises:
            CopyMovedError: If the copy does not have that state, or cannot be reached now. A remote copy may raise it later, when the
                view is read.
            StoreError: If the copy cannot be read.
        """

    def newest(self) -> Manifest:
        """Open the newest content of a copy that has no parked changes, as global stores have them.

        Returns:
            What :meth:`view` returns it for, as long as nothing else is opened.

        Raises:
            CopyMovedError: If the copy is empty, is being filled, or cannot be reached now.
            StoreError: If the copy cannot be read.
        """

    def release(self) -> None:
        """Release the view, because another state is committed."""

    def close(self) -> None:
        """Release everything."""
