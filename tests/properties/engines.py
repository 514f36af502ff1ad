"""The engines of committed content behind one interface, and a counter of visited states."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from hypothesis import settings

from millstream.core.ports import ByteReader, ByteStores, StoreChange, Version
from millstream.core.state.memory import MemoryStores
from millstream.core.state.segments.key_groups import key_group
from proofs.sizes import FULL
from unit.drivers import engines as copies

STORE = "store"


class Engine(Protocol):
    """Byte stores whose committed content is read in one view until the next commit."""

    def stores(self) -> ByteStores: ...

    def commit(self, changes: Mapping[str, Iterable[StoreChange]], dropped: Collection[str] = ()) -> None: ...

    def reader(self) -> ByteReader: ...

    def apply(self, changes: Iterable[StoreChange]) -> None: ...

    def close(self) -> None: ...


class OneStore:
    """Methods for tests of a single byte store."""

    def stores(self) -> ByteStores:
        raise NotImplementedError

    def commit(self, changes: Mapping[str, Iterable[StoreChange]], dropped: Collection[str] = ()) -> None:
        raise NotImplementedError

    def reader(self) -> ByteReader:
        return self.stores().open(STORE)

    def apply(self, changes: Iterable[StoreChange]) -> None:
        self.commit({STORE: changes})


class Memory(OneStore):
    def __init__(self) -> None:
        self._stores = MemoryStores()

    def stores(self) -> ByteStores:
        return self._stores

    def commit(self, changes: Mapping[str, Iterable[StoreChange]], dropped: Collection[str] = ()) -> None:
        self._stores.apply(changes, dropped)

    def close(self) -> None:
        pass


class Copied(OneStore):
    """The content of a local copy."""

    engine: copies.Engine

    def __init__(self) -> None:
        self._directory = tempfile.mkdtemp(prefix="millstream-")
        self._copy = self.engine.open(self._directory)
        self._batches = 0

    def stores(self) -> ByteStores:
        self._copy.close_view()
        return self._copy.open_view()

    def commit(self, changes: Mapping[str, Iterable[StoreChange]], dropped: Collection[str] = ()) -> None:
        self._copy.close_view()
        self._batches += 1
        self._copy.apply(changes, Version(self._batches, "t"), dropped)

    def close(self) -> None:
        self.engine.discard(self._directory)


class Lmdb(Copied):
    engine = copies.COPIES["lmdb"]


class Rocksdb(Copied):
    engine = copies.COPIES["rocksdb"]


def each_engine(variants: Collection[str], with_lmdb: str) -> list[tuple[type[Memory] | type[Copied], str]]:
    """Pair all variants of a store with memory, and one with LMDB (in `make soak`, all): an engine sees only bytes."""
    on_lmdb = variants if FULL else [with_lmdb]
    return [*((Memory, variant) for variant in variants), *((Lmdb, variant) for variant in on_lmdb)]


ENGINES: list[type[Memory] | type[Copied]] = [Memory, Lmdb, Rocksdb]


def neighbours(count: int, groups: int) -> list[bytes]:
    """Return short keys that share a few key groups, and therefore segments."""
    keys = (b"%d" % number for number in range(1 << 20))
    per_group: dict[int, list[bytes]] = {}
    for key in keys:
        group_keys = per_group.setdefault(key_group(key), [])
        group_keys.append(key)
        full = [found for found in per_group.values() if len(found) >= count]
        if len(full) == groups:
            break
    return [key for found in full for key in found[:count]]


class Visits(Counter[str]):
    """Counts how often a test reached the states that it is about."""

    def demand(self, **least: int) -> None:
        """Fail if a state was never visited; the number is how often it was visited when the test was written.

        With random seeds, a rare state may be missed by chance, so this is only checked for fixed examples.
        """
        if not settings().derandomize:
            return
        rare = {name: f"{self[name]} < {count}" for name, count in least.items() if not self[name]}
        assert not rare, f"rarely visited: {rare}; all visits: {dict(self)}"
