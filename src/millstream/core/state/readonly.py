"""Read-only stores: a task's view of a global store, or of a store that another processor fills from a topic.

The content of a global store is that of its topic, the same for every task. Only the tasks of the same host would see a write
by one task, and it would be lost with the host's copy. So a write is an error that names the topic to write to instead (Kafka
Streams: ``AbstractReadOnlyDecorator``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Generic, NoReturn, TypeVar

from millstream.core.model.errors import StoreError
from millstream.core.state.keyvalue import KeyValueStore

K = TypeVar("K")
V = TypeVar("V")


class ReadOnlyKeyValueStore(Generic[K, V]):
    """A key-value store that cannot be written to.

    Attributes:
        get: Same as :meth:`KeyValueStore.get`, like the other reads.
        fetch: Returns the entry of a serialised key or None, for the engine.

    Source: ``org.apache.kafka.streams.state.ReadOnlyKeyValueStore``.
    """

    __slots__ = ("_store", "fetch", "get", "name")

    def __init__(self, store: KeyValueStore[K, V]) -> None:
        self._store = store
        self.name = store.name
        self.get, self.fetch = store.get, store.fetch

    def range(self, low: K | None = None, high: K | None = None) -> Iterator[tuple[K, V]]:
        """Iterate over keys from low to high, both inclusive; see ``KeyValueStore``."""
        return self._store.range(low, high)

    def reverse_range(self, low: K | None = None, high: K | None = None) -> Iterator[tuple[K, V]]:
        """Iterate over keys from high to low, both inclusive."""
        return self._store.reverse_range(low, high)

    def prefix_scan(self, prefix: K | bytes) -> Iterator[tuple[K, V]]:
        """Iterate over the keys whose serialised form begins with a prefix."""
        return self._store.prefix_scan(prefix)

    def all(self) -> Iterator[tuple[K, V]]:
        """Iterate over all entries."""
        return self._store.all()

    def reverse_all(self) -> Iterator[tuple[K, V]]:
        """Iterate backwards over all entries."""
        return self._store.reverse_all()

    def approximate_count(self) -> int:
        """Return the number of keys."""
        return self._store.approximate_count()

    def put(self, key: K, value: V | None) -> NoReturn:
        """Raise an error, because the store is read-only.

        Raises:
            StoreError: Always, like the other writes.
        """
        self._refuse("put")

    def put_if_absent(self, key: K, value: V) -> NoReturn:
        """Raise an error; see :meth:`put`."""
        self._refuse("put_if_absent")

    def put_all(self, entries: Iterable[tuple[K, V | None]]) -> NoReturn:
        """Raise an error; see :meth:`put`."""
        self._refuse("put_all")

    def delete(self, key: K) -> NoReturn:
        """Raise an error; see :meth:`put`."""
        self._refuse("delete")

    def _refuse(self, method: str) -> NoReturn:
        raise StoreError(
            f"{method}() on store {self.name!r}: it can only be read here, because its content is that of its topic; send the "
            "change to that topic"
        )


def read_only(store: Any) -> ReadOnlyKeyValueStore[Any, Any]:
    """Return a read-only view of a key-value store.

    Raises:
        StoreError: If it is not a key-value store.
    """
    if not isinstance(store, KeyValueStore):
        raise StoreError(
            f"store {store.name!r} is no key-value store, so it cannot be made read-only; this is a bug"
        )
    return ReadOnlyKeyValueStore(store)
