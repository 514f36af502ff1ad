"""Session layouts: in which order a session store keeps its entries.

*By key*, an entry lies under

    closed key | end (8) | start (8)

so that the sessions of a key come in the order of their ends, and those that could still be merged with a record lie
together at the end of the key's range: what aggregations want.

*By time*, it lies under

    end (8) | closed key | start (8)

so that sessions come in the order of their ends, whatever their keys. A read of one key looks at all keys of that time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from millstream.core.state.keys import FOREVER, after, closed, pack_time, split, time_at
from millstream.core.state.slices import Slices, scan, scan_key

Found = Iterator[tuple[int, int, Any]]
"""Start, end and entry of sessions of one key."""
FoundOfKeys = Iterator[tuple[bytes, int, int, Any]]
"""Serialised key, start, end and entry of sessions."""


class SessionLayout(Protocol):
    """Gives entries their place in the slices. Stateless; keys are serialised keys."""

    def stored(self, key: bytes, start: int, end: int) -> bytes:
        """Give where the entry of a session lies."""

    def of_key(self, slices: Slices, key: bytes, first: int, latest_start: int, *, reverse: bool) -> Found:
        """Iterate over a key's sessions with ``end >= first`` and ``start <= latest_start``, in the order of their ends."""

    def of_keys(
        self,
        slices: Slices,
        low: bytes | None,
        high: bytes | None,
        first: int,
        last: int,
        latest_start: int,
        *,
        reverse: bool,
    ) -> FoundOfKeys:
        """Iterate over the sessions of ``low <= key <= high`` with ``first <= end <= last`` and ``start <= latest_start``.

        They come in the order of the layout; None leaves a side of the keys open.
        """


class SessionsByKey:
    """The order of keys, then of ends and starts."""

    __slots__ = ()

    def stored(self, key: bytes, start: int, end: int) -> bytes:
        """Give where the entry of a session lies."""
        return closed(key) + pack_time(end) + pack_time(start)

    def of_key(self, slices: Slices, key: bytes, first: int, latest_start: int, *, reverse: bool) -> Found:
        """Iterate over the key's own range of entries."""
        begin, ends = closed(key), len(closed(key))
        found = scan_key(
            slices.between(first, FOREVER), begin + pack_time(first), after(key), reverse=reverse
        )
        return (
            (start, time_at(stored, ends), entry)
            for stored, entry in found
            if (start := time_at(stored, ends + 8)) <= latest_start
        )

    def of_keys(
        self,
        slices: Slices,
        low: bytes | None,
        high: bytes | None,
        first: int,
        last: int,
        latest_start: int,
        *,
        reverse: bool,
    ) -> FoundOfKeys:
        """Iterate over the keys' ranges, leaving out other times."""
        begin = None if low is None else closed(low)
        behind = None if high is None else after(high)
        found = scan(slices.between(first, last), begin, behind, reverse=reverse)
        return (
            (split(stored, 16)[0], start, end, entry)
            for stored, entry in found
            if first <= (end := time_at(stored, -16)) <= last
            and (start := time_at(stored, -8)) <= latest_start
        )


class SessionsByTime:
    """The order of ends, then of keys and starts."""

    __slots__ = ()

    def stored(self, key: bytes, start: int, end: int) -> bytes:
        """Give where the entry of a session lies."""
        return pack_time(end) + closed(key) + pack_time(start)

    def of_key(self, slices: Slices, key: bytes, first: int, latest_start: int, *, reverse: bool) -> Found:
        """Iterate over all keys of these times, leaving out others."""
        found = self.of_keys(slices, key, key, first, FOREVER, latest_start, reverse=reverse)
        return ((start, end, entry) for _, start, end, entry in found)

    def of_keys(
        self,
        slices: Slices,
        low: bytes | None,
        high: bytes | None,
        first: int,
        last: int,
        latest_start: int,
        *,
        reverse: bool,
    ) -> FoundOfKeys:
        """Iterate over all keys of these times, leaving out others."""
        begin, behind, low_or_more = pack_time(first), pack_time(last + 1), low or b""
        found = scan_key(slices.between(first, last), begin, behind, reverse=reverse)
        return (
            (key, start, time_at(stored, 0), entry)
            for stored, entry in found
            if (start := time_at(stored, -8)) <= latest_start
            and low_or_more <= (key := split(stored[8:], 8)[0])
            and (high is None or key <= high)
        )
