"""Caches: hold back the updates of a table, so that only the newest of several updates of a row is forwarded.

Without a cache, a table forwards every update. With a cache, the updates of a row between two *flushes* are *merged* into one change:
from the last forwarded value to the newest value, with the timestamp and headers of the newest update. A row that was inserted and
deleted in between is not forwarded at all. A task flushes at the end of each step, as Kafka Streams flushes at a commit.

The store is written immediately, so readers of the store see the newest value. The cache holds only updates that have not been forwarded,
and holds objects that can be changed as bytes: the functions that run before a flush may change the object that was put.
An operator that derives changes of one table from rows of another table must see the other table as it was forwarded. Otherwise, it would
retract old values that it never emitted; see ``millstream.core.engine.operators.lookups``.

Rules of order:

* A row is forwarded in the position of its *newest* update. Timestamps therefore leave the cache in the order of the updates, and no
  record downstream is late that would not be late without a cache.
* Upstream caches are flushed before downstream caches, which merge the changes that they receive. Caches of the same *height*
  (``millstream.core.topology.analysis.threads_and_caches``) are flushed together, in the order of their updates.
* Each cache has an equal share of the size limit. A cache that exceeds its share forwards the least recently updated rows, until it
  holds three quarters of its share. It forwards only its own rows: no function downstream of it is running, but another cache may be
  upstream of a running function.

While a row is forwarded, the record of its newest update is the current record. A processor downstream sees the offset of that record,
and the error policy applies to that record.

Source: KIP-63; Kafka Streams' ``NamedCache`` and ``CachingKeyValueStore``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from millstream.core.engine.runtime import Piece, Runtime
from millstream.core.model.record import Headers, Times
from millstream.core.model.windowed import Windowed
from millstream.core.state.values import Values, copier
from millstream.core.topology.analysis.threads_and_caches import cached_tables, heights_of
from millstream.core.topology.nodes import Node
from millstream.core.topology.stores import SessionSpec, StoreSpec, WindowSpec

if TYPE_CHECKING:
    from millstream.core.engine.columns import Column, Columns, ColumnsCall
    from millstream.core.topology.plan import SubTopology

DEFAULT_CACHE_BYTES: Final = 10 << 20
"""Default size limit of the caches of a task."""

_OVERHEAD: Final = 200
"""Memory of a waiting row besides its key and its value, bytes."""
_SAMPLED: Final = 64
"""One row in this many is serialised to estimate the size of rows."""

_RowKey = bytes | tuple[bytes, int, int]
_Entry = tuple[Any, ...]
"""A waiting row; ``Cache.forward`` unpacks it. The indices below are positions in the tuple."""
_OLD: Final = 4
_SIZE: Final = 11
_CACHE: Final = 12
_number = itemgetter(0)


class Caches:
    """The caches of a task. Owned by the task.

    Args:
        most_bytes: Limit of their total size; 0 for no caches.
    """

    def __init__(self, sub: SubTopology, runtime: Runtime, most_bytes: int) -> None:
        cached = cached_tables(sub) if most_bytes else ()
        heights = heights_of(sub, {node.name for node in cached}) if cached else {}
        self._runtime = runtime
        self._order = _Order()
        self._peak = 0
        self._deferred: dict[Callable[[Times], None], Times] = {}
        self._of = {
            node.name: Cache(node.store, self._order, runtime, most_bytes // len(cached), self._note_size)
            for node in cached
        }
        levels: dict[int, list[Cache]] = {}
        for name, cache in self._of.items():
            levels.setdefault(heights[name], []).append(cache)
        self._levels = [levels[height] for height in sorted(levels, reverse=True)]

    def of(self, node: Node) -> Cache | None:
        return self._of.get(node.name)

    @property
    def nodes(self) -> Collection[str]:
        """The names of the nodes that have a cache."""
        return self._of.keys()

    def deferred(self, clock: Callable[[Times], None]) -> Callable[[Times], None]:
        """Return the clock of a node downstream of a cache. It advances after a flush, because the rows that wait came before."""

        def defer(times: Times) -> None:
            earlier = self._deferred.get(clock, times)
            self._deferred[clock] = Times(*map(max, earlier, times))

        return defer

    def flush(self) -> None:
        self._forward()
        while self._deferred:
            deferred, self._deferred = self._deferred, {}
            for clock, times in deferred.items():
                clock(times)
            self._forward()

    def _forward(self) -> None:
        if any(cache.waits for cache in self._of.values()):
            self._note_size()
            for level in self._levels:
                self._flush_level([cache for cache in level if cache.waits])

    def take_counts(self) -> tuple[int, int]:
        """Return the number of merged updates and the peak size in bytes, and reset both."""
        merged, peak = sum(cache.take_merged() for cache in self._of.values()), self._peak
        self._peak = 0
        return merged, peak

    def _flush_level(self, caches: list[Cache]) -> None:
        if len(caches) == 1 and caches[0].forward_columns():
            return
        entries = [entry for cache in caches for entry in cache.entries()]
        entries.sort(key=_number)
        with _forwarding(self._runtime, self._order):
            for entry in entries:
                entry[_CACHE].forward(entry)

    def _note_size(self) -> None:
        self._peak = max(self._peak, sum(cache.size for cache in self._of.values()))


class _Order:
    """Numbers the updates of a task.

    Attributes:
        forwarded: The number of the update that is being forwarded; updates that it causes share this number. None outside forwarding.
    """

    def __init__(self) -> None:
        self.last = 0
        self.forwarded: int | None = None

    def next_number(self) -> int:
        if self.forwarded is not None:
            return self.forwarded
        self.last += 1
        return self.last


class Cache:
    """The updates of one table that wait to be forwarded. Owned by the task.

    Args:
        at_most: Called when the cache is full, before it forwards rows early, to record the peak size.

    Attributes:
        child: Receives forwarded changes: key, new value, old value, timestamp, headers.
        columns: Receives a forwarded batch in columns; None if the nodes downstream do not process columns.
        size: Approximate size of the waiting rows, bytes.
        put: Adds an update: key, new value, old value, timestamp, headers.
    """

    def __init__(
        self,
        store: StoreSpec,
        order: _Order,
        runtime: Runtime,
        most_bytes: int,
        at_most: Callable[[], None],
    ) -> None:
        self.child: Callable[..., None]
        self.columns: Callable[[Columns], None] | None = None
        self.size = 0
        self._order = order
        self._runtime = runtime
        self._most = most_bytes
        self._at_most = at_most
        self._row_key, self._row_keys = _keying(store)
        self._value_bytes = store.value.serialize
        self._values = Values(store.name, store.value)
        self._immutable = store.value.immutable
        self._copy = copier(store.value)
        self._row_size = _OVERHEAD
        self._rows: dict[_RowKey, _Entry] = {}
        self._block: tuple[Columns, Sequence[Piece], int] | None = None
        self._merged = 0
        self.put = self._putting()

    @property
    def waits(self) -> bool:
        return bool(self._rows) or self._block is not None

    def forwarded(self, key: Any) -> tuple[Any] | None:
        """Return the last forwarded value of a row, in a tuple; None if no update of the row waits."""
        entry = self._rows.get(self._row_key(key))
        return None if entry is None else (None if entry[_OLD] is None else self._copy(entry[_OLD]),)

    def put_columns(self, columns: Columns) -> None:
        """Add a batch of updates without deletions, of a table whose old values are not needed."""
        count = len(columns.timestamps)
        newest = dict(zip(self._row_keys(columns.keys), range(count)))
        if len(newest) < count:
            self._merged += count - len(newest)
            columns = columns.only(_marked(newest.values(), count))
        if self.waits:
            self._release_block(self._put_each)
            self._put_each(columns)
        elif count:
            self._hold(columns)

    def entries(self) -> Iterable[_Entry]:
        self._release_block(self._put_each)
        return self._rows.values()

    def forward(self, entry: _Entry) -> None:
        """Forward a waiting row. The record of its newest update becomes the current record."""
        number, row_key, key, new, old, timestamp, headers, partition, chunk, index, override, size, _ = entry
        del self._rows[row_key]
        self.size -= size
        if new is not None and not self._immutable:
            new = self._values.decode(new)
        if new is None and old is None:
            self._merged += 1
            return
        runtime = self._runtime
        self._order.forwarded = number
        runtime.partition, runtime.chunk, runtime.index, runtime.override = partition, chunk, index, override
        self.child(key, new, old, timestamp, headers)

    def forward_columns(self) -> bool:
        """Forward a waiting batch of columns. Return False if there is none."""
        if self._block is None or self.columns is None:
            return False
        self._release_block(self.columns)
        return True

    def _release_block(self, then: ColumnsCall) -> None:
        if self._block is not None:
            (columns, pieces, number), self._block, self.size = self._block, None, 0
            with _forwarding(self._runtime, self._order):
                self._runtime.take(pieces)
                self._order.forwarded = number
                then(columns)

    def take_merged(self) -> int:
        merged, self._merged = self._merged, 0
        return merged

    def _putting(self) -> Callable[..., None]:
        row_key_of, rows, known = self._row_key, self._rows, self._rows.get
        immutable, encode = self._immutable, self._values.encode
        number_of, runtime, most = self._order.next_number, self._runtime, self._most

        def put(key: Any, new: Any, old: Any, timestamp: int, headers: Headers) -> None:
            if self._block is not None:
                self._release_block(self._put_each)
            row_key = row_key_of(key)
            number, before = number_of(), known(row_key)
            if before is None:
                if not len(rows) % _SAMPLED:
                    self._measure(row_key, new)
                size = self._row_size
                self.size += size
            else:
                old, size = before[_OLD], before[_SIZE]
                # An update from an upstream cache may be older than one that did not pass through it.
                number = max(number, before[0])
                self._merged += 1
            rows[row_key] = (
                number,
                row_key,
                key,
                new if immutable or new is None else encode(new),
                old,
                timestamp,
                headers,
                runtime.partition,
                runtime.chunk,
                runtime.index,
                runtime.override,
                size,
                self,
            )
            if self.size > most:
                self._forward_early()

        return put

    def _put_each(self, columns: Columns) -> None:
        keys, values = columns.keys.objects(), columns.values.objects()
        headers = columns.headers or [()] * len(keys)
        for position, key, value, timestamp, header in zip(
            columns.positions, keys, values, columns.timestamps, headers
        ):
            self._runtime.locate(position)
            self.put(key, value, None, timestamp, header)

    def _hold(self, columns: Columns) -> None:
        """Hold a batch of columns. If it is too large, forward its first rows early."""
        assert self.columns is not None
        values, early = columns.values.objects(), None
        if not self._immutable:  # as a row that waits by itself is forwarded
            values = list(map(self._values.checked, values))
            columns = columns.with_values(values)
        sampled = values[::_SAMPLED]
        mean = _OVERHEAD + sum(map(self._size_of, sampled)) // len(sampled)
        if len(values) * mean > self._most:
            self.size = len(values) * mean
            self._at_most()
            count = len(values) - self._most * 3 // 4 // mean
            early, columns = columns.part(0, count), columns.part(count, len(values))
        self.size = len(columns.timestamps) * mean
        self._block = columns, self._runtime.pieces, self._order.next_number()
        if early is not None:
            self.columns(early)

    def _forward_early(self) -> None:
        self._at_most()
        least = self._most * 3 // 4
        with _forwarding(self._runtime, self._order):
            for entry in sorted(self._rows.values(), key=_number):
                self.forward(entry)
                if self.size <= least:
                    break

    def _measure(self, row_key: _RowKey, value: Any) -> None:
        key = row_key if isinstance(row_key, bytes) else row_key[0]
        self._row_size = _OVERHEAD + len(key) + self._size_of(value)

    def _size_of(self, value: Any) -> int:
        if value is not None:
            with suppress(Exception):  # a value that does not fit the serde fails where it is used
                return len(self._value_bytes(value))
        return 0


@contextmanager
def _forwarding(runtime: Runtime, order: _Order) -> Iterator[None]:
    """Restore the current record and the current update at the end of the block."""
    number = order.forwarded
    try:
        with runtime.elsewhere():
            yield
    finally:
        order.forwarded = number


def _keying(
    store: StoreSpec,
) -> tuple[Callable[[Any], _RowKey], Callable[[Column], Iterable[_RowKey | None]]]:
    """Return two functions that compute the identity of rows: from a key, and from a column of keys."""
    serde, key_bytes = store.key, store.key.serialize
    if not isinstance(store, (WindowSpec, SessionSpec)):
        return key_bytes, lambda keys: keys.serialised(serde)

    def row_key(key: Windowed[Any]) -> _RowKey:
        return key_bytes(key[0]), key[1], key[2]

    return row_key, lambda keys: map(row_key, keys.objects())


def _marked(indices: Iterable[int], count: int) -> bytearray:
    marks = bytearray(count)
    for index in indices:
        marks[index] = 1
    return marks
