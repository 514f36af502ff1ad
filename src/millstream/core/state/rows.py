"""Rows of a key-value store: the layer between its objects and its byte stores.

A key-value store has one interface over several ways of keeping entries: plain (:class:`PlainRows`), expiring
(``millstream.core.state.expiry``) and least recently used (``millstream.core.state.lru``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from millstream.core.state.contract import Drained, Memory
from millstream.core.state.overlay import Overlay


class KeyValueRows(Protocol):
    """Entries by serialised key, including the micro-batch's own writes."""

    @property
    def get(self) -> Callable[[bytes], Any]:
        """A function that returns the entry of a key, or None."""

    @property
    def put(self) -> Callable[[bytes, Any], None]:
        """A function that sets the entry of a key; None deletes it. It raises SerdeError if the value does not fit."""

    @property
    def put_fitting(self) -> Callable[[bytes, Any], None]:
        """A function that sets the entry of a key, for a value that is known to fit."""

    def scan(
        self, low: bytes | None, high: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, Any]]:
        """Iterate over a snapshot of the entries with ``low <= key < high``; None means no limit."""

    def approximate_count(self) -> int:
        """Return the number of keys, without reading them."""

    def drain(self) -> Drained:
        """Return the changes since the last call and clear them."""

    def memory(self) -> Memory:
        """Return the data to persist besides the content."""


class PlainRows:
    """Entries that stay until they are deleted."""

    __slots__ = ("_name", "_overlay", "approximate_count", "get", "put", "put_fitting", "scan")

    def __init__(self, name: str, overlay: Overlay) -> None:
        self._name = name
        self._overlay = overlay
        self.get, self.put, self.put_fitting = overlay.get, overlay.put, overlay.put_fitting
        self.scan, self.approximate_count = overlay.scan, overlay.approximate_count

    def drain(self) -> Drained:
        changes = self._overlay.drain()
        return Drained({self._name: changes} if changes else {})

    def memory(self) -> Memory:
        return {}
