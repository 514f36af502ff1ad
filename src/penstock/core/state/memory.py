"""Committed content of a store in memory: for ``TopologyTestDriver``, and the model the other engines are tested against."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from penstock.core.ports import StoreChange


class MemoryStores:
    """The byte stores of one task; implements ``ByteStores``. Owned by one thread."""

    def __init__(self) -> None:
        self._stores: dict[str, MemoryStore] = {}

    def open(self, name: str) -> MemoryStore:
        """Give a byte store, made when it is first asked for."""
        return self._stores.setdefault(name, MemoryStore())

    def apply(self, changes: Mapping[str, Iterable[StoreChange]], dropped: Iterable[str] = ()) -> None:
        """Drop byte stores and write changes."""
        for name in dropped:
            self.open(name).clear()
        for name, items in changes.items():
            self.open(name).apply(items)


class MemoryStore:
    """A sorted map from bytes to bytes; implements ``ByteReader``. Owned by one thread."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._keys: list[bytes] = []

    def get(self, key: bytes) -> bytes | None:
        """Give the value of a key, or None."""
        return self._values.get(key)

    def scan(
        self, low: bytes | None, high: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Iterate in key order over ``low <= key < high``, over the content as it is now."""
        first = 0 if low is None else bisect_left(self._keys, low)
        last = len(self._keys) if high is None else bisect_left(self._keys, high)
        keys = self._keys[first:last]
        return iter([(key, self._values[key]) for key in (reversed(keys) if reverse else keys)])

    def approximate_count(self) -> int:
        """Give the number of keys."""
        return len(self._keys)

    def clear(self) -> None:
        """Remove everything."""
        self._values.clear()
        self._keys.clear()

    def apply(self, changes: Iterable[StoreChange]) -> None:
        """Write changes; None deletes."""
        for key, value in changes:
            if value is None:
                if self._values.pop(key, None) is not None:
                    del self._keys[bisect_left(self._keys, key)]
            else:
                if key not in self._values:
                    insort(self._keys, key)
                self._values[key] = value


NOTHING: Final = MemoryStore()
"""The content of a byte store that does not exist."""
