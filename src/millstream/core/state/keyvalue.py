"""Key-value store: one interface for processors and the DSL over several representations of the entries (*rows*).

Rows are plain (:class:`PlainRows`), expiring (``millstream.core.state.expiry``) or limited by least recent use
(``millstream.core.state.lru``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, Protocol, TypeVar

from millstream.core.state.contract import Drained, Memory
from millstream.core.state.objects import Objects
from millstream.core.state.overlay import Overlay
from millstream.core.topology.stores import StoreSpec

K = TypeVar("K")
V = TypeVar("V")


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
        """A function that sets the entry of a key to a value that is known to fit."""

    def scan(
        self, low: bytes | None, high: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, Any]]:
        """Iterate over a snapshot of the entries with ``low <= key < high``; None means unbounded."""

    def approximate_count(self) -> int: ...

    def drain(self) -> Drained: ...

    def memory(self) -> Memory: ...


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


class KeyValueStore(Generic[K, V]):
    """A key-value store of one task, for processors and the DSL. Owned by the task; not thread-safe.

    Iterators include the writes of the micro-batch up to the moment they are created. Entries are ordered by serialised key.

    Attributes:
        fetch: Returns the entry of a serialised key or None, for the engine: (value, timestamp) if timestamped.
        write: Sets the entry of a serialised key, for the engine.
        write_fitting: Like ``write``, for a value that is known to fit the store's value serde.

    Source: ``org.apache.kafka.streams.state.KeyValueStore``; for timestamped stores ``TimestampedKeyValueStore``.
    """

    __slots__ = ("_objects", "_rows", "fetch", "name", "write", "write_fitting")

    def __init__(self, spec: StoreSpec, objects: Objects[K, V], rows: KeyValueRows) -> None:
        self.name = spec.name
        self._objects = objects
        self._rows = rows
        self.fetch, self.write, self.write_fitting = rows.get, rows.put, rows.put_fitting

    def get(self, key: K) -> V | None:
        """Return the value of a key, or None.

        Raises:
            StoreError: If the key is None.
            SerdeError: If the key does not fit the store's key serde.
        """
        result: V | None = self._objects.value(self.fetch(self._objects.key_bytes(key)))
        return result

    def put(self, key: K, value: V | None) -> None:
        """Set the value of a key; None deletes it.

        Raises:
            StoreError: If the key is None.
            SerdeError: If key or value do not fit the store's serdes.
        """
        entry = self._objects.entry(value)
        self.write(self._objects.key_bytes(key), entry)

    def check(self, key: K, value: V | None) -> None:
        """Check that a key and value can be put, without putting them.

        Raises:
            StoreError: If the key is None.
            SerdeError: If key or value do not fit the store's serdes.
        """
        self._objects.key_bytes(key)
        self._objects.check(value)

    def put_if_absent(self, key: K, value: V) -> V | None:
        """Set the value of a key that has no value; return the previous value, or None."""
        old = self.get(key)
        if old is None:
            self.put(key, value)
        return old

    def put_all(self, entries: Iterable[tuple[K, V | None]]) -> None:
        """Set the values of several keys."""
        for key, value in entries:
            self.put(key, value)

    def delete(self, key: K) -> V | None:
        """Delete a key; return its previous value, or None."""
        old = self.get(key)
        self.put(key, None)
        return old

    def range(self, low: K | None = None, high: K | None = None) -> Iterator[tuple[K, V]]:
        """Iterate over ``low <= key <= high`` in the order of the serialised keys; None means unbounded."""
        return self._iterate(*self._bounds(low, high), reverse=False)

    def reverse_range(self, low: K | None = None, high: K | None = None) -> Iterator[tuple[K, V]]:
        """Iterate over ``low <= key <= high`` backwards."""
        return self._iterate(*self._bounds(low, high), reverse=True)

    def prefix_scan(self, prefix: K | bytes) -> Iterator[tuple[K, V]]:
        """Iterate over the keys whose serialised form begins with a prefix.

        Args:
            prefix: Bytes, used as they are, or a key, which is serialised first.
        """
        start = prefix if isinstance(prefix, bytes) else self._objects.key_bytes(prefix)
        return self._iterate(start, _after_prefix(start), reverse=False)

    def all(self) -> Iterator[tuple[K, V]]:
        """Iterate over all entries."""
        return self._iterate(None, None, reverse=False)

    def reverse_all(self) -> Iterator[tuple[K, V]]:
        """Iterate backwards over all entries."""
        return self._iterate(None, None, reverse=True)

    def approximate_count(self) -> int:
        """Return the number of keys; keys written in this micro-batch may be counted twice."""
        return self._rows.approximate_count()

    def drain(self) -> Drained:
        return self._rows.drain()

    def memory(self) -> Memory:
        return self._rows.memory()

    def _bounds(self, low: Any, high: Any) -> tuple[bytes | None, bytes | None]:
        first = None if low is None else self._objects.key_bytes(low)
        last = None if high is None else self._objects.key_bytes(high) + b"\x00"
        return first, last

    def _iterate(self, low: bytes | None, high: bytes | None, *, reverse: bool) -> Iterator[tuple[K, V]]:
        return self._pairs(self._rows.scan(low, high, reverse=reverse))

    def _pairs(self, entries: Iterable[tuple[bytes, Any]]) -> Iterator[tuple[K, V]]:
        for key, entry in entries:
            yield self._objects.key(key), self._objects.value(entry)


def _after_prefix(prefix: bytes) -> bytes | None:
    """Return the first key after all keys with a prefix, or None if no key can follow them."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None
