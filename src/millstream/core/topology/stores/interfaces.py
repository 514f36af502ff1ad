"""The stores as processors see them: one interface for each kind, for annotations.

The classes that implement them are in ``millstream.core.state``, which the topology does not know. They have further methods for the
engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar, overload

from millstream.core.model.record import K, V
from millstream.core.model.windowed import VersionedRecord, Windowed

V_contra = TypeVar("V_contra", contravariant=True)


class KeyValueStore(Protocol[K, V]):
    """A key-value store or an LRU store, as a processor sees it. In a timestamped store, ``V`` is ``ms.ValueAndTimestamp``.

    A key is never None; a value that is None deletes its key. Iterators include the writes of the micro-batch up to the moment they are
    created, and are in the order of the serialised keys.

    Source: ``org.apache.kafka.streams.state.KeyValueStore``.

    Example:
        >>> import millstream as ms
        >>> class Count(ms.Processor[str, str, str, int]):
        ...     def init(self, context):
        ...         super().init(context)
        ...         self.counts: ms.stores.KeyValueStore[str, int] = context.state_store("counts")
    """

    def get(self, key: K) -> V | None:
        """Return the value of a key, or None."""

    def put(self, key: K, value: V | None) -> None:
        """Set the value of a key; None deletes it."""

    def put_if_absent(self, key: K, value: V) -> V | None:
        """Set the value of a key that has no value; return the previous value, or None."""

    def put_all(self, entries: Iterable[tuple[K, V | None]]) -> None:
        """Set the values of several keys."""

    def delete(self, key: K) -> V | None:
        """Delete a key; return its previous value, or None."""

    def range(self, low: K | None = None, high: K | None = None) -> Iterator[tuple[K, V]]:
        """Iterate over ``low <= key <= high``; None means unbounded."""

    def reverse_range(self, low: K | None = None, high: K | None = None) -> Iterator[tuple[K, V]]:
        """Iterate over ``low <= key <= high`` backwards."""

    def prefix_scan(self, prefix: K | bytes) -> Iterator[tuple[K, V]]:
        """Iterate over the keys whose serialised form begins with bytes, or with a serialised key."""

    def all(self) -> Iterator[tuple[K, V]]:
        """Iterate over all entries."""

    def reverse_all(self) -> Iterator[tuple[K, V]]:
        """Iterate backwards over all entries."""

    def approximate_count(self) -> int:
        """Return the number of keys; keys written in this micro-batch may be counted twice."""


class WindowStore(Protocol[K, V]):
    """A window store, as a processor sees it. In a timestamped store, ``V`` is ``ms.ValueAndTimestamp``.

    Both ends of a range are inclusive. Times are int milliseconds since the epoch, and the time of a window is its start.

    Source: ``org.apache.kafka.streams.state.WindowStore``.
    """

    def put(self, key: K, value: V | None, window_start: int) -> None:
        """Set the value of a key in a window; None deletes it, or does nothing if duplicates are retained."""

    @overload
    def fetch(self, key: K, time_from: int) -> V | None: ...
    @overload
    def fetch(self, key: K, time_from: int, time_to: int) -> Iterator[tuple[int, V]]: ...
    def fetch(self, key: K, time_from: int, time_to: int | None = None) -> V | Iterator[tuple[int, V]] | None:
        """Return the value of the window that starts at ``time_from``; with ``time_to``, pairs of window start and value."""

    def reverse_fetch(self, key: K, time_from: int, time_to: int) -> Iterator[tuple[int, V]]:
        """Iterate over the windows of a key, latest first."""

    def fetch_range(
        self, key_from: K | None, key_to: K | None, time_from: int, time_to: int
    ) -> Iterator[tuple[Windowed[K], V]]:
        """Iterate over the windows of a range of keys; None leaves an end open."""

    def reverse_fetch_range(
        self, key_from: K | None, key_to: K | None, time_from: int, time_to: int
    ) -> Iterator[tuple[Windowed[K], V]]:
        """Iterate backwards over the windows of a range of keys."""

    def fetch_all(self, time_from: int, time_to: int) -> Iterator[tuple[Windowed[K], V]]:
        """Iterate over the windows of all keys in a range of times."""

    def reverse_fetch_all(self, time_from: int, time_to: int) -> Iterator[tuple[Windowed[K], V]]:
        """Iterate backwards over the windows of all keys in a range of times."""

    def all(self) -> Iterator[tuple[Windowed[K], V]]:
        """Iterate over all windows."""

    def reverse_all(self) -> Iterator[tuple[Windowed[K], V]]:
        """Iterate backwards over all windows."""


class SessionStore(Protocol[K, V]):
    """A session store, as a processor sees it. Both ends of a session are inclusive.

    Source: ``org.apache.kafka.streams.state.SessionStore``.
    """

    def put(self, session: Windowed[K], aggregate: V | None) -> None:
        """Set the value of a session; None deletes it."""

    def remove(self, session: Windowed[K]) -> None:
        """Delete a session."""

    def fetch_session(self, key: K, start: int, end: int) -> V | None:
        """Return the value of exactly this session, or None."""

    def fetch(self, key: K) -> Iterator[tuple[Windowed[K], V]]:
        """Iterate over the sessions of a key."""

    def reverse_fetch(self, key: K) -> Iterator[tuple[Windowed[K], V]]:
        """Iterate backwards over the sessions of a key."""

    def fetch_range(self, key_from: K | None, key_to: K | None) -> Iterator[tuple[Windowed[K], V]]:
        """Iterate over the sessions of a range of keys; None leaves an end open."""

    def reverse_fetch_range(self, key_from: K | None, key_to: K | None) -> Iterator[tuple[Windowed[K], V]]:
        """Iterate backwards over the sessions of a range of keys."""

    @overload
    def find_sessions(
        self, key: K, earliest_end: int, latest_start: int
    ) -> Iterator[tuple[Windowed[K], V]]: ...
    @overload
    def find_sessions(self, earliest_end: int, latest_end: int, /) -> Iterator[tuple[Windowed[K], V]]: ...
    def find_sessions(
        self, key: K | int, earliest_end: int, latest_start: int | None = None
    ) -> Iterator[tuple[Windowed[K], V]]:
        """Iterate over the sessions of a key with ``end >= earliest_end`` and ``start <= latest_start``.

        With two times and no key, iterate over the sessions of all keys with ``earliest_end <= end <= latest_end``.
        """

    def reverse_find_sessions(
        self, key: K, earliest_end: int, latest_start: int
    ) -> Iterator[tuple[Windowed[K], V]]:
        """Iterate backwards over the sessions of a key with ``end >= earliest_end`` and ``start <= latest_start``."""

    def find_sessions_range(
        self, key_from: K | None, key_to: K | None, earliest_end: int, latest_start: int
    ) -> Iterator[tuple[Windowed[K], V]]:
        """Iterate over the sessions of a range of keys with ``end >= earliest_end`` and ``start <= latest_start``."""

    def reverse_find_sessions_range(
        self, key_from: K | None, key_to: K | None, earliest_end: int, latest_start: int
    ) -> Iterator[tuple[Windowed[K], V]]:
        """Iterate backwards over the sessions of a range of keys."""

    def all(self) -> Iterator[tuple[Windowed[K], V]]:
        """Iterate over all sessions."""

    def reverse_all(self) -> Iterator[tuple[Windowed[K], V]]:
        """Iterate backwards over all sessions."""


class VersionedKeyValueStore(Protocol[K, V_contra]):
    """A versioned store, as a processor sees it.

    Source: ``org.apache.kafka.streams.state.VersionedKeyValueStore`` (KIP-889), which has no iterators.
    """

    def put(self, key: K, value: V_contra | None, timestamp: int) -> int | None:
        """Add a version; None is a deletion. Return the timestamp of the next version, ``ms.stores.LATEST``, or None if it was dropped."""

    def delete(self, key: K, timestamp: int) -> VersionedRecord | None:
        """Add a deletion; return the version that was valid at that time, or None."""

    def get(self, key: K, as_of: int | None = None) -> VersionedRecord | None:
        """Return the latest version of a key, or the version that was valid at a time; None if there is none or it is a deletion."""

    def all(self) -> Iterator[tuple[K, VersionedRecord]]:
        """Iterate over the latest versions of all keys."""

    def reverse_all(self) -> Iterator[tuple[K, VersionedRecord]]:
        """Iterate backwards over the latest versions of all keys."""
