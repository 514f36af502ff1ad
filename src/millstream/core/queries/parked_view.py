"""A view of a local copy, combined with the changes of the latest committed micro-batches, which are parked beside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from heapq import merge
from operator import itemgetter
from typing import Final

from millstream.core.ports import ByteReader, ByteStores, ParkedChanges
from millstream.core.state.memory import NOTHING

_KEY: Final = itemgetter(0)


class Parked:
    """The changes of consecutive micro-batches, oldest first, combined: the latest change of each key."""

    def __init__(self, batches: Iterable[ParkedChanges]) -> None:
        self.changes: dict[str, dict[bytes, bytes | None]] = {}
        self.dropped: set[str] = set()
        for changes, dropped in batches:
            for name in dropped:
                self.changes.pop(name, None)
                self.dropped.add(name)
            for name, items in changes.items():
                self.changes.setdefault(name, {}).update(items)


class ParkedView:
    """A view of byte stores, combined with parked changes. Implements ``ByteStores``.

    Example:
        >>> from millstream.core.state.memory import MemoryStores
        >>> copy = MemoryStores()
        >>> copy.apply({"s": [(b"a", b"1"), (b"b", b"2")]})
        >>> reader = ParkedView(copy, Parked([ParkedChanges({"s": [(b"a", None), (b"c", b"3")]}, ())])).open("s")
        >>> list(reader.scan(None, None)), reader.get(b"b"), reader.get(b"a"), reader.approximate_count()
        ([(b'b', b'2'), (b'c', b'3')], b'2', None, 2)
    """

    def __init__(self, stores: ByteStores, parked: Parked) -> None:
        self._stores = stores
        self._parked = parked

    def open(self, name: str) -> ByteReader:
        committed = NOTHING if name in self._parked.dropped else self._stores.open(name)
        changes = self._parked.changes.get(name)
        return _ParkedReader(committed, changes) if changes else committed


class _ParkedReader:
    """A byte store, combined with parked changes. Implements ``ByteReader``."""

    def __init__(self, committed: ByteReader, changes: Mapping[bytes, bytes | None]) -> None:
        self._committed = committed
        self._changes = changes

    def get(self, key: bytes) -> bytes | None:
        return self._changes[key] if key in self._changes else self._committed.get(key)

    def scan(
        self, low: bytes | None, high: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        own = sorted(
            (
                item
                for item in self._changes.items()
                if (low is None or item[0] >= low) and (high is None or item[0] < high)
            ),
            key=_KEY,
            reverse=reverse,
        )
        committed = (
            row for row in self._committed.scan(low, high, reverse=reverse) if row[0] not in self._changes
        )
        merged = merge(committed, own, key=_KEY, reverse=reverse)
        return ((key, value) for key, value in merged if value is not None)

    def approximate_count(self) -> int:
        more = sum(
            (value is not None) - (self._committed.get(key) is not None)
            for key, value in self._changes.items()
        )
        return self._committed.approximate_count() + more
