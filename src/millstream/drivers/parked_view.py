"""A view of a local copy, combined with the changes of the latest committed micro-batches, which are parked beside it.

A view lives until the next commit, and most queries are for single keys. So a key is found by binary search, and only the values that an
answer needs become Python objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge
from operator import itemgetter
from typing import Final

import pyarrow as pa

from millstream.core.ports import ByteReader, ByteStores, StoreChange
from millstream.core.state.memory import NOTHING
from millstream.drivers.directory import ParkedColumns
from millstream.drivers.segments import SortedChanges, merged

_KEY: Final = itemgetter(0)


class Parked:
    """The changes of consecutive micro-batches, oldest first, combined: the latest change of each key."""

    def __init__(self, batches: Iterable[ParkedColumns]) -> None:
        self.dropped: set[str] = set()
        self._runs: dict[str, list[pa.Table]] = {}
        self._changes: dict[str, SortedChanges] = {}
        for changes, dropped in batches:
            for name in dropped:
                self._runs.pop(name, None)
                self.dropped.add(name)
            for name, runs in changes.items():
                self._runs.setdefault(name, []).extend(runs)

    def changes(self, name: str) -> SortedChanges | None:
        """Return the changes of a byte store, or None if there are none."""
        runs = self._runs.pop(name, None)
        if runs:
            self._changes[name] = SortedChanges(runs[0] if len(runs) == 1 else merged(runs))
        return self._changes.get(name)


class ParkedView:
    """A view of byte stores, combined with parked changes. Implements ``ByteStores``.

    Example:
        >>> from millstream.core.state.memory import MemoryStores
        >>> from millstream.drivers.segments import columns_of, encode
        >>> copy = MemoryStores()
        >>> copy.apply({"s": [(b"a", b"1"), (b"b", b"2")]})
        >>> changes = columns_of(encode([(b"a", None), (b"c", b"3")]), "the changes")
        >>> reader = ParkedView(copy, Parked([ParkedColumns({"s": [changes]}, ())])).open("s")
        >>> list(reader.scan(None, None)), reader.get(b"b"), reader.get(b"a"), reader.approximate_count()
        ([(b'b', b'2'), (b'c', b'3')], b'2', None, 2)
    """

    def __init__(self, stores: ByteStores, parked: Parked) -> None:
        self._stores = stores
        self._parked = parked

    def open(self, name: str) -> ByteReader:
        committed = NOTHING if name in self._parked.dropped else self._stores.open(name)
        changes = self._parked.changes(name)
        return committed if changes is None else _ParkedReader(committed, changes)


class _ParkedReader:
    """A byte store, combined with parked changes. Implements ``ByteReader``."""

    def __init__(self, committed: ByteReader, changes: SortedChanges) -> None:
        self._committed = committed
        self._changes = changes

    def get(self, key: bytes) -> bytes | None:
        change = self._changes.find(key)
        return self._committed.get(key) if change is None else change[1]

    def scan(
        self, low: bytes | None, high: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        changes = self._changes.scan(low, high, reverse=reverse)
        committed: Iterator[StoreChange] = self._committed.scan(low, high, reverse=reverse)
        seen = None
        for key, value in merge(changes, committed, key=_KEY, reverse=reverse):  # stable: the change first
            if key != seen and value is not None:
                yield key, value
            seen = key

    def approximate_count(self) -> int:
        more = sum(
            (value is not None) - (self._committed.get(key) is not None)
            for key, value in self._changes.scan(None, None)
        )
        return self._committed.approximate_count() + more
