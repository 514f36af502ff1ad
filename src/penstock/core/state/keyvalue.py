"""Key-value store: committed content below, the batch's own writes above.

A batch never writes to the committed content (see docs/concepts/state.md). It reads through an *overlay*: a dict of what
it has written. Reads and iterators see both as one. At the end of the batch the overlay is handed out as changes, one per
key however often the key was written: that is what makes the cost per record small.

Objects that cannot be changed in place stay in the overlay as they are and are serialised once, at the end; all others
are kept as bytes, so that nobody can change the state by changing an object they once put or got.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any, Final, Generic, TypeVar

from penstock.core.model.errors import PenstockError, SerdeError, StoreError
from penstock.core.model.record import ValueAndTimestamp
from penstock.core.model.serdes import Serde
from penstock.core.plan.stores import StoreSpec
from penstock.core.ports import ByteReader, StoreChange

K = TypeVar("K")
V = TypeVar("V")

_TIMESTAMP: Final = struct.Struct(">q")


class _Absent:
    """Marks a key the overlay does not know, where None means deleted."""


_ABSENT: Final = _Absent()


class KeyValueStore(Generic[K, V]):
    """A store of one task, as processors and the DSL use it. Owned by the task; not thread-safe.

    Iterators see the batch's own writes up to the moment they are made; entries come in the order of the serialised keys.

    Source: ``org.apache.kafka.streams.state.KeyValueStore``; for timestamped stores ``TimestampedKeyValueStore``.
    """

    __slots__ = ("_base", "_dirty", "_key", "_live", "_value", "name", "timestamped")

    def __init__(self, spec: StoreSpec, base: ByteReader) -> None:
        self.name = spec.name
        self.timestamped = spec.timestamped
        self._key: Serde[K] = spec.key
        self._value: Serde[Any] = _timestamped(spec.value) if spec.timestamped else spec.value
        self._live = self._value.immutable
        self._base = base
        self._dirty: dict[bytes, Any] = {}

    def get(self, key: K) -> V | None:
        """Give the value of a key, or None.

        Raises:
            StoreError: If the key is None.
            SerdeError: If the key does not fit the store's key serde.
        """
        entry = self.fetch(self._key_bytes(key))
        return entry if entry is None or not self.timestamped else ValueAndTimestamp(*entry)  # type: ignore[return-value]

    def put(self, key: K, value: V | None) -> None:
        """Set the value of a key; None deletes it.

        Raises:
            StoreError: If the key is None.
            SerdeError: If key or value do not fit the store's serdes.
        """
        if self.timestamped and value is not None and not (isinstance(value, tuple) and len(value) == 2):
            raise SerdeError(
                f"store {self.name!r} is timestamped: put ValueAndTimestamp(value, timestamp), not {value!r}"
            )
        self.write(self._key_bytes(key), value)

    def put_if_absent(self, key: K, value: V) -> V | None:
        """Set the value of a key that has none; give the value it had before, or None."""
        old = self.get(key)
        if old is None:
            self.put(key, value)
        return old

    def put_all(self, entries: Iterable[tuple[K, V | None]]) -> None:
        """Set the values of several keys."""
        for key, value in entries:
            self.put(key, value)

    def delete(self, key: K) -> V | None:
        """Remove a key; give the value it had, or None."""
        old = self.get(key)
        self.put(key, None)
        return old

    def range(self, low: K | None = None, high: K | None = None) -> Iterator[tuple[K, V]]:
        """Iterate over ``low <= key <= high`` in the order of the serialised keys; None leaves a side open."""
        return self._iterate(*self._bounds(low, high), reverse=False)

    def reverse_range(self, low: K | None = None, high: K | None = None) -> Iterator[tuple[K, V]]:
        """Iterate over ``low <= key <= high`` backwards."""
        return self._iterate(*self._bounds(low, high), reverse=True)

    def prefix_scan(self, prefix: K | bytes) -> Iterator[tuple[K, V]]:
        """Iterate over the keys whose serialised form begins with a prefix.

        Args:
            prefix: Bytes as they are, or a key, which is serialised.
        """
        start = prefix if isinstance(prefix, bytes) else self._key_bytes(prefix)
        return self._iterate(start, _after_prefix(start), reverse=False)

    def all(self) -> Iterator[tuple[K, V]]:
        """Iterate over everything."""
        return self._iterate(None, None, reverse=False)

    def reverse_all(self) -> Iterator[tuple[K, V]]:
        """Iterate over everything backwards."""
        return self._iterate(None, None, reverse=True)

    def approximate_count(self) -> int:
        """Give the number of keys; keys written in this batch may be counted twice."""
        return self._base.approximate_count() + len(self._dirty)

    # What the engine uses: serialised keys, and entries as they lie in the overlay ((value, timestamp) if timestamped).

    def fetch(self, key: bytes) -> Any:
        """Give the entry of a serialised key, or None."""
        entry = self._dirty.get(key, _ABSENT)
        if entry is _ABSENT:
            data = self._base.get(key)
            return None if data is None else self._decode(data)
        if entry is None or self._live:
            return entry
        return self._decode(entry)

    def write(self, key: bytes, entry: Any) -> None:
        """Set the entry of a serialised key."""
        self._dirty[key] = entry if entry is None or self._live else self._value.serialize(entry)

    def drain(self) -> list[StoreChange]:
        """Give the changes since the last call, one per key, and forget them.

        The driver applies them to the committed content before the task runs on.

        Raises:
            SerdeError: If a value that was put does not fit the store's value serde.
        """
        dirty, self._dirty = self._dirty, {}
        if not self._live:
            return list(dirty.items())
        serialize = self._value.serialize
        try:
            return [(key, None if entry is None else serialize(entry)) for key, entry in dirty.items()]
        except PenstockError as error:
            raise type(error)(f"store {self.name!r}: {error}") from None

    def _key_bytes(self, key: Any) -> bytes:
        if key is None:
            raise StoreError(f"store {self.name!r}: a key must not be None")
        try:
            return self._key.serialize(key)
        except PenstockError as error:
            raise type(error)(f"store {self.name!r}: {error}") from None

    def _decode(self, data: bytes) -> Any:
        try:
            return self._value.deserialize(data)
        except Exception as error:
            raise StoreError(
                f"store {self.name!r}: {len(data)} stored bytes cannot be read as {self._value.name} ({error!r}); "
                "was the store's value serde changed without a new store name?"
            ) from error

    def _bounds(self, low: Any, high: Any) -> tuple[bytes | None, bytes | None]:
        first = None if low is None else self._key_bytes(low)
        last = None if high is None else self._key_bytes(high) + b"\x00"
        return first, last

    def _iterate(self, low: bytes | None, high: bytes | None, *, reverse: bool) -> Iterator[tuple[K, V]]:
        dirty = self._dirty
        own = sorted(
            (key for key in dirty if (low is None or key >= low) and (high is None or key < high)),
            reverse=reverse,
        )
        snapshot = [(key, dirty[key]) for key in own]
        merged = _merge(self._base.scan(low, high, reverse=reverse), snapshot, reverse=reverse)
        return self._objects(merged)

    def _objects(self, merged: Iterable[tuple[bytes, Any, bool]]) -> Iterator[tuple[K, V]]:
        for key, entry, own in merged:
            if entry is not None:
                value = entry if own and self._live else self._decode(entry)
                yield self._key.deserialize(key), ValueAndTimestamp(*value) if self.timestamped else value  # type: ignore[misc]


def _merge(
    base: Iterator[tuple[bytes, bytes]], own: list[tuple[bytes, Any]], *, reverse: bool
) -> Iterator[tuple[bytes, Any, bool]]:
    """Merge committed and own entries in key order; own entries hide committed ones of the same key."""
    below = next(base, None)
    for key, entry in own:
        while below is not None and (below[0] > key if reverse else below[0] < key):
            yield (*below, False)
            below = next(base, None)
        if below is not None and below[0] == key:
            below = next(base, None)
        yield key, entry, True
    while below is not None:
        yield (*below, False)
        below = next(base, None)


def _after_prefix(prefix: bytes) -> bytes | None:
    """Give the first key after all keys with a prefix; None if there is no such key."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None


def _timestamped(value: Serde[Any]) -> Serde[Any]:
    """Make the serde of (value, timestamp): eight bytes of timestamp, then the value, as Kafka Streams stores them."""
    pack, unpack = _TIMESTAMP.pack, _TIMESTAMP.unpack_from
    to_bytes, from_bytes = value.serialize, value.deserialize

    def serialize(entry: Any) -> bytes:
        return pack(entry[1]) + to_bytes(entry[0])

    def deserialize(data: bytes) -> Any:
        return (from_bytes(data[8:]), unpack(data)[0])

    return Serde(f"timestamped({value.name})", serialize, deserialize, value.immutable)
