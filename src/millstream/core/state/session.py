"""Session store: values by key, end and start of a session.

Each entry is in the slice that contains the end of its session, in one of two orders (``millstream.core.state.session_layouts``).

The store's time is the largest session end put or removed. Sessions that end at or before ``time - retention`` cannot be read. A put
is dropped, and counted as a dropped record, once its slice has expired (see docs/decisions/0014-windowed-stores-expire-in-time-slices.md).
A *strict* store behaves like the in-memory store of Kafka Streams: it drops every put of a session that could not be read, and its
time is the largest session end put.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, overload

from millstream.core.model.errors import StoreError
from millstream.core.model.record import K, V
from millstream.core.model.windowed import Windowed
from millstream.core.ports import ByteStores
from millstream.core.state.contract import Surroundings
from millstream.core.state.keys import FOREVER, checked_time
from millstream.core.state.objects import Objects
from millstream.core.state.session_layouts import SessionLayout, SessionsByKey, SessionsByTime
from millstream.core.state.slices import SlicedStore, Slices
from millstream.core.topology.stores import SessionSpec


class SessionStore(SlicedStore, Generic[K, V]):
    """A session store of one task. Owned by the task; not thread-safe.

    A session is a ``Windowed``: a key, a start and an end, both inclusive, in int ms since the epoch. Iterators include the writes of the
    micro-batch up to the moment they are created. Sessions are ordered by serialised key, end and start; with ``order="time"``, by end,
    key and start, with the latest start first.

    Source: ``org.apache.kafka.streams.state.SessionStore``.
    """

    __slots__ = ("_layout", "_objects", "_strict", "_task", "name")

    def __init__(
        self, spec: SessionSpec, stores: ByteStores, task: Surroundings, memory: Mapping[str, Any]
    ) -> None:
        self.name = spec.name
        self._objects: Objects[K, V] = Objects(spec)
        self._slices = Slices(spec, self._objects.values, stores, memory)
        self._task = task
        self._strict = spec.strict
        self._layout: SessionLayout = SessionsByTime() if spec.by_time else SessionsByKey()

    def put(self, session: Windowed[K], aggregate: V | None) -> None:
        """Set the value of a session; None removes it.

        A put into an expired slice is dropped and counted as a dropped record. A strict store also drops a put of a session that could not
        be read.

        Raises:
            StoreError: If the key is None, or start and end are not times, or the end is before the start.
            SerdeError: If key or value do not fit the store's serdes.
        """
        stored, kept = self._stored(session), self._objects.overlay_form(aggregate)
        if kept is None and not self._strict:
            return self._remove(stored, session.end)
        return self._keep(stored, session.end, kept)

    def remove(self, session: Windowed[K]) -> None:
        """Remove a session.

        Raises:
            StoreError: If the key is None, or start and end are not times, or the end is before the start.
        """
        self._remove(self._stored(session), session.end)

    def fetch_session(self, key: K, start: int, end: int) -> V | None:
        """Return the value of the session with exactly these bounds, or None."""
        stored = self._stored(Windowed(key, start, end))
        slice_ = self._slices.find(end) if end >= self._slices.oldest else None
        result: V | None = None if slice_ is None else self._objects.value(slice_.rows.get(stored))
        return result

    def fetch(self, key: K) -> Iterator[tuple[Windowed[K], V]]:
        """Iterate over all sessions of a key."""
        return self._find(key, 0, FOREVER, reverse=False)

    def reverse_fetch(self, key: K) -> Iterator[tuple[Windowed[K], V]]:
        """Iterate backwards over all sessions of a key."""
        return self._find(key, 0, FOREVER, reverse=True)

    def fetch_range(self, key_from: K | None, key_to: K | None) -> Iterator[tuple[Windowed[K], V]]:
        """Iterate over all sessions of ``key_from <= key <= key_to``; None means unbounded."""
        return self._find_range(key_from, key_to, 0, FOREVER, reverse=False)

    def reverse_fetch_range(self, key_from: K | None, key_to: K | None) -> Iterator[tuple[Windowed[K], V]]:
        """Iterate backwards over all sessions of ``key_from <= key <= key_to``."""
        return self._find_range(key_from, key_to, 0, FOREVER, reverse=True)

    @overload
    def find_sessions(
        self, key: K, earliest_end: int, latest_start: int
    ) -> Iterator[tuple[Windowed[K], V]]: ...
    @overload
    def find_sessions(self, earliest_end: int, latest_end: int, /) -> Iterator[tuple[Windowed[K], V]]: ...
    def find_sessions(
        self, key: Any, earliest_end: int, latest_start: int | None = None
    ) -> Iterator[tuple[Windowed[K], V]]:
        """Iterate over the sessions of a key with ``end >= earliest_end`` and ``start <= latest_start``.

        With two times and no key, iterate over the sessions of all keys with ``earliest_end <= end <= latest_end``.
        """
        if latest_start is None:
            checked_time(self.name, "the earliest end of sessions", key)
            return self._find_range(None, None, key, FOREVER, latest_end=earliest_end, reverse=False)
        return self._find(key, earliest_end, latest_start, reverse=False)

    def reverse_find_sessions(
        self, key: K, earliest_end: int, latest_start: int
    ) -> Iterator[tuple[Windowed[K], V]]:
        """Iterate backwards over the sessions of a key with ``end >= earliest_end`` and ``start <= latest_start``."""
        return self._find(key, earliest_end, latest_start, reverse=True)

    def find_sessions_range(
        self, key_from: K | None, key_to: K | None, earliest_end: int, latest_start: int
    ) -> Iterator[tuple[Windowed[K], V]]:
        """Iterate over the sessions of a range of keys with ``end >= earliest_end`` and ``start <= latest_start``."""
        return self._find_range(key_from, key_to, earliest_end, latest_start, reverse=False)

    def reverse_find_sessions_range(
        self, key_from: K | None, key_to: K | None, earliest_end: int, latest_start: int
    ) -> Iterator[tuple[Windowed[K], V]]:
        """Iterate backwards over the sessions of a range of keys; see :meth:`find_sessions_range`."""
        return self._find_range(key_from, key_to, earliest_end, latest_start, reverse=True)

    def all(self) -> Iterator[tuple[Windowed[K], V]]:
        """Iterate over all sessions that have not expired."""
        return self._find_range(None, None, 0, FOREVER, reverse=False)

    def reverse_all(self) -> Iterator[tuple[Windowed[K], V]]:
        """Iterate backwards over all sessions that have not expired."""
        return self._find_range(None, None, 0, FOREVER, reverse=True)

    def find(self, key: bytes, earliest_end: int, latest_start: int) -> Iterator[tuple[int, int, Any]]:
        """Iterate over start, end and entry of the sessions of a serialised key; see :meth:`find_sessions`."""
        first = max(earliest_end, self._slices.oldest)
        return self._layout.of_key(self._slices, key, first, latest_start, reverse=False)

    def read(self, key: bytes, start: int, end: int) -> Any:
        """Return the entry of a serialised key's session or None. Expired sessions that are still stored are included."""
        slice_ = self._slices.find(end)
        return None if slice_ is None else slice_.rows.get(self._layout.stored(key, start, end))

    def has_expired(self, end: int) -> bool:
        """Return whether the slice of the sessions with this end has expired. Until then, :meth:`read` returns them."""
        return self._slices.has_expired(end)

    def write(self, key: bytes, start: int, end: int, entry: Any) -> None:
        """Set the entry of a serialised key's session; None removes it. See :meth:`put`.

        Raises:
            SerdeError: If the value does not fit the store's value serde.
        """
        stored, kept = self._layout.stored(key, start, end), self._objects.values.overlay_form(entry)
        if kept is None:
            self._remove(stored, end)
        else:
            self._keep(stored, end, kept)

    @property
    def time(self) -> int:
        """The largest session end put or removed, ms since the epoch."""
        return self._slices.time

    def write_batch(self, changes: Iterable[tuple[bytes, int, int, Any]], time: int) -> None:
        """Set the entries (serialised key, start, end, entry) of sessions; None removes a session. Sessions that have expired are left out.

        Args:
            time: The store's time after the changes, ms since the epoch.
        """
        slices, layout, values = self._slices, self._layout, self._objects.values
        slices.observe(time)
        for key, start, end, entry in changes:
            slice_ = slices.to_write(end)
            if slice_ is not None:
                layout.keep(slice_.rows, layout.stored(key, start, end), values.overlay_form(entry))

    def _keep(self, stored: bytes, end: int, kept: Any) -> None:
        slices = self._slices
        slices.observe(end)
        slice_ = slices.to_write_readable(end) if self._strict else slices.to_write(end)
        if slice_ is None:
            self._task.drop("expired session")
        else:
            self._layout.keep(slice_.rows, stored, kept)

    def _remove(self, stored: bytes, end: int) -> None:
        if not self._strict:
            self._slices.observe(end)
        slice_ = self._slices.find(end)
        if slice_ is not None:
            self._layout.keep(slice_.rows, stored, None)

    def _stored(self, session: Windowed[K]) -> bytes:
        key, start, end = (None, 0, 0) if session is None else session
        key_bytes = self._objects.key_bytes(key)
        checked_time(self.name, "the start of a session", start)
        checked_time(self.name, "the end of a session", end)
        if start > end:
            raise StoreError(
                f"store {self.name!r}: a session must not end ({end}) before it starts ({start})"
            )
        return self._layout.stored(key_bytes, start, end)

    def _find(
        self, key: K, earliest_end: int, latest_start: int, *, reverse: bool
    ) -> Iterator[tuple[Windowed[K], V]]:
        serialised = self._objects.key_bytes(key)
        first = max(earliest_end, self._slices.oldest)
        if first > FOREVER:
            return iter(())
        entries = self._layout.of_key(self._slices, serialised, first, latest_start, reverse=reverse)
        same, value = self._objects.key(serialised), self._objects.value
        return ((Windowed(same, start, end), value(entry)) for start, end, entry in entries)

    def _find_range(
        self,
        key_from: K | None,
        key_to: K | None,
        earliest_end: int,
        latest_start: int,
        *,
        latest_end: int = FOREVER,
        reverse: bool,
    ) -> Iterator[tuple[Windowed[K], V]]:
        low = None if key_from is None else self._objects.key_bytes(key_from)
        high = None if key_to is None else self._objects.key_bytes(key_to)
        first, last = max(earliest_end, self._slices.oldest), min(latest_end, FOREVER)
        if first > last:
            return iter(())
        entries = self._layout.of_keys(
            self._slices, low, high, first=first, last=last, latest_start=latest_start, reverse=reverse
        )
        key, value = self._objects.key, self._objects.value
        return ((Windowed(key(stored), start, end), value(entry)) for stored, start, end, entry in entries)
