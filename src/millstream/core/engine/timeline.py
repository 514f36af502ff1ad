"""Timeline: a key-value store ordered by time, from which due entries are taken.

The key of an entry begins with its time:

    time (8) | any bytes

All keys up to the *horizon* are in memory, as a heap. When they have been taken, the next page is read from the store. To check if an
entry is due thus takes one comparison, the cost of taking an entry does not depend on the size of the store, and a restarted task reads
only one page.
"""

from __future__ import annotations

import struct
from heapq import heappop, heappush
from itertools import islice, takewhile
from typing import Any, Final

from millstream.core.engine.punctuate import NEVER

_TIME: Final = struct.Struct(">Q")
_PAGE: Final = 1000


class Timeline:
    """The entries of one store by time. Owned by a node of the task, the only writer of the store."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._earliest: list[bytes] = []
        self._horizon = -1
        self._next: int | None = None
        self.get = store.fetch

    @property
    def next(self) -> int:
        """The time of the first entry; :data:`~millstream.core.engine.punctuate.NEVER` if there is none."""
        if self._next is None:
            self._next = self._first_time()
        return self._next

    def has_until(self, time: int) -> bool:
        """Return whether the first entry is not later than a time. ``next`` alone does not tell, as :data:`NEVER` is the latest time, too."""
        return self.next <= time and bool(self._earliest)

    def put(self, key: bytes, entry: Any, *, known: bool) -> None:
        """Set the entry of a key.

        Args:
            known: True if the key already has an entry.
        """
        self._store.write(key, entry)
        if not known and (time := time_of(key)) <= self._horizon:
            heappush(self._earliest, key)
            if self._next is not None and time < self._next:
                self._next = time

    def remove(self, key: bytes) -> None:
        self._store.write(key, None)
        if self._earliest and self._earliest[0] == key:
            self._next = None

    def take(self) -> tuple[bytes, Any]:
        """Remove the first entry and return it. Read :attr:`next` before, to check that there is one."""
        key = heappop(self._earliest)
        entry = self._store.fetch(key)
        self._store.write(key, None)
        self._next = None
        return key, entry

    def _first_time(self) -> int:
        while True:
            while self._earliest and self._store.fetch(self._earliest[0]) is None:
                heappop(self._earliest)
            if self._earliest:
                return time_of(self._earliest[0])
            if self._horizon == NEVER:
                return NEVER
            self._read()

    def _read(self) -> None:
        """Read the next page of keys, and all further keys with the time of its last key."""
        entries = self._store.range(_TIME.pack(self._horizon + 1))
        page = [key for key, _ in islice(entries, _PAGE)]
        self._horizon = NEVER
        if len(page) == _PAGE:
            self._horizon = time_of(page[-1])
            page += takewhile(lambda key: time_of(key) == self._horizon, (key for key, _ in entries))
        self._earliest = page


def timed_key(time: int, rest: bytes) -> bytes:
    return _TIME.pack(time) + rest


def time_of(key: bytes) -> int:
    time: int = _TIME.unpack_from(key)[0]
    return time
