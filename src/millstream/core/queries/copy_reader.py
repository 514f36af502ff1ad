"""The protocol for reading a task's local copy for queries, on this host or on another."""

from __future__ import annotations

from typing import Protocol

from millstream.core.ports import ByteStores
from millstream.core.state.segments.log import Manifest


class CopyReader(Protocol):
    """Reads the local copy of one task in one store engine. Used by one thread at a time."""

    def view(self, known: Manifest) -> ByteStores:
        """Return a view of a committed state, valid until the next method call.

        Args:
            known: Version and history of the committed state. Segments are not needed.

        Raises:
            CopyMovedError: If the copy does not contain that state, or cannot be reached now. A remote copy may raise it later, when
                the view is read.
        """

    def newest(self) -> Manifest:
        """Open the latest content of a copy without parked changes, such as the copy of a global store.

        Returns:
            The manifest for which :meth:`view` returns this content, as long as no other state is opened.

        Raises:
            CopyMovedError: If the copy is empty, is being filled, or cannot be reached now.
        """

    def release(self) -> None:
        """Release the view, because another state has been committed."""

    def close(self) -> None: ...
