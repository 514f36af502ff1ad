"""Expiry: entries of a key-value store that expire some time after their last write.

Time is the task's stream time, so the same records give the same results however they are cut into batches, and again
when a batch is replayed. An entry carries the stream time of its last write. Once stream time has moved on by the time to
live, no read sees the entry any more.

Its bytes are removed later, in small steps, so that a jump in time costs no batch more than it should. An index, a byte
store of its own, holds one key per entry

    time of the last write (8) | key

and each batch removes the oldest expired entries it finds at the index's beginning: a fixed number, and as many again as
the batch has written. So the store is never scanned, and what has expired does not pile up: a batch removes at least as
much as it adds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

from millstream.core.ports import ByteReader, StoreChange
from millstream.core.state.contract import Drained, Surroundings
from millstream.core.state.keys import pack_time
from millstream.core.state.overlay import Overlay

REMOVED_PER_BATCH: Final = 1000
"""How many expired entries a batch removes, besides one for each key it has written."""


class ExpiringRows:
    """Entries that expire. Implements ``Rows``. Owned by the store.

    Args:
        name: The store.
        overlay: Its byte store; entries there are (entry, stream time of the last write).
        index: The committed content of the index.
        ttl_ms: The time to live.
        task: Tells stream time.
    """

    __slots__ = ("_index", "_name", "_overlay", "_task", "_ttl", "approximate_count")

    def __init__(
        self, name: str, overlay: Overlay, index: ByteReader, ttl_ms: int, task: Surroundings
    ) -> None:
        self._name = name
        self._overlay = overlay
        self._index = index
        self._ttl = ttl_ms
        self._task = task
        self.approximate_count = overlay.approximate_count

    def get(self, key: bytes) -> Any:
        """Give the entry of a key, or None."""
        found = self._overlay.get(key)
        return None if found is None or found[1] < self._oldest() else found[0]

    def put(self, key: bytes, entry: Any) -> None:
        """Set the entry of a key; None deletes it."""
        self._overlay.put(key, None if entry is None else (entry, self._now()))

    put_fitting = put

    def scan(
        self, low: bytes | None, high: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, Any]]:
        """Iterate over entries with ``low <= key < high``, as they are now; None leaves a side open."""
        return _living(self._overlay.scan(low, high, reverse=reverse), self._oldest())

    def drain(self) -> Drained:
        """Give the changes since the last call, removals of expired entries among them, and forget them."""
        overlay, oldest = self._overlay, self._oldest()
        index: dict[bytes, bytes | None] = {}
        for key in overlay.own():
            before = overlay.committed(key)
            if before is not None:
                index[before[:8] + key] = None  # the stamp comes first, packed as the index packs it
        written = len(overlay.own())
        for key, found in overlay.scan_own():
            if found[1] < oldest:
                overlay.put(key, None)
            else:
                index[pack_time(found[1]) + key] = b""
        for stored in self._expired(oldest, REMOVED_PER_BATCH + written):
            index.setdefault(stored, None)
            if stored[8:] not in overlay.own():
                overlay.put(stored[8:], None)
        changes: list[StoreChange] = overlay.drain()
        parts = {self._name: changes, index_name(self._name): list(index.items())}
        return Drained({name: items for name, items in parts.items() if items})

    def memory(self) -> dict[str, Any]:
        """Give nothing: everything is in the content."""
        return {}

    def _now(self) -> int:
        return max(self._task.stream_time, 0)

    def _oldest(self) -> int:
        """Give the first time of a last write that has not expired."""
        return self._now() - self._ttl + 1

    def _expired(self, oldest: int, most: int) -> list[bytes]:
        if oldest <= 0:
            return []
        found = self._index.scan(None, pack_time(oldest))
        return [stored for stored, _ in islice(found, most)]


def index_name(store: str) -> str:
    """Give the name of the byte store that holds the index."""
    return f"{store}/written"


def _living(found: Iterable[tuple[bytes, Any]], oldest: int) -> Iterator[tuple[bytes, Any]]:
    for key, (entry, written) in found:
        if written >= oldest:
            yield key, entry
