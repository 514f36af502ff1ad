"""A store on an engine in successive batches, for the state machines of all kinds of stores."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import millstream as ms
from millstream.core.ports import store_of
from millstream.core.state.opening import open_store

from .engines import Engine

KEYS_WITH_COMMON_PREFIXES = [
    b"",
    b"\x00",
    b"\x00\x00",
    b"\x00\xff",
    b"a",
    b"a\x00",
    b"a\x00\x00",
    b"a\x00\xff",
    b"aa",
    b"a\xff",
    b"\xff",
]


class StoreTask:
    """A fake task for a store, with a stream time that tests set and counts of dropped records."""

    def __init__(self) -> None:
        self.stream_time = -1
        self.dropped: Counter[str] = Counter()

    def drop(self, reason: str) -> None:
        self.dropped[reason] += 1


class StoreHarness:
    """One store in successive batches. Every batch opens a new store with the committed content and the memory of the last one."""

    def __init__(self, make: Callable[[], Engine], spec: ms.stores.StoreSpec) -> None:
        self.engine = make()
        self.spec = spec
        self.task = StoreTask()
        self.memory: Mapping[str, Any] = {}
        self._committed_time = -1
        self.store = self._opened()

    def commit(self) -> tuple[str, ...]:
        """End the batch; return the byte stores that were dropped."""
        drained = self.store.drain()
        assert all(drained.changes.values())
        assert not set(drained.changes) & set(drained.dropped)
        assert {store_of(name) for name in (*drained.changes, *drained.dropped)} <= {self.spec.name}
        for changes in drained.changes.values():
            assert len({key for key, _ in changes}) == len(changes)
        self.memory = json.loads(json.dumps(self.store.memory()))
        self._committed_time = self.task.stream_time
        self.engine.commit(drained.changes, drained.dropped)
        self.store = self._opened()
        return drained.dropped

    def give_up(self) -> None:
        """Start the batch again, as another attempt would."""
        self.task.stream_time = self._committed_time
        self.store = self._opened()

    def changed(self, spec: ms.stores.StoreSpec) -> None:
        """Continue with another specification, as after a restart of a changed program."""
        self.spec = spec
        self.give_up()

    def close(self) -> None:
        self.engine.close()

    def _opened(self) -> Any:
        return open_store(self.spec, self.engine.stores(), self.task, deepcopy(self.memory))
