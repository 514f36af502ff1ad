"""VersionedStore behaves like a list of versions per key, on every engine."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

import millstream as ms
from millstream.core.state.keys import FOREVER

from .engines import STORE, Engine, Visits, each_engine
from .store_harness import StoreHarness

HISTORY = 150_000
KEYS = ["", "a", "a\x00", "aa"]
STEPS = [0, 1, 10_000, 60_000, 74_999, 75_000, 75_001, 149_999, 150_000, 150_001, 300_000]
keys = st.sampled_from(KEYS)
back = st.sampled_from(STEPS)
SERDES: dict[str, tuple[ms.Serde[Any], st.SearchStrategy[Any]]] = {
    "numbers": (ms.serdes.int64, st.integers(-3, 3)),
    "lists": (ms.serdes.json, st.lists(st.integers(0, 3), max_size=2)),
}


def machine(make: Callable[[], Engine], serde: str, visits: Visits) -> type[RuleBasedStateMachine]:
    value_serde, values = SERDES[serde]
    spec = ms.stores.versioned(STORE, ms.serdes.string, value_serde, history_retention=HISTORY)

    class Versions(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.harness = StoreHarness(make, spec)
            self.now = 400_000
            self.time = -1
            self.dropped = 0
            self.model: dict[str, dict[int, Any]] = {key: {} for key in KEYS}
            self.kept = deepcopy((self.model, self.time))

        def teardown(self) -> None:
            self.harness.close()

        @rule(key=keys, ago=back, value=st.none() | values)
        def put(self, key: str, ago: int, value: Any) -> None:
            timestamp = self.now - ago
            assert self.harness.store.put(key, value, timestamp) == self.added(key, timestamp, value)

        @rule(entries=st.lists(st.tuples(keys, back, st.none() | values), min_size=2, max_size=6))
        def put_several(self, entries: list[tuple[str, int, Any]]) -> None:
            for entry in entries:
                self.put(*entry)

        @rule(key=keys, ago=back)
        def delete(self, key: str, ago: int) -> None:
            timestamp = self.now - ago
            before = self.as_of(key, timestamp)
            got = self.harness.store.delete(key, timestamp)
            assert got == (None if self.added(key, timestamp, None) is None else before)

        @rule(step=back)
        def time_moves(self, step: int) -> None:
            self.now += step

        @rule()
        def commit(self) -> None:
            visits["dropped slices"] += bool(self.harness.commit())
            self.kept = deepcopy((self.model, self.time))

        @rule()
        def give_up(self) -> None:
            visits["gave up"] += 1
            self.harness.give_up()
            self.model, self.time = deepcopy(self.kept)

        @rule(key=keys, ago=back)
        def get(self, key: str, ago: int) -> None:
            timestamp = self.now - ago
            assert self.harness.store.get(key, timestamp) == self.as_of(key, timestamp)

        @invariant()
        def reads_like_the_model(self) -> None:
            for key in KEYS:
                assert self.harness.store.get(key) == self.as_of(key, FOREVER)
                for time in (self.time - HISTORY, self.time - HISTORY - 1, -1, *self.model[key]):
                    found = self.as_of(key, time)
                    visits["looked beyond the history"] += (
                        bool(self.model[key]) and time < self.time - HISTORY
                    )
                    visits["found an earlier one"] += found is not None and time < max(self.model[key])
                    assert self.harness.store.get(key, time) == found
            latest = [(key, found) for key in KEYS if (found := self.as_of(key, FOREVER)) is not None]
            assert list(self.harness.store.all()) == latest
            assert list(self.harness.store.reverse_all()) == latest[::-1]
            assert sum(self.harness.task.dropped.values()) == self.dropped

        def added(self, key: str, timestamp: int, value: Any) -> int | None:
            """Add a version to the model; return what `put` returns."""
            if timestamp < self.time - HISTORY:
                visits["left out"] += 1
                self.dropped += 1
                return None
            self.time = max(self.time, timestamp)
            versions = self.model[key]
            visits["replaced"] += timestamp in versions
            visits["behind a deletion"] += (
                bool(versions) and timestamp > max(versions) and versions[max(versions)] is None
            )
            versions[timestamp] = value
            later = [time for time in versions if time > timestamp]
            visits["put before others"] += bool(later)
            return min(later, default=ms.stores.LATEST)

        def as_of(self, key: str, time: int) -> ms.VersionedRecord | None:
            versions = self.model[key]
            starts = [start for start in versions if start <= time]
            if not starts:
                return None
            start = max(starts)
            if time < self.time - HISTORY and start != max(versions):
                return None
            valid_to = min((time for time in versions if time > start), default=None)
            return None if versions[start] is None else ms.VersionedRecord(versions[start], start, valid_to)

    return Versions


@pytest.mark.parametrize(("make", "serde"), each_engine(SERDES, "numbers"))
def test_a_versioned_store_keeps_a_history_per_key(make: Callable[[], Engine], serde: str) -> None:
    visits = Visits()
    run_state_machine_as_test(machine(make, serde, visits), settings=settings(max_examples=80))
    visits.demand(
        **{
            "dropped slices": 5,
            "gave up": 50,
            "looked beyond the history": 20,
            "found an earlier one": 20,
            "left out": 20,
            "replaced": 20,
            "behind a deletion": 20,
            "put before others": 50,
        }
    )
