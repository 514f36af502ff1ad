"""Key-value store: one interface for processors and the DSL over several representations of the entries (*rows*).

Rows are plain (:class:`PlainRows`), expiring (``millstream.core.state.expiry``) or limited by least recent use
(``millstream.core.state.lru``).

A micro-batch never writes to the committed content of a store (see docs/concepts/state.md). It reads through an *overlay*, a dict of its
own writes; reads and iterators merge the two. At the end of the micro-batch, the overlay returns one change per key. Other kinds of stores
have overlays, too.

Immutable objects stay in the overlay as they are and are serialised once, at the end. All other objects are kept as bytes, so that
mutating an object after a put or get does not change the state.

Iterators need the writes of the micro-batch in key order. The overlay keeps the sorted order and inserts only the keys written since the
last iterator, because sorting for each iterator would take quadratic time if each record reads a range. A store that is read by key for
each record also indexes the writes by key (``keep_under``, ``scan_under``), to skip the entries that the micro-batch has deleted.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final, Generic, Protocol

from millstream.core.model.record import K, V
from millstream.core.ports import ByteReader, StoreChange
from millstream.core.state.contract import Drained, Memory
from millstream.core.state.objects import Objects
from millstream.core.state.values import Values
from millstream.core.topology.stores import StoreSpec

_FEW: Final = 32


class _Absent:
    """Marks a key that the overlay does not contain. None marks a deleted key."""


_ABSENT: Final = _Absent()


class _Own(dict[bytes, Any]):
    """The writes of the micro-batch. A lookup of any other key returns its committed entry, without caching it.

    A store of immutable objects is therefore read by the dict's own method, without a call to a Python function.
    """

    __slots__ = ("_committed", "_decode")

    def __init__(self, committed: Callable[[bytes], bytes | None], decode: Callable[[bytes], Any]) -> None:
        self._committed = committed
        self._decode = decode

    def __missing__(self, key: bytes) -> Any:
        data = self._committed(key)
        return None if data is None else self._decode(data)


class Overlay:
    """One byte store in one micro-batch. Owned by the task; not thread-safe.

    Attributes:
        get: Returns the entry of a serialised key, or None.
        put: Sets the entry of a serialised key. None, or an entry that is serialised to None, deletes the key. Raises SerdeError if
            the value does not fit.
        put_fitting: Like ``put``, for a value that is known to fit.
    """

    __slots__ = ("_base", "_order", "_own", "_under", "_values", "get", "put", "put_fitting")

    def __init__(self, values: Values, base: ByteReader) -> None:
        self._values = values
        self._base = base
        self._own: dict[bytes, Any] = _Own(base.get, values.decode)
        self._order: list[bytes] = []
        self._under: dict[bytes, set[bytes]] = {}
        self.get: Callable[[bytes], Any] = _getter(self._own, base.get, values)
        self.put: Callable[[bytes, Any], None] = _putter(self._own, values)
        self.put_fitting = self._own.__setitem__ if values.live else self.put

    def has(self, key: bytes) -> bool:
        """Return whether a key has an entry, without deserialising it."""
        entry = self._own.get(key, _ABSENT)
        return self._base.get(key) is not None if entry is _ABSENT else entry is not None

    def committed_bytes(self, key: bytes) -> bytes | None:
        """Return the bytes of a key as committed before the micro-batch, or None."""
        return self._base.get(key)

    def keep(self, key: bytes, kept: Any) -> None:
        """Set the entry of a serialised key to a result of ``Values.overlay_form``."""
        self._own[key] = kept

    def keep_under(self, prefix: bytes, key: bytes, kept: Any) -> None:
        """Set the entry of a serialised key and index it for :meth:`scan_under`. All writes with this prefix must use this method."""
        self._own[key] = kept
        if kept is not None:
            self._under.setdefault(prefix, set()).add(key)
        elif (written := self._under.get(prefix)) is not None:
            written.discard(key)

    def scan_under(
        self, prefix: bytes, low: bytes, high: bytes, *, reverse: bool
    ) -> Iterator[tuple[bytes, Any]]:
        """Iterate over a snapshot of the entries with ``low <= key < high``. All keys in this range must have the prefix."""
        written, own = self._under.get(prefix, ()), self._own
        mine = sorted([key for key in written if low <= key < high], reverse=reverse)
        base = self._base.scan(low, high, reverse=reverse)
        committed = [entry for entry in base if entry[0] not in own]
        if not committed:
            get = self.get
            return iter([(key, get(key)) for key in mine])
        return self._merged(iter(committed), [(key, own[key]) for key in mine], reverse)

    def own(self) -> dict[bytes, Any]:
        """Return the writes of the micro-batch; None marks a deleted key."""
        return self._own

    def scan_own(self) -> list[tuple[bytes, Any]]:
        """Return the entries that the micro-batch has written, without deletions, in no particular order."""
        get = self.get
        return [(key, get(key)) for key, kept in self._own.items() if kept is not None]

    def scan(
        self, low: bytes | None, high: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, Any]]:
        """Iterate over a snapshot of the entries with ``low <= key < high``; None means unbounded."""
        own = [(key, self._own[key]) for key in self._own_keys_between(low, high)]
        if reverse:
            own.reverse()
        return self._merged(self._base.scan(low, high, reverse=reverse), own, reverse)

    def approximate_count(self) -> int:
        """Return the number of keys; keys written in this micro-batch may be counted twice."""
        return self._base.approximate_count() + len(self._own)

    def drain(self) -> list[StoreChange]:
        """Return the changes since the last call, one per key, and clear them.

        Raises:
            SerdeError: If a value does not fit the store's value serde and :meth:`put` could not detect it.
        """
        changes = self._values.encoded_changes(self._own)
        self._own.clear()
        self._order.clear()
        self._under.clear()
        return changes

    def _own_keys_between(self, low: bytes | None, high: bytes | None) -> list[bytes]:
        order, fresh = self._order, len(self._own) - len(self._order)
        if fresh > _FEW:
            order.extend(islice(reversed(self._own), fresh))
            order.sort()
        else:
            for key in islice(reversed(self._own), fresh):
                insort(order, key)
        first = 0 if low is None else bisect_left(order, low)
        return order[first : len(order) if high is None else bisect_left(order, high)]

    def _merged(
        self, base: Iterator[tuple[bytes, bytes]], own: list[tuple[bytes, Any]], reverse: bool
    ) -> Iterator[tuple[bytes, Any]]:
        """Merge committed and own entries in key order. An own entry replaces the committed entry of the same key."""
        decode, live = self._values.decode, self._values.live
        below = next(base, None)
        for key, entry in own:
            while below is not None and (below[0] > key if reverse else below[0] < key):
                yield below[0], decode(below[1])
                below = next(base, None)
            if below is not None and below[0] == key:
                below = next(base, None)
            if entry is not None:
                yield key, entry if live else decode(entry)
        while below is not None:
            yield below[0], decode(below[1])
            below = next(base, None)


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


def _getter(
    own: dict[bytes, Any], committed: Callable[[bytes], bytes | None], values: Values
) -> Callable[[bytes], Any]:
    if values.live:
        return own.__getitem__
    decode, find = values.decode, own.get

    def get(key: bytes) -> Any:
        entry = find(key, _ABSENT)
        data = committed(key) if entry is _ABSENT else entry
        return None if data is None else decode(data)

    return get


def _putter(own: dict[bytes, Any], values: Values) -> Callable[[bytes, Any], None]:
    overlay_form, accepts, fits = values.overlay_form, values.accepts, values.fits

    def put(key: bytes, entry: Any) -> None:
        own[key] = overlay_form(entry)

    def put_stamped(key: bytes, entry: Any) -> None:  # put() inlined, for the stores of the DSL
        known = entry is not None and type(entry[0]) in accepts and fits(entry[0])
        own[key] = entry if known else overlay_form(entry)

    return put_stamped if values.live and accepts and values.stamps == 1 else put
