"""Read-only stores: a task's view of a global store, or of a store that another processor fills from a topic.

The content of a global store is the content of its topic, the same for every task. A write by one task would be visible only to tasks
on the same host, and lost with the host's copy. A write is therefore an error that names the topic to write to instead (Kafka
Streams: ``AbstractReadOnlyDecorator``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

from millstream.core.model.errors import StoreError
from millstream.core.model.record import K, V
from millstream.core.state.keyvalue import KeyValueStore


class ReadOnlyKeyValueStore(KeyValueStore[K, V]):
    """A key-value store whose write methods raise errors.

    Source: ``org.apache.kafka.streams.state.ReadOnlyKeyValueStore``.
    """

    __slots__ = ()

    def __init__(self, store: KeyValueStore[K, V]) -> None:
        self.name, self.fetch = store.name, store.fetch
        self._objects, self._rows = store._objects, store._rows

    def put(self, key: K, value: V | None) -> NoReturn:
        """Raise an error, because the store is read-only.

        Raises:
            StoreError: Always.
        """
        self._refuse("put")

    def put_if_absent(self, key: K, value: V) -> NoReturn:
        self._refuse("put_if_absent")

    def put_all(self, entries: Iterable[tuple[K, V | None]]) -> NoReturn:
        self._refuse("put_all")

    def delete(self, key: K) -> NoReturn:
        self._refuse("delete")

    def _refuse(self, method: str) -> NoReturn:
        raise StoreError(
            f"{method}() on store {self.name!r}: it is read-only here, because it is filled from its topic; send the "
            "change to that topic"
        )


def read_only(store: Any) -> ReadOnlyKeyValueStore[Any, Any]:
    if not isinstance(store, KeyValueStore):
        raise StoreError(
            f"store {store.name!r} is not a key-value store, so it cannot be read-only; this is a bug"
        )
    return ReadOnlyKeyValueStore(store)
