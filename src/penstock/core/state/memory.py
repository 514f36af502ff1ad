"""Committed content of a store in memory: for ``TopologyTestDriver``, and the model the other engines are tested against."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator

from penstock.core.ports import StoreChange


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
