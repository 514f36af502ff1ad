"""Expiring entries: a key-value store with a time to live (TTL).

The clock is the stream time of the task, so results do not depend on how records are divided into micro-batches. Each entry contains the
stream time of its last write. Once stream time has advanced by the TTL, reads no longer return the entry.

The bytes are removed later, in small steps, so that a jump in stream time does not make one micro-batch expensive. An index in a
separate byte store has one entry per key, whose key is

    time of the last write (8) | key

Each micro-batch removes the oldest expired entries from the beginning of the index: a fixed number, plus one for each key that the
micro-batch has written. A micro-batch therefore removes at least as many entries as it adds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

from millstream.core.ports import ByteReader, StoreChange
from millstream.core.state.contract import Drained, Memory, Surroundings
from millstream.core.state.keys import pack_time
from millstream.core.state.keyvalue import Overlay

REMOVED_PER_BATCH: Final = 1000
"""Number of expired entries that a micro-batch removes, in addition to one for each key that it has written."""


class ExpiringRows:
    """Entries with a time to live. Implements ``KeyValueRows``. Owned by the store.

    Args:
        overlay: Byte store whose entries are (entry, stream time of the last write).
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
        row = self._overlay.get(key)
        return None if row is None or row[1] < self._oldest() else row[0]

    def put(self, key: bytes, entry: Any) -> None:
        self._overlay.put(key, None if entry is None else (entry, self._now()))

    put_fitting = put

    def scan(
        self, low: bytes | None, high: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, Any]]:
        return _living(self._overlay.scan(low, high, reverse=reverse), self._oldest())

    def drain(self) -> Drained:
        overlay, oldest = self._overlay, self._oldest()
        index: dict[bytes, bytes | None] = {}
        for key in overlay.own():
            before = overlay.committed_bytes(key)
            if before is not None:
                index[before[:8] + key] = None  # the value begins with the stamp, in the format of the index
        written = len(overlay.own())
        for key, row in overlay.scan_own():
            if row[1] < oldest:
                overlay.put(key, None)
            else:
                index[pack_time(row[1]) + key] = b""
        for stored in self._expired(oldest, REMOVED_PER_BATCH + written):
            index.setdefault(stored, None)
            if stored[8:] not in overlay.own():
                overlay.put(stored[8:], None)
        changes: list[StoreChange] = overlay.drain()
        parts = {self._name: changes, index_name(self._name): list(index.items())}
        return Drained({name: items for name, items in parts.items() if items})

    def memory(self) -> Memory:
        return {}

    def _now(self) -> int:
        return max(self._task.stream_time, 0)

    def _oldest(self) -> int:
        """Return the earliest time of a last write that has not expired."""
        return self._now() - self._ttl + 1

    def _expired(self, oldest: int, most: int) -> list[bytes]:
        if oldest <= 0:
            return []
        rows = self._index.scan(None, pack_time(oldest))
        return [stored for stored, _ in islice(rows, most)]


def index_name(store: str) -> str:
    return f"{store}/written"


def _living(rows: Iterable[tuple[bytes, Any]], oldest: int) -> Iterator[tuple[bytes, Any]]:
    for key, (entry, written) in rows:
        if written >= oldest:
            yield key, entry
