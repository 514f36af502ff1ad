"""Session layouts: the order of the entries in a session store.

*By key*, the key of an entry is

    closed key | end (8) | start (8)

The sessions of a key are ordered by end. Those that could still be merged with a record are adjacent at the end of the key's range,
which aggregations need.

*By time*, it is

    end (8) | closed key | start (8)

Sessions are ordered by end, across keys. A read of one key reads all keys of its time range. Sessions with the same key and end are read
with the latest start first, as from the in-memory store of Kafka Streams.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, groupby
from typing import Any, TypeAlias

from millstream.core.state.keys import FOREVER, entries_end, entry_prefix, pack_time, split, time_at
from millstream.core.state.keyvalue import Overlay
from millstream.core.state.slices import Slices, scan, scan_key

Found = Iterator[tuple[int, int, Any]]
"""Start, end and entry of sessions of one key."""
FoundOfKeys = Iterator[tuple[bytes, int, int, Any]]
"""Serialised key, start, end and entry of sessions."""


class SessionsByKey:
    """Order by key, then by end and start. Maps sessions to the keys of their entries. Stateless. All keys are serialised."""

    __slots__ = ()

    def stored(self, key: bytes, start: int, end: int) -> bytes:
        return entry_prefix(key) + pack_time(end) + pack_time(start)

    def keep(self, rows: Overlay, stored: bytes, kept: Any) -> None:
        """Set the entry of a session by its entry key; None deletes it."""
        rows.keep_under(stored[:-16], stored, kept)

    def of_key(self, slices: Slices, key: bytes, first: int, latest_start: int, *, reverse: bool) -> Found:
        """Iterate over a key's sessions with ``end >= first`` and ``start <= latest_start``, in order of end."""
        begin = entry_prefix(key)
        ends, low, high = len(begin), begin + pack_time(first), entries_end(key)
        parts = [
            each.rows.scan_under(begin, low, high, reverse=reverse) for each in slices.between(first, FOREVER)
        ]
        entries = chain.from_iterable(reversed(parts) if reverse else parts)
        return (
            (start, time_at(stored, ends), entry)
            for stored, entry in entries
            if (start := time_at(stored, ends + 8)) <= latest_start
        )

    def of_keys(
        self,
        slices: Slices,
        low: bytes | None,
        high: bytes | None,
        *,
        first: int,
        last: int,
        latest_start: int,
        reverse: bool,
    ) -> FoundOfKeys:
        """Iterate over the sessions of ``low <= key <= high`` with ``first <= end <= last`` and ``start <= latest_start``.

        Sessions are in the order of the layout. A bound of None means unbounded.
        """
        begin = None if low is None else entry_prefix(low)
        behind = None if high is None else entries_end(high)
        entries = scan(slices.between(first, last), begin, behind, reverse=reverse)
        return (
            (split(stored, 16)[0], start, end, entry)
            for stored, entry in entries
            if first <= (end := time_at(stored, -16)) <= last
            and (start := time_at(stored, -8)) <= latest_start
        )


class SessionsByTime:
    """Order by end, then by key, then by start with the latest first. Has the methods of :class:`SessionsByKey`."""

    __slots__ = ()

    def stored(self, key: bytes, start: int, end: int) -> bytes:
        return pack_time(end) + entry_prefix(key) + pack_time(start)

    def keep(self, rows: Overlay, stored: bytes, kept: Any) -> None:
        rows.keep(stored, kept)

    def of_key(self, slices: Slices, key: bytes, first: int, latest_start: int, *, reverse: bool) -> Found:
        entries = self.of_keys(
            slices, key, key, first=first, last=FOREVER, latest_start=latest_start, reverse=reverse
        )
        return ((start, end, entry) for _, start, end, entry in entries)

    def of_keys(
        self,
        slices: Slices,
        low: bytes | None,
        high: bytes | None,
        *,
        first: int,
        last: int,
        latest_start: int,
        reverse: bool,
    ) -> FoundOfKeys:
        begin, behind, low_or_more = pack_time(first), pack_time(last + 1), low or b""
        entries = scan_key(slices.between(first, last), begin, behind, reverse=reverse)
        return _latest_start_first(
            (key, start, time_at(stored, 0), entry)
            for stored, entry in entries
            if (start := time_at(stored, -8)) <= latest_start
            and low_or_more <= (key := split(stored[8:], 8)[0])
            and (high is None or key <= high)
        )


def _latest_start_first(found: FoundOfKeys) -> FoundOfKeys:
    """Reverse the order of sessions with the same key and end, which are neighbours."""
    return chain.from_iterable(
        reversed(list(same)) for _, same in groupby(found, key=lambda session: (session[0], session[2]))
    )


SessionLayout: TypeAlias = SessionsByKey | SessionsByTime
