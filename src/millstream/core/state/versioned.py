"""Versioned store: the history of each key.

A *version* is a value, or a deletion, with the time from which it is valid. It is valid until the next version of its key begins, so
the versions of a key have no gaps.

    latest value       byte store of the store's name      key                          from (8) | value
    earlier version    slice of the time it ends           closed key | from (8)        to (8) | 01 value or 00
    latest deletion    slice of the time it begins         closed key | from (8)        LATEST (8) | 00

A version expires with the slice that contains its end. The latest value of a key never expires, and a deleted key does not take
space forever. A read as of a time searches the slices from that time on, one entry each, until it finds the version that is valid at
that time. The store's time is the largest timestamp put.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Generic, NamedTuple

from millstream.core.model.record import K, V
from millstream.core.model.serdes import Serde
from millstream.core.model.windowed import VersionedRecord
from millstream.core.ports import ByteStores
from millstream.core.state.contract import Drained, Surroundings
from millstream.core.state.keys import FOREVER, checked_time, entries_end, entry_prefix, pack_time, time_at
from millstream.core.state.keyvalue import Overlay
from millstream.core.state.objects import Objects
from millstream.core.state.slices import SlicedStore, Slices
from millstream.core.state.values import Values
from millstream.core.topology.stores import LATEST, VersionedSpec


class _Version(NamedTuple):
    """A version of a key. ``end`` is LATEST for the latest version, ``value`` is None for a deletion."""

    start: int
    end: int
    value: Any


class VersionedStore(SlicedStore, Generic[K, V]):
    """A versioned store of one task. Owned by the task; not thread-safe.

    Times are int milliseconds since the epoch.

    Source: KIP-889; ``org.apache.kafka.streams.state.VersionedKeyValueStore``.
    """

    __slots__ = ("_latest", "_objects", "_task", "name")

    def __init__(
        self, spec: VersionedSpec, stores: ByteStores, task: Surroundings, memory: Mapping[str, Any]
    ) -> None:
        self.name = spec.name
        self._objects: Objects[K, V] = Objects(spec, more_stamps=1)
        self._latest = Overlay(self._objects.values, stores.open(spec.name))
        self._slices = Slices(spec, Values(spec.name, _earlier(spec.value), 1), stores, memory)
        self._task = task

    def put(self, key: K, value: V | None, timestamp: int) -> int | None:
        """Add a version; the value None is a deletion. Replaces a version with the same timestamp.

        A version older than the history retention is dropped and counted as a dropped record.

        Returns:
            The timestamp of the next version, until which this version is valid; ``ms.stores.LATEST`` (-1) if no version follows;
            None if the version was dropped.

        Raises:
            StoreError: If the key is None, or the timestamp is not a time.
            SerdeError: If key or value do not fit the store's serdes.
        """
        stored = self._objects.key_bytes(key)
        checked_time(self.name, "a timestamp", timestamp)
        return self.insert(stored, value, timestamp)

    def delete(self, key: K, timestamp: int) -> VersionedRecord | None:
        """Add a deletion; return the version that was valid at that time, or None.

        Raises:
            StoreError: If the key is None, or the timestamp is not a time.
        """
        stored = self._objects.key_bytes(key)
        checked_time(self.name, "a timestamp", timestamp)
        if self._left_out(timestamp):
            return None
        old = self.fetch(stored, timestamp)
        self._insert(stored, None, timestamp)
        return old

    def get(self, key: K, as_of: int | None = None) -> VersionedRecord | None:
        """Return the latest version of a key, or the version valid at a time; None if there is none or it is a deletion.

        Args:
            as_of: Time, ms since the epoch. Before the history retention, only the latest version can be found.

        Returns:
            Value and timestamp of the version.

        Raises:
            StoreError: If the key is None.
            SerdeError: If the key does not fit the store's key serde.
        """
        return self.fetch(self._objects.key_bytes(key), FOREVER if as_of is None else as_of)

    def all(self) -> Iterator[tuple[K, VersionedRecord]]:
        """Iterate over the latest versions of all keys, ordered by serialised key. A deleted key has none."""
        return self._iterate(reverse=False)

    def reverse_all(self) -> Iterator[tuple[K, VersionedRecord]]:
        """Iterate backwards over the latest versions of all keys."""
        return self._iterate(reverse=True)

    def fetch(self, key: bytes, time: int) -> VersionedRecord | None:
        """Return the version of a serialised key that was valid at a time, for the engine."""
        latest = self._latest.get(key)
        if latest is not None and latest[1] <= time:
            return VersionedRecord(*latest)
        if time < self._slices.horizon:
            return None
        row = self._earlier_at(key, time)
        if row is None or row.value is None:
            return None
        return VersionedRecord(row.value, row.start, row.end)

    def insert(self, key: bytes, value: Any, timestamp: int) -> int | None:
        """Add a version of a serialised key, for the engine; see :meth:`put`."""
        return None if self._left_out(timestamp) else self._insert(key, value, timestamp)

    def drain(self) -> Drained:
        history = super().drain()
        latest = self._latest.drain()
        return Drained({self.name: latest, **history.changes} if latest else history.changes, history.dropped)

    def _iterate(self, *, reverse: bool) -> Iterator[tuple[K, VersionedRecord]]:
        entries = self._latest.scan(None, None, reverse=reverse)
        return ((self._objects.key(key), VersionedRecord(*latest)) for key, latest in entries)

    def _left_out(self, timestamp: int) -> bool:
        if timestamp < self._slices.horizon:
            self._task.drop("expired version")
            return True
        self._slices.observe(timestamp)
        return False

    def _insert(self, key: bytes, value: Any, timestamp: int) -> int:
        """Insert a version between existing ones. The version valid at that time then ends where the new version begins."""
        if value is not None and self._objects.values.checked((value, timestamp)) is None:
            value = None
        before = self._version_at(key, timestamp)
        if before is None:
            end = self._next_start(key, timestamp)
        else:
            end = before.end
            if before.start < timestamp:
                self._move(key, before, timestamp)
            else:
                self._remove(key, before)
        self._add(key, _Version(timestamp, end, value))
        return end

    def _version_at(self, key: bytes, time: int) -> _Version | None:
        """Return the version that is valid at a time, including deletions."""
        latest = self._latest_version(key)
        if latest is not None and latest.start <= time:
            return latest
        return self._earlier_at(key, time)

    def _latest_version(self, key: bytes) -> _Version | None:
        """Return the latest version: a value, or a deletion that no value follows."""
        latest = self._latest.get(key)
        if latest is not None:
            return _Version(latest[1], LATEST, latest[0])
        prefix = entry_prefix(key)
        for slice_ in self._slices.newest_first():
            row = next(slice_.rows.scan(prefix, entries_end(key), reverse=True), None)
            if row is not None:
                version = _read(*row)
                return version if version.end == LATEST else None
        return None

    def _earlier_at(self, key: bytes, time: int) -> _Version | None:
        prefix = entry_prefix(key)
        low, high = prefix + pack_time(0), prefix + pack_time(min(time, FOREVER) + 1)
        for slice_ in self._slices.between(time, FOREVER):
            row = next(slice_.rows.scan(low, high, reverse=True), None)
            if row is not None:
                version = _read(*row)
                if version.end > time or version.end == LATEST:
                    return version
        return None

    def _next_start(self, key: bytes, time: int) -> int:
        """Return the start of the first version after a time at which no version is valid, or LATEST if no version follows."""
        prefix = entry_prefix(key)
        low, high = prefix + pack_time(time + 1), prefix + pack_time(FOREVER + 1)
        for slice_ in self._slices.between(time, FOREVER):
            row = next(slice_.rows.scan(low, high), None)
            if row is not None:
                return _read(*row).start
        latest = self._latest.get(key)
        return LATEST if latest is None else int(latest[1])

    def _add(self, key: bytes, version: _Version) -> None:
        if version.end == LATEST and version.value is not None:
            self._latest.put(key, (version.value, version.start))
            return
        slice_ = self._slices.to_write(_slice_time(version))
        if slice_ is not None:
            slice_.rows.put(entry_prefix(key) + pack_time(version.start), (version.value, version.end))

    def _remove(self, key: bytes, version: _Version) -> None:
        if version.end == LATEST and version.value is not None:
            self._latest.put(key, None)
            return
        slice_ = self._slices.find(_slice_time(version))
        if slice_ is not None:
            slice_.rows.put(entry_prefix(key) + pack_time(version.start), None)

    def _move(self, key: bytes, version: _Version, end: int) -> None:
        """Set the end of a version, which may move the version to another slice."""
        self._remove(key, version)
        self._add(key, version._replace(end=end))


def _slice_time(version: _Version) -> int:
    return version.start if version.end == LATEST else version.end


def _read(stored: bytes, entry: Any) -> _Version:
    value, end = entry
    return _Version(time_at(stored, -8), end, value)


def _earlier(of: Serde[Any]) -> Serde[Any]:
    def serialize(value: Any) -> bytes:
        return b"\x00" if value is None else b"\x01" + of.serialize(value)

    def deserialize(data: bytes) -> Any:
        return of.deserialize(data[1:]) if data[:1] == b"\x01" else None

    accepts = (*of.accepts, type(None)) if of.accepts else ()
    return Serde(f"version({of.name})", serialize, deserialize, of.immutable, accepts)
