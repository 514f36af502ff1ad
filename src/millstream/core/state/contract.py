"""The interfaces between a task and its stores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

from millstream.core.ports import StoreChange

Memory: TypeAlias = dict[str, Any]
"""JSON-compatible data that a store or an operator persists between micro-batches besides its entries."""


class Drained(NamedTuple):
    """The changes of a store in one micro-batch, ready to commit.

    Attributes:
        changes: Changes of each byte store, at most one per key.
        dropped: Byte stores that have expired as a whole; they have no changes.
    """

    changes: Mapping[str, list[StoreChange]]
    dropped: tuple[str, ...] = ()


class Store(Protocol):
    """A store of one task, as the task sees it. Processors use a separate interface for each kind of store."""

    name: str

    def drain(self) -> Drained:
        """Return the changes since the last call and clear them.

        The driver applies the changes to the committed content before the task continues.

        Raises:
            SerdeError: If a stored value does not fit the store's value serde.
        """

    def memory(self) -> Memory:
        """Return JSON-compatible data to persist besides the content. The store receives it when it is reopened."""


class Surroundings(Protocol):
    """The part of a task that its stores can see."""

    @property
    def stream_time(self) -> int:
        """Stream time of the task, ms since the epoch; -1 before the first record."""

    def drop(self, reason: str) -> None:
        """Count a dropped record."""


@dataclass(frozen=True)
class Alone:
    """Surroundings of a store outside a task. Stream time does not advance, and dropped records are not counted."""

    stream_time: int = -1

    def drop(self, reason: str) -> None: ...
