"""Slices: a store as a series of byte stores, one per range of time.

A *slice* contains the entries of a time range in a separate byte store (Kafka Streams calls it a segment of a store). Entries expire
by time, so a slice expires and is dropped as a whole: in the log by removing its segments, in the local copy by dropping a database.
No store ever searches for expired entries, however large it is.

The *time* of a store is the largest time put into it; it never decreases. A slice has expired when even its end is too old to be
read (``end <= time - retention``). A put into an expired slice is dropped.

The bounds of slices are kept in the task's snapshot, not computed from the retention, because the retention may change between two
starts of the application and entries must be found in the slice into which they were put. New slices have the length of the current
retention, shortened where they meet existing slices. Times before the *floor*, the end of the last dropped slice, never become
writable again, even if the retention grows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from heapq import merge
from itertools import chain
from operator import itemgetter
from typing import Any

from millstream.core.ports import ByteStores, StoreChange, slice_name
from millstream.core.state.contract import Drained, Memory
from millstream.core.state.keys import FOREVER
from millstream.core.state.keyvalue import Overlay
from millstream.core.state.values import Values
from millstream.core.topology.stores import SlicedSpec


class Slice:
    """A time range of a store, including the writes of the micro-batch. Owned by its :class:`Slices`.

    Attributes:
        start: First ms of the range, inclusive.
        end: End of the range in ms, exclusive.
    """

    __slots__ = ("_open", "_rows", "end", "start")

    def __init__(self, start: int, end: int, rows: Callable[[int], Overlay]) -> None:
        self.start = start
        self.end = end
        self._open = rows
        self._rows: Overlay | None = None

    @property
    def rows(self) -> Overlay:
        """The entries; the byte store is opened on first use."""
        if self._rows is None:
            self._rows = self._open(self.start)
        return self._rows

    def drain(self) -> list[StoreChange]:
        return [] if self._rows is None else self._rows.drain()


class Slices:
    """The slices of one store in one task. Owned by the store."""

    __slots__ = ("_floor", "_length", "_name", "_open", "_retention", "_slices", "_starts", "time")

    def __init__(
        self, spec: SlicedSpec, values: Values, stores: ByteStores, memory: Mapping[str, Any]
    ) -> None:
        self._name = spec.name
        self._retention = spec.retention_ms
        self._length = spec.slice_ms
        self._open = lambda start: Overlay(values, stores.open(slice_name(spec.name, start)))
        self.time: int = memory.get("time", -1)
        self._floor: int = memory.get("floor", 0)
        self._slices = [Slice(start, end, self._open) for start, end in memory.get("slices", ())]
        self._starts = [each.start for each in self._slices]

    @property
    def horizon(self) -> int:
        """The time up to which all entries have expired, for a store that keeps entries for exactly the retention."""
        return max(self.time - self._retention, self._floor)

    @property
    def oldest(self) -> int:
        """The first readable time."""
        return max(self.time - self._retention + 1, self._floor)

    def gone_at(self, first: int) -> int:
        """Return the store time at which the first slice with an end after the given time is dropped."""
        return next((each.end + self._retention for each in self._slices if each.end > first), FOREVER)

    def observe(self, time: int) -> None:
        if time > self.time:
            self.time = time

    def find(self, time: int) -> Slice | None:
        index = bisect_right(self._starts, time) - 1
        if index < 0 or self._slices[index].end <= time:
            return None
        return self._slices[index]

    def has_expired(self, time: int) -> bool:
        """Return whether the slice for a time has expired; True if there is none."""
        slice_ = self.find(time)
        return slice_ is None or self._has_expired(slice_.end)

    def to_write(self, time: int) -> Slice | None:
        """Return the slice for a time, creating it if necessary; None if it has expired."""
        slice_ = self.find(time) or self._create_slice(time)
        return None if slice_ is None or self._has_expired(slice_.end) else slice_

    def to_write_readable(self, time: int) -> Slice | None:
        """Return the slice for a time, creating it if necessary; None if the time is no longer readable."""
        return None if time < self.oldest else self.to_write(time)

    def newest_first(self) -> list[Slice]:
        return self._slices[::-1]

    def between(self, first: int, last: int) -> list[Slice]:
        """Return the slices that contain times from ``first`` to ``last``, both inclusive, in order of time."""
        return [each for each in self._slices if each.start <= last and each.end > first]

    def drain(self) -> Drained:
        dropped = [each for each in self._slices if self._has_expired(each.end)]
        self._slices = self._slices[len(dropped) :]
        self._starts = self._starts[len(dropped) :]
        if dropped:
            self._floor = dropped[-1].end
        changes = {slice_name(self._name, each.start): each.drain() for each in self._slices}
        return Drained(
            {name: items for name, items in changes.items() if items},
            tuple(slice_name(self._name, each.start) for each in dropped),
        )

    def memory(self) -> Memory:
        return {
            "time": self.time,
            "floor": self._floor,
            "slices": [[each.start, each.end] for each in self._slices],
        }

    def _has_expired(self, end: int) -> bool:
        return end <= self.time - self._retention

    def _create_slice(self, time: int) -> Slice | None:
        start = time - time % self._length
        end = start + self._length
        if time < self._floor or self._has_expired(end):
            return None
        index = bisect_right(self._starts, time)
        previous_end = self._slices[index - 1].end if index else self._floor
        next_start = self._slices[index].start if index < len(self._slices) else end
        slice_ = Slice(max(start, previous_end), min(end, next_start), self._open)
        self._slices.insert(index, slice_)
        self._starts.insert(index, slice_.start)
        return slice_


class SlicedStore:
    """What stores with slices share. Owned by the task; not thread-safe."""

    __slots__ = ("_slices",)

    _slices: Slices

    @property
    def oldest(self) -> int:
        """The first readable time, ms since the epoch: the start of a window, or the end of a session."""
        return self._slices.oldest

    def gone_at(self, time: int) -> int:
        """Return the store time at which entries with this time or a later one begin to be dropped."""
        return self._slices.gone_at(time)

    def observe(self, time: int) -> None:
        """Advance the store's time to that of an entry that was written, also by another key range."""
        self._slices.observe(time)

    def drain(self) -> Drained:
        return self._slices.drain()

    def memory(self) -> Memory:
        return self._slices.memory()


def scan(
    slices: list[Slice], low: bytes | None, high: bytes | None, *, reverse: bool
) -> Iterator[tuple[bytes, Any]]:
    """Iterate over a snapshot of the entries of several slices, in order of key."""
    parts = [each.rows.scan(low, high, reverse=reverse) for each in slices]
    return parts[0] if len(parts) == 1 else merge(*parts, key=itemgetter(0), reverse=reverse)


def scan_key(slices: list[Slice], low: bytes, high: bytes, *, reverse: bool) -> Iterator[tuple[bytes, Any]]:
    """Iterate over the entries of one key range. The slices must be in order of time, so no merge is needed."""
    parts = [each.rows.scan(low, high, reverse=reverse) for each in slices]
    return chain.from_iterable(reversed(parts) if reverse else parts)
