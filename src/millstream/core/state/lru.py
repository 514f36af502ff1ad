"""Least recently used (LRU): a key-value store with a limited number of entries.

Reading an entry by its key and writing it count as uses; iteration does not (Kafka Streams: ``MemoryLRUCache``). When the capacity
is exceeded, the store removes the least recently used entry at once. An eviction is a change, like a deletion.

Two byte stores persist the order of use across micro-batches and restarts:

    <store>/used     number of the last use (8) -> key
    <store>/use      key -> number of its last use (8)

A micro-batch only records which keys it uses, in order; these uses are later than all earlier ones. The entry to evict is the first
one in ``used`` whose key this micro-batch has not touched. At the end of the micro-batch, the recorded keys receive the next numbers.
The work is therefore proportional to the number of keys used, not to the number of entries. Each read costs a write. To limit only
the age of entries, use a time to live.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from millstream.core.ports import ByteReader, ByteStores
from millstream.core.state.contract import Drained, Memory
from millstream.core.state.keys import pack_time
from millstream.core.state.keyvalue import Overlay

EVICTED_PER_PUT: Final = 2
"""Maximum number of entries that one put evicts. More than one is evicted only while the store shrinks to a lowered capacity."""


class LruRows:
    """A limited number of entries. Implements ``KeyValueRows``. Owned by the store."""

    __slots__ = (
        "_capacity", "_count", "_name", "_next", "_oldest", "_overlay", "_recent", "_use", "_used", "scan",
    )  # fmt: skip

    def __init__(
        self, name: str, overlay: Overlay, stores: ByteStores, capacity: int, memory: Mapping[str, Any]
    ) -> None:
        self._name = name
        self._overlay = overlay
        self._used: ByteReader = stores.open(f"{name}/used")
        self._use: ByteReader = stores.open(f"{name}/use")
        self._capacity = capacity
        self._count: int = memory.get("count", 0)
        self._next: int = memory.get("next", 0)
        self._recent: dict[bytes, None] = {}
        self._oldest: Iterator[tuple[bytes, bytes]] | None = None
        self.scan = overlay.scan

    def get(self, key: bytes) -> Any:
        """Return the entry of a key, or None; counts as a use."""
        entry = self._overlay.get(key)
        if entry is not None:
            self._note(key)
        return entry

    def put(self, key: bytes, entry: Any) -> None:
        known = self._overlay.has(key)
        self._overlay.put(key, entry)
        if not self._overlay.has(key):
            self._recent.pop(key, None)
            self._count -= known
            return
        self._count += not known
        self._note(key)
        for _ in range(EVICTED_PER_PUT):
            if self._count > self._capacity:
                self._evict()

    put_fitting = put

    def approximate_count(self) -> int:
        return self._count

    def drain(self) -> Drained:
        used: dict[bytes, bytes | None] = {}
        use: dict[bytes, bytes | None] = {}
        for key in {**self._overlay.own(), **self._recent}:
            before = self._use.get(key)
            if before is not None:
                used[before] = None
                use[key] = None
        for number, key in enumerate(self._recent, self._next):
            used[pack_time(number)] = key
            use[key] = pack_time(number)
        self._next += len(self._recent)
        self._recent.clear()
        self._oldest = None
        parts = {
            self._name: self._overlay.drain(),
            f"{self._name}/used": list(used.items()),
            f"{self._name}/use": list(use.items()),
        }
        return Drained({name: items for name, items in parts.items() if items})

    def memory(self) -> Memory:
        return {"count": self._count, "next": self._next}

    def _note(self, key: bytes) -> None:
        self._recent.pop(key, None)
        self._recent[key] = None

    def _evict(self) -> None:
        key = self._least_recent()
        self._overlay.put(key, None)
        self._recent.pop(key, None)
        self._count -= 1

    def _least_recent(self) -> bytes:
        if self._oldest is None:
            self._oldest = self._used.scan(None, None)
        own = self._overlay.own()
        for _, key in self._oldest:
            if key not in self._recent and key not in own:
                return key
        return next(iter(self._recent))
