"""Layouts: the order of the entries in a window store.

*By key*, the key of an entry is

    closed key | start (8) [| number (4), if duplicates are retained]

The windows of a key are adjacent, which sliding windows, joins and queries by key need.

*By time*, it is

    start (8) | key

Windows that close at the same time are adjacent across keys, which results on window close need. A read of one key over a time
range reads all keys in that range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from operator import add
from typing import Any, TypeAlias

from millstream.core.state.keys import entries_end, entry_prefix, pack_time, split, time_at
from millstream.core.state.slices import Slice, scan, scan_key


class ByKey:
    """Order by key, then by time. Maps windows to the keys of their entries in the slices. Stateless. All keys are serialised.

    Args:
        duplicates: Whether the keys of entries end with a number.
    """

    __slots__ = ("_width",)

    def __init__(self, *, duplicates: bool) -> None:
        self._width = 12 if duplicates else 8

    def stored(self, key: bytes, start: int) -> bytes:
        """Return the entry key for a key and the start of a window."""
        return entry_prefix(key) + pack_time(start)

    def in_window(self, start: int) -> Callable[[bytes], bytes]:
        """Return a function that maps the keys of one window to entry keys."""
        end = b"\x00" + pack_time(start)

        def stored(key: bytes) -> bytes:
            return (key.replace(b"\x00", b"\x00\xff") if b"\x00" in key else key) + end

        return stored

    def many_stored(self, keys: Sequence[bytes], start: int) -> list[bytes]:
        """Return the entry keys for many keys of one window."""
        if b"\x00" in b"\x01".join(keys):
            keys = [key.replace(b"\x00", b"\x00\xff") for key in keys]
        return list(map(add, keys, repeat(b"\x00" + pack_time(start))))

    def of_key(
        self, slices: list[Slice], key: bytes, first: int, last: int, *, reverse: bool
    ) -> Iterator[tuple[int, Any]]:
        """Iterate over start and entry of a key's windows with ``first <= start <= last``, in order of time."""
        low, high, index = self.stored(key, first), self.stored(key, last + 1), len(entry_prefix(key))
        entries = scan_key(slices, low, high, reverse=reverse)
        return ((time_at(stored, index), entry) for stored, entry in entries)

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
        """Iterate over key, start and entry with ``low <= key <= high``, in the order of the layout; None means unbounded."""
        begin = None if low is None else entry_prefix(low)
        end = None if high is None else entries_end(high)
        entries = scan(slices, begin, end, reverse=reverse)
        return self._between(entries, first, last)

    def _between(
        self, entries: Iterator[tuple[bytes, Any]], first: int, last: int
    ) -> Iterator[tuple[bytes, int, Any]]:
        for stored, entry in entries:
            start = time_at(stored, -self._width)
            if first <= start <= last:
                yield split(stored, self._width)[0], start, entry


class ByTime:
    """Order by time, then by key. Has the methods of :class:`ByKey`."""

    __slots__ = ()

    def stored(self, key: bytes, start: int) -> bytes:
        return pack_time(start) + key

    def in_window(self, start: int) -> Callable[[bytes], bytes]:
        return pack_time(start).__add__

    def many_stored(self, keys: Sequence[bytes], start: int) -> list[bytes]:
        return list(map(self.in_window(start), keys))

    def of_key(
        self, slices: list[Slice], key: bytes, first: int, last: int, *, reverse: bool
    ) -> Iterator[tuple[int, Any]]:
        entries = self.of_keys(slices, key, key, first, last, reverse=reverse)
        return ((start, entry) for _, start, entry in entries)

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
        entries = scan_key(slices, pack_time(first), pack_time(last + 1), reverse=reverse)
        return self._between(entries, low, high)

    def _between(
        self, entries: Iterator[tuple[bytes, Any]], low: bytes | None, high: bytes | None
    ) -> Iterator[tuple[bytes, int, Any]]:
        for stored, entry in entries:
            key = stored[8:]
            if (low is None or low <= key) and (high is None or key <= high):
                yield key, time_at(stored, 0), entry


WindowLayout: TypeAlias = ByKey | ByTime
