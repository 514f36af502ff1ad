"""Layouts: in which order a window store keeps its entries.

*By key*, an entry lies under

    closed key | start (8) [| number (4), where duplicates are kept]

so that the windows of a key lie together: what sliding windows, joins and queries by key want.

*By time*, it lies under

    start (8) | key

so that all windows that close at a time lie together, whatever their keys: what results at the close of windows want. A
read of one key over a range of time looks at all keys of that time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import add
from typing import Any, Protocol

from millstream.core.state.keys import after, closed, pack_time, split, time_at
from millstream.core.state.slices import Slice, scan, scan_key


class Layout(Protocol):
    """Gives entries their place in the slices. Stateless; keys are serialised keys."""

    def stored(self, key: bytes, start: int) -> bytes:
        """Give where the entry of a key in a window lies."""

    def in_window(self, start: int) -> Callable[[bytes], bytes]:
        """Give the function that does the same for the keys of one window."""

    def places(self, keys: Sequence[bytes], starts: Sequence[int]) -> list[bytes]:
        """Give where the entries of many keys lie, each in a window of its own."""

    def start_of(self, place: bytes) -> int:
        """Give the start of the window whose entry lies in a place."""

    def of_key(
        self, slices: list[Slice], key: bytes, first: int, last: int, *, reverse: bool
    ) -> Iterator[tuple[int, Any]]:
        """Iterate over start and entry of a key's windows that start from ``first`` to ``last``, in the order of time."""

    def of_keys(
        self,
        slices: list[Slice],
        low: bytes | None,
        high: bytes | None,
        first: int,
        last: int,
        *,
        reverse: bool,
    ) -> Iterator[tuple[bytes, int, Any]]:
        """Iterate over key, start and entry with ``low <= key <= high``, in the order of the layout; None leaves a side open."""


class ByKey:
    """The order of keys, then of time.

    Args:
        duplicates: Whether entries end with a number.
    """

    __slots__ = ("_width",)

    def __init__(self, *, duplicates: bool) -> None:
        self._width = 12 if duplicates else 8

    def stored(self, key: bytes, start: int) -> bytes:
        """Give where the entry of a key in a window lies, up to the number."""
        return closed(key) + pack_time(start)

    def in_window(self, start: int) -> Callable[[bytes], bytes]:
        """Give the function that finds the places of the keys of one window."""
        end = b"\x00" + pack_time(start)

        def stored(key: bytes) -> bytes:
            return (key.replace(b"\x00", b"\x00\xff") if b"\x00" in key else key) + end

        return stored

    def places(self, keys: Sequence[bytes], starts: Sequence[int]) -> list[bytes]:
        """Give where the entries of many keys lie."""
        ends = {start: b"\x00" + pack_time(start) for start in set(starts)}
        if b"\x00" in b"\x01".join(keys):
            keys = [key.replace(b"\x00", b"\x00\xff") for key in keys]
        return list(map(add, keys, map(ends.__getitem__, starts)))

    def start_of(self, place: bytes) -> int:
        """Give the start of the window whose entry lies in a place."""
        return time_at(place, -self._width)

    def of_key(
        self, slices: list[Slice], key: bytes, first: int, last: int, *, reverse: bool
    ) -> Iterator[tuple[int, Any]]:
        """Iterate over a key's own range of entries."""
        low, high, place = self.stored(key, first), self.stored(key, last + 1), len(closed(key))
        found = scan_key(slices, low, high, reverse=reverse)
        return ((time_at(stored, place), entry) for stored, entry in found)

    def of_keys(
        self,
        slices: list[Slice],
        low: bytes | None,
        high: bytes | None,
        first: int,
        last: int,
        *,
        reverse: bool,
    ) -> Iterator[tuple[bytes, int, Any]]:
        """Iterate over the keys' ranges, leaving out other times."""
        begin = None if low is None else closed(low)
        end = None if high is None else after(high)
        found = scan(slices, begin, end, reverse=reverse)
        return self._between(found, first, last)

    def _between(
        self, found: Iterator[tuple[bytes, Any]], first: int, last: int
    ) -> Iterator[tuple[bytes, int, Any]]:
        for stored, entry in found:
            start = time_at(stored, -self._width)
            if first <= start <= last:
                yield split(stored, self._width)[0], start, entry


class ByTime:
    """The order of time, then of keys."""

    __slots__ = ()

    def stored(self, key: bytes, start: int) -> bytes:
        """Give where the entry of a key in a window lies."""
        return pack_time(start) + key

    def in_window(self, start: int) -> Callable[[bytes], bytes]:
        """Give the function that finds the places of the keys of one window."""
        return pack_time(start).__add__

    def places(self, keys: Sequence[bytes], starts: Sequence[int]) -> list[bytes]:
        """Give where the entries of many keys lie."""
        packed = {start: pack_time(start) for start in set(starts)}
        return list(map(add, map(packed.__getitem__, starts), keys))

    def start_of(self, place: bytes) -> int:
        """Give the start of the window whose entry lies in a place."""
        return time_at(place, 0)

    def of_key(
        self, slices: list[Slice], key: bytes, first: int, last: int, *, reverse: bool
    ) -> Iterator[tuple[int, Any]]:
        """Iterate over all keys of these times, leaving out others."""
        found = self.of_keys(slices, key, key, first, last, reverse=reverse)
        return ((start, entry) for _, start, entry in found)

    def of_keys(
        self,
        slices: list[Slice],
        low: bytes | None,
        high: bytes | None,
        first: int,
        last: int,
        *,
        reverse: bool,
    ) -> Iterator[tuple[bytes, int, Any]]:
        """Iterate over all keys of these times, leaving out others."""
        found = scan_key(slices, pack_time(first), pack_time(last + 1), reverse=reverse)
        return self._between(found, low, high)

    def _between(
        self, found: Iterator[tuple[bytes, Any]], low: bytes | None, high: bytes | None
    ) -> Iterator[tuple[bytes, int, Any]]:
        for stored, entry in found:
            key = stored[8:]
            if (low is None or low <= key) and (high is None or key <= high):
                yield key, time_at(stored, 0), entry
