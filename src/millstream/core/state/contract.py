"""The interfaces between a task and its stores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias

from millstream.core.ports import StoreChange

Memory: TypeAlias = dict[str, Any]
"""What a store or an operator keeps between micro-batches besides its rows, as JSON values."""


class Drained(NamedTuple):
    """The changes of a store in one micro-batch, ready to be committed.

    Attributes:
        changes: Changes of each byte store, each key at most once.
        dropped: Byte stores that have expired completely; none of them has changes.
    """

    changes: Mapping[str, list[StoreChange]]
    dropped: tuple[str, ...] = ()


class Store(Protocol):
    """A store of one task, as the task sees it. The interface for processors depends on the kind of store."""

    name: str

    def drain(self) -> Drained:
        """Return the changes since the last call and clear them.

        The driver applies them to the committed content before the task continues.

        Raises:
            SerdeError: If a stored value does not fit the store's value serde.
        """

    def memory(self) -> Memory:
        """Return JSON-compatible data to persist besides the content; it is passed to the store when it is reopened."""


class Surroundings(Protocol):
    """The view of a task for its stores."""

    @property
    def stream_time(self) -> int:
        """Stream time of the task, ms since the epoch; -1 before the first record."""

    def drop(self, reason: str) -> None:
        """Count a dropped record."""


class Alone:
    """Surroundings of a store outside a task: stream time does not advance, and dropped records are not counted."""

    stream_time = -1

    def drop(self, reason: str) -> None:
        """Do nothing."""
