"""Window store: values by key and start of a window.

Each entry is in the slice that contains the start of its window, in one of two orders (``millstream.core.state.layouts``).

The store's time is the largest window start put. Windows that start at or before ``time - retention`` cannot be read, exact to the
millisecond. A put is dropped, and counted as a dropped record, once its slice has expired. The window store of Kafka Streams over
RocksDB behaves in the same way (see docs/decisions/0014-windowed-stores-expire-in-time-slices.md). A *strict* store drops every put
of a window that could not be read, like the in-memory store of Kafka Streams.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Generic, overload

from millstream.core.model.record import K, V
from millstream.core.model.windowed import Windowed, window_end
from millstream.core.ports import ByteStores
from millstream.core.state.contract import Memory, Surroundings
from millstream.core.state.keys import FOREVER, checked_time
from millstream.core.state.keyvalue import Overlay
from millstream.core.state.layouts import ByKey, ByTime, WindowLayout
from millstream.core.state.objects import Objects
from millstream.core.state.slices import SlicedStore, Slices
from millstream.core.topology.stores import WindowSpec

Share = tuple[Callable[[bytes], bytes], Overlay]
"""Access to the windows with one start: a function that maps serialised keys to entry keys, and the rows."""

_NUMBER: Final = struct.Struct(">I")
_MAX_NUMBER: Final = (1 << 31) - 1


class WindowStore(SlicedStore, Generic[K, V]):
    """A window store of one task. Owned by the task; not thread-safe.

    Times are int milliseconds since the epoch; time ranges include both ends. Iterators include the writes of the micro-batch up to the
    moment they are created. Iterators over one key are ordered by time. Iterators over several keys are ordered by serialised key, then by
    time; with ``order="time"``, by time, then by serialised key.

    Source: ``org.apache.kafka.streams.state.WindowStore``; for timestamped stores ``TimestampedWindowStore``.
    """

    __slots__ = (
        "_count",
        "_duplicates",
        "_expired",
        "_layout",
        "_objects",
        "_size",
        "_task",
        "_to_write",
        "_windows",
        "name",
    )

    def __init__(
        self, spec: WindowSpec, stores: ByteStores, task: Surroundings, memory: Mapping[str, Any]
    ) -> None:
        self.name = spec.name
        self._objects: Objects[K, V] = Objects(spec)
        self._slices = Slices(spec, self._objects.values, stores, memory)
        self._to_write = self._slices.to_write_readable if spec.strict else self._slices.to_write
        self._task = task
        self._size = spec.size_ms
        self._windows = spec._operator.windows
        self._duplicates = spec.retain_duplicates
        self._expired = spec._operator.expired
        self._count: int = memory.get("count", 0)
        self._layout: WindowLayout = ByTime() if spec.by_time else ByKey(duplicates=spec.retain_duplicates)

    def put(self, key: K, value: V | None, window_start: int) -> None:
        """Set the value of a key in a window; None deletes it, or does nothing if duplicates are retained.

        A put into an expired slice is dropped and counted as a dropped record. A strict store also drops a put of a window that could not
        be read.

        Raises:
            StoreError: If the key is None, or the start is not a time.
            SerdeError: If key or value do not fit the store's serdes.
        """
        checked_time(self.name, "the start of a window", window_start)
        stored = self._layout.stored(self._objects.key_bytes(key), window_start)
        kept = self._objects.overlay_form(value)
        if self._duplicates:
            if kept is None:
                return
            self._count = (self._count + 1) & _MAX_NUMBER
            stored += _NUMBER.pack(self._count)
        self._slices.observe(window_start)
        slice_ = self._to_write(window_start)
        if slice_ is None:
            self._task.drop(self._expired)
        else:
            slice_.rows.keep(stored, kept)

    @overload
    def fetch(self, key: K, time_from: int) -> V | None: ...
    @overload
    def fetch(self, key: K, time_from: int, time_to: int) -> Iterator[tuple[int, V]]: ...
    def fetch(self, key: K, time_from: int, time_to: int | None = None) -> Any:
        """Return the value of a key in the window that starts at a time; with two times, iterate over the windows in the range.

        Args:
            time_to: The last start; None for the window at ``time_from``.

        Returns:
            The value or None (the last value put, if duplicates are retained). With two times, pairs of start and value, in order of
            time.
        """
        if time_to is not None:
            return self._fetch(key, time_from, time_to, reverse=False)
        if self._duplicates:
            entry = next(self._fetch(key, time_from, time_from, reverse=True), None)
            return None if entry is None else entry[1]
        return self._fetch_one(key, time_from)

    def reverse_fetch(self, key: K, time_from: int, time_to: int) -> Iterator[tuple[int, V]]:
        """Iterate backwards over a key's windows that start between two times."""
        return self._fetch(key, time_from, time_to, reverse=True)

    def fetch_range(
        self, key_from: K | None, key_to: K | None, time_from: int, time_to: int
    ) -> Iterator[tuple[Windowed[K], V]]:
        """Iterate over the windows of ``key_from <= key <= key_to`` that start between two times; a key of None means unbounded."""
        return self._fetch_range(key_from, key_to, time_from, time_to, reverse=False)

    def reverse_fetch_range(
        self, key_from: K | None, key_to: K | None, time_from: int, time_to: int
    ) -> Iterator[tuple[Windowed[K], V]]:
        """Iterate backwards over the windows of ``key_from <= key <= key_to`` that start between two times."""
        return self._fetch_range(key_from, key_to, time_from, time_to, reverse=True)

    def fetch_all(self, time_from: int, time_to: int) -> Iterator[tuple[Windowed[K], V]]:
        """Iterate over all windows that start between two times."""
        return self._fetch_range(None, None, time_from, time_to, reverse=False)

    def reverse_fetch_all(self, time_from: int, time_to: int) -> Iterator[tuple[Windowed[K], V]]:
        """Iterate backwards over all windows that start between two times."""
        return self._fetch_range(None, None, time_from, time_to, reverse=True)

    def all(self) -> Iterator[tuple[Windowed[K], V]]:
        """Iterate over all windows that have not expired."""
        return self._fetch_range(None, None, 0, FOREVER, reverse=False)

    def reverse_all(self) -> Iterator[tuple[Windowed[K], V]]:
        """Iterate backwards over all windows that have not expired."""
        return self._fetch_range(None, None, 0, FOREVER, reverse=True)

    def read(self, key: bytes, start: int) -> Any:
        """Return the entry of a serialised key's window or None. Expired windows that are still stored are included."""
        slice_ = self._slices.find(start)
        return None if slice_ is None else slice_.rows.get(self._layout.stored(key, start))

    def stored_windows(self, time_from: int, time_to: int) -> Iterator[tuple[Windowed[K], V]]:
        """Iterate over all windows that start between two times, including expired ones that are still stored."""
        slices = self._slices.between(time_from, time_to)
        return self._with_windows(
            self._layout.of_keys(slices, None, None, max(time_from, 0), time_to, reverse=False)
        )

    def open_window(self, start: int) -> Share | None:
        """Return access to the windows with a start, for an operator that reads and writes serialised keys.

        Like a put, this advances the store's time. The result is valid until the store's time exceeds the start by the retention; the
        operator must check this.

        Returns:
            The access, or None if the slice has expired; this counts a dropped record.
        """
        self.observe(start)
        rows = self.rows_to_write(start)
        if rows is None:
            self._task.drop(self._expired)
            return None
        return self._layout.in_window(start), rows

    def rows_to_write(self, start: int) -> Overlay | None:
        """Return the rows of the windows with a start, or None if their slice has expired. Does not advance the store's time."""
        slice_ = self._to_write(start)
        return None if slice_ is None else slice_.rows

    def many_stored(self, keys: Sequence[bytes], start: int) -> list[bytes]:
        """Return the entry keys for many serialised keys of the windows with a start."""
        return self._layout.many_stored(keys, start)

    def memory(self) -> Memory:
        return {**super().memory(), **({"count": self._count} if self._duplicates else {})}

    def _clipped(self, time_from: int, time_to: int) -> tuple[int, int]:
        return max(time_from, self._slices.oldest), min(time_to, FOREVER)

    def _fetch_one(self, key: K, start: int) -> V | None:
        serialised = self._objects.key_bytes(key)
        slice_ = self._slices.find(start) if start >= self._slices.oldest else None
        if slice_ is None:
            return None
        result: V | None = self._objects.value(slice_.rows.get(self._layout.stored(serialised, start)))
        return result

    def _fetch(self, key: K, time_from: int, time_to: int, *, reverse: bool) -> Iterator[tuple[int, V]]:
        serialised, value = self._objects.key_bytes(key), self._objects.value
        first, last = self._clipped(time_from, time_to)
        if first > last:
            return iter(())
        slices = self._slices.between(first, last)
        entries = self._layout.of_key(slices, serialised, first, last, reverse=reverse)
        return ((start, value(entry)) for start, entry in entries)

    def _fetch_range(
        self, key_from: K | None, key_to: K | None, time_from: int, time_to: int, *, reverse: bool
    ) -> Iterator[tuple[Windowed[K], V]]:
        low = None if key_from is None else self._objects.key_bytes(key_from)
        high = None if key_to is None else self._objects.key_bytes(key_to)
        first, last = self._clipped(time_from, time_to)
        if first > last:
            return iter(())
        slices = self._slices.between(first, last)
        entries = self._layout.of_keys(slices, low, high, first, last, reverse=reverse)
        return self._with_windows(entries)

    def _with_windows(self, entries: Iterator[tuple[bytes, int, Any]]) -> Iterator[tuple[Windowed[K], V]]:
        key_of, value, size = self._objects.key, self._objects.value, self._size
        end_of = (lambda start: window_end(start, size)) if self._windows is None else self._windows.end_of
        for key, start, entry in entries:
            yield Windowed(key_of(key), start, end_of(start)), value(entry)
