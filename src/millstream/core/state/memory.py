"""Committed content of stores in memory.

Used by ``TopologyTestDriver`` and the store engine ``memory``. Tests of the other engines use it as their model.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from millstream.core.ports import StoreChange

_ENTRY_BYTES: Final = 180
"""Estimated memory overhead of a key, a value and their entries in a dict and a list, in bytes."""
_ONE_BY_ONE: Final = 64


class MemoryStores:
    """The byte stores of one task. Implements ``ByteStores``. Owned by one thread."""

    def __init__(self) -> None:
        self._stores: dict[str, MemoryStore] = {}

    def open(self, name: str) -> MemoryStore:
        """Return a byte store, creating it on first use."""
        return self._stores.setdefault(name, MemoryStore())

    def names(self) -> frozenset[str]:
        """Return the names of the byte stores that are not empty."""
        return frozenset(name for name, store in self._stores.items() if store.approximate_count())

    def size(self) -> int:
        """Return the approximate memory use of the content, bytes."""
        return sum(store.size for store in self._stores.values())

    def apply(self, changes: Mapping[str, Iterable[StoreChange]], dropped: Iterable[str] = ()) -> None:
        for name in dropped:
            self.open(name).clear()
        for name, items in changes.items():
            self.open(name).apply(items)


class MemoryStore:
    """A sorted map from bytes to bytes. Implements ``ByteReader``. Owned by one thread.

    Attributes:
        size: Approximate memory use of the content, bytes.
    """

    def __init__(self) -> None:
        self.size = 0
        self._values: dict[bytes, bytes] = {}
        self._keys: list[bytes] = []

    def get(self, key: bytes) -> bytes | None:
        return self._values.get(key)

    def scan(
        self, low: bytes | None, high: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        first = 0 if low is None else bisect_left(self._keys, low)
        last = len(self._keys) if high is None else bisect_left(self._keys, high)
        keys = self._keys[first:last]
        return iter([(key, self._values[key]) for key in (reversed(keys) if reverse else keys)])

    def approximate_count(self) -> int:
        return len(self._keys)

    def clear(self) -> None:
        self.size = 0
        self._values.clear()
        self._keys.clear()

    def apply(self, changes: Iterable[StoreChange]) -> None:
        values, added, removed = self._values, [], []
        for key, value in changes:
            old = values.get(key)
            if value is None:
                if old is not None:
                    del values[key]
                    removed.append(key)
                    self.size -= _ENTRY_BYTES + len(key) + len(old)
            else:
                values[key] = value
                if old is None:
                    added.append(key)
                    self.size += _ENTRY_BYTES + len(key) + len(value)
                else:
                    self.size += len(value) - len(old)
        self._reorder(added, removed)

    def _reorder(self, added: list[bytes], removed: list[bytes]) -> None:
        """Update the sorted keys: individually for a few changes, otherwise all at once, in time proportional to the size of the store."""
        if len(added) + len(removed) <= _ONE_BY_ONE:
            for key in added:
                insort(self._keys, key)
            for key in removed:
                del self._keys[bisect_left(self._keys, key)]
        elif removed:
            self._keys = sorted(self._values)
        else:
            added.sort()
            behind = not self._keys or self._keys[-1] < added[0]
            self._keys.extend(added)
            if not behind:  # a restore adds keys in order
                self._keys.sort()


NOTHING: Final = MemoryStore()
"""The content of a byte store that does not exist."""
