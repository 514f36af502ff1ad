"""A store that can only be read: what a task sees of a global store, and of one that another processor fills from a topic.

The content of a global store is that of its topic, the same for every task. A write by one task would be seen by the tasks
of its host only, and would be gone with the host's copy; so writing is an error that says where to write instead (Kafka
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
    """A key-value store without its writes.

    Args:
        store: The store.

    Attributes:
        get: As :meth:`KeyValueStore.get`; so are the other reads.
        fetch: Gives the entry of a serialised key or None, for the engine.

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
        """Iterate over everything."""
        return self._store.all()

    def reverse_all(self) -> Iterator[tuple[K, V]]:
        """Iterate over everything backwards."""
        return self._store.reverse_all()

    def approximate_count(self) -> int:
        """Give the number of keys."""
        return self._store.approximate_count()

    def put(self, key: K, value: V | None) -> NoReturn:
        """Refuse.

        Raises:
            StoreError: Always; so do the other writes.
        """
        self._refuse("put")

    def put_if_absent(self, key: K, value: V) -> NoReturn:
        """Refuse; see :meth:`put`."""
        self._refuse("put_if_absent")

    def put_all(self, entries: Iterable[tuple[K, V | None]]) -> NoReturn:
        """Refuse; see :meth:`put`."""
        self._refuse("put_all")

    def delete(self, key: K) -> NoReturn:
        """Refuse; see :meth:`put`."""
        self._refuse("delete")

    def _refuse(self, method: str) -> NoReturn:
        raise StoreError(
            f"{method}() on store {self.name!r}: it can only be read here, because its content is that of its topic; send the "
            "change to that topic"
        )


def read_only(store: Any) -> ReadOnlyKeyValueStore[Any, Any]:
    """Give a store without its writes.

    Raises:
        StoreError: If it is no key-value store.
    """
    if not isinstance(store, KeyValueStore):
        raise StoreError(
            f"store {store.name!r} is no key-value store, so it cannot be made read-only; this is a bug"
        )
    return ReadOnlyKeyValueStore(store)
