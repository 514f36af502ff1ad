"""What a task asks of its stores, and what a store may ask of its task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from millstream.core.ports import StoreChange


class Drained(NamedTuple):
    """What a store's batch leaves to be committed.

    Attributes:
        changes: Changes of each byte store, each key at most once.
        dropped: Byte stores that have expired as a whole; none of them has changes.
    """

    changes: Mapping[str, list[StoreChange]]
    dropped: tuple[str, ...] = ()


class Store(Protocol):
    """A store of one task, as the task sees it; what processors see differs from kind to kind."""

    name: str

    def drain(self) -> Drained:
        """Give what has changed since the last call, and forget it.

        The driver applies it to the committed content before the task runs on.

        Raises:
            SerdeError: If a value that was put does not fit the store's value serde.
        """

    def memory(self) -> dict[str, Any]:
        """Give what must survive besides the content, as what JSON can say; the next opening gets it back."""


class Surroundings(Protocol):
    """What a store may know of its task."""

    @property
    def stream_time(self) -> int:
        """Stream time of the task, ms since the epoch; -1 before the first record."""

    def drop(self, reason: str) -> None:
        """Count a record that is left out."""


class Alone:
    """The surroundings of a store outside a task: time stands still and nobody counts."""

    stream_time = -1

    def drop(self, reason: str) -> None:
        """Do nothing."""
