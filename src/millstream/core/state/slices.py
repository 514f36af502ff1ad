"""Slices: a store as a row of byte stores, each of which holds a range of time.

A *slice* holds the entries of a range of time in a byte store of its own (what Kafka Streams calls a segment of a store).
Entries expire by time, so a slice expires as a whole and is dropped as a whole: in the log by forgetting its segments, in
the local copy by dropping a database. Nothing is ever scanned to find what has expired, however large the store is.

*Time* of a store is the largest time put into it. It only grows, and so do expired slices: a slice has expired when its
last moment is so old that no read can see it (``end <= time - retention``). A put into an expired slice is refused.

Slices are written down by their bounds, in the task's snapshot, rather than computed from the retention: the retention may
be changed from one start of the application to the next, and entries must be found where they were put. New slices are
as long as the retention of today says, cut where they meet slices that are there. What lies before the *floor*, the end of
the last slice that was dropped, never comes back, even if the retention grows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from heapq import merge
from itertools import chain
from operator import itemgetter
from typing import Any

from millstream.core.ports import ByteStores, StoreChange, slice_name
from millstream.core.state.contract import Drained
from millstream.core.state.keys import FOREVER
from millstream.core.state.overlay import Overlay
from millstream.core.state.values import Values
from millstream.core.topology.stores import SlicedSpec


class Slice:
    """A range of time of a store, with the batch's own writes. Owned by its :class:`Slices`.

    Attributes:
        start: First ms it holds.
        end: First ms it does not hold.
        rows: Its entries.
    """

    __slots__ = ("_open", "_rows", "end", "start")

    def __init__(self, start: int, end: int, rows: Callable[[int], Overlay]) -> None:
        self.start = start
        self.end = end
        self._open = rows
        self._rows: Overlay | None = None

    @property
    def rows(self) -> Overlay:
        """The entries; the byte store is opened when they are first asked for."""
        if self._rows is None:
            self._rows = self._open(self.start)
        return self._rows

    def drain(self) -> list[StoreChange]:
        """Give the changes since the last call, and forget them."""
        return [] if self._rows is None else self._rows.drain()


class Slices:
    """The slices of one store in one task. Owned by the store.

    Args:
        spec: The store.
        values: How its entries become bytes.
        stores: Committed content of the task's byte stores.
        memory: What :meth:`memory` gave last time.
    """

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
        self._starts = [held.start for held in self._slices]

    @property
    def horizon(self) -> int:
        """The time up to which, in a store whose entries are as old as their retention, everything has expired."""
        return max(self.time - self._retention, self._floor)

    @property
    def oldest(self) -> int:
        """The first time that reads can see."""
        return max(self.time - self._retention + 1, self._floor)

    def gone_at(self, first: int) -> int:
        """Give the store's time at which the first slice that ends behind a time is dropped."""
        return next((held.end + self._retention for held in self._slices if held.end > first), FOREVER)

    def observe(self, time: int) -> None:
        """Let the store's time advance."""
        if time > self.time:
            self.time = time

    def at(self, time: int) -> Slice | None:
        """Give the slice that holds a time, None if there is none."""
        place = bisect_right(self._starts, time) - 1
        if place < 0 or self._slices[place].end <= time:
            return None
        return self._slices[place]

    def to_write(self, time: int) -> Slice | None:
        """Give the slice that holds a time, made if it is not there; None if it has expired."""
        held = self.at(time)
        if held is None:
            held = self._made(time)
        return None if held is None or self._has_expired(held.end) else held

    def to_write_readable(self, time: int) -> Slice | None:
        """Give the slice that holds a time, made if it is not there; None if reads could not see the time."""
        return None if time < self.oldest else self.to_write(time)

    def newest_first(self) -> list[Slice]:
        """Give all slices, the newest first."""
        return self._slices[::-1]

    def between(self, first: int, last: int) -> list[Slice]:
        """Give the slices with times from ``first`` to ``last``, both included, in the order of time."""
        return [held for held in self._slices if held.start <= last and held.end > first]

    def drain(self) -> Drained:
        """Give the changes since the last call and the slices that have expired, and forget both."""
        dropped = [held for held in self._slices if self._has_expired(held.end)]
        self._slices = self._slices[len(dropped) :]
        self._starts = self._starts[len(dropped) :]
        if dropped:
            self._floor = dropped[-1].end
        changes = {slice_name(self._name, held.start): held.drain() for held in self._slices}
        return Drained(
            {name: items for name, items in changes.items() if items},
            tuple(slice_name(self._name, held.start) for held in dropped),
        )

    def memory(self) -> dict[str, Any]:
        """Give what must survive besides the entries."""
        return {
            "time": self.time,
            "floor": self._floor,
            "slices": [[held.start, held.end] for held in self._slices],
        }

    def _has_expired(self, end: int) -> bool:
        return end <= self.time - self._retention

    def _made(self, time: int) -> Slice | None:
        start = time - time % self._length
        end = start + self._length
        if time < self._floor or self._has_expired(end):
            return None
        place = bisect_right(self._starts, time)
        before = self._slices[place - 1].end if place else self._floor
        behind = self._slices[place].start if place < len(self._slices) else end
        made = Slice(max(start, before), min(end, behind), self._open)
        self._slices.insert(place, made)
        self._starts.insert(place, made.start)
        return made


def scan(
    slices: list[Slice], low: bytes | None, high: bytes | None, *, reverse: bool
) -> Iterator[tuple[bytes, Any]]:
    """Iterate over the entries of several slices in the order of their keys, as they are now."""
    parts = [held.rows.scan(low, high, reverse=reverse) for held in slices]
    return parts[0] if len(parts) == 1 else merge(*parts, key=itemgetter(0), reverse=reverse)


def scan_key(slices: list[Slice], low: bytes, high: bytes, *, reverse: bool) -> Iterator[tuple[bytes, Any]]:
    """Iterate over the entries of one key, which lie in the slices in the order of time: no merging is needed."""
    parts = [held.rows.scan(low, high, reverse=reverse) for held in slices]
    return chain.from_iterable(reversed(parts) if reverse else parts)
