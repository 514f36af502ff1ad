"""Key-value stores with a capacity or a time to live behave like dicts, on every engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

import millstream as ms
from millstream.core.state import expiry

from .engines import STORE, Engine, Visits, each_engine
from .store_harness import StoreHarness

KEYS = ["", "a", "a\x00", "aa", "b", "c", "d"]
keys = st.sampled_from(KEYS)
SERDES: dict[str, tuple[ms.Serde[Any], st.SearchStrategy[Any]]] = {
    "numbers": (ms.serdes.int64, st.integers(-3, 3)),
    "lists": (ms.serdes.json, st.lists(st.integers(0, 3), max_size=2)),
}
TTL = 10


class Bounded(RuleBasedStateMachine):
    """The rules that both machines share: reads, writes and commits. The model is a dict in the order of the last use or write."""

    spec: ms.stores.StoreSpec
    make: Callable[[], Engine]
    visits: Visits
    values: st.SearchStrategy[Any]

    def __init__(self) -> None:
        super().__init__()
        self.harness = StoreHarness(self.make, self.spec)
        self.model: dict[str, Any] = {}
        self.committed_model: dict[str, Any] = {}

    def teardown(self) -> None:
        self.harness.close()

    @property
    def store(self) -> Any:
        return self.harness.store

    @rule(data=st.data(), key=keys)
    def put(self, data: st.DataObject, key: str) -> None:
        value = data.draw(self.values)
        self.store.put(key, value)
        self.note_write(key, value)

    @rule(data=st.data(), key=keys)
    def put_if_absent(self, data: st.DataObject, key: str) -> None:
        value, old = data.draw(self.values), self.expected_value(key)
        assert self.store.put_if_absent(key, value) == old
        if old is None:
            self.note_write(key, value)

    @rule(key=keys)
    def get(self, key: str) -> None:
        assert self.store.get(key) == self.expected_value(key)

    @rule(key=keys)
    def delete(self, key: str) -> None:
        assert self.store.delete(key) == self.expected_value(key)
        self.model.pop(key, None)

    @rule(low=keys, high=keys)
    def ranges(self, low: str, high: str) -> None:
        inside = [(key, value) for key, value in self.entries() if low <= key <= high]
        assert list(self.store.range(low, high)) == inside
        assert list(self.store.reverse_range(low, high)) == inside[::-1]

    @rule()
    def commit(self) -> None:
        self.harness.commit()
        self.visits["committed"] += 1
        self.committed_model = dict(self.model)

    @rule()
    def give_up(self) -> None:
        self.visits["gave up"] += 1
        self.harness.give_up()
        self.model = dict(self.committed_model)

    @invariant()
    def walks_like_the_model(self) -> None:
        assert list(self.store.all()) == self.entries()
        assert list(self.store.reverse_all()) == self.entries()[::-1]

    def expected_value(self, key: str) -> Any:
        raise NotImplementedError

    def note_write(self, key: str, value: Any) -> None:
        raise NotImplementedError

    def entries(self) -> list[tuple[str, Any]]:
        raise NotImplementedError


def lru_machine(make: Callable[[], Engine], serde: str, visits: Visits) -> type[Bounded]:
    value_serde, values = SERDES[serde]

    class LeastRecentlyUsed(Bounded):
        def __init__(self) -> None:
            super().__init__()
            self.capacity = 3

        def expected_value(self, key: str) -> Any:
            if key in self.model:
                self.model[key] = self.model.pop(key)
            return self.model.get(key)

        def note_write(self, key: str, value: Any) -> None:
            self.model.pop(key, None)
            self.model[key] = value
            for _ in range(2):
                if len(self.model) > self.capacity:
                    first = next(iter(self.model))
                    visits["evicted committed"] += first in self.committed_model
                    visits["evicted own"] += first not in self.committed_model
                    del self.model[first]

        def entries(self) -> list[tuple[str, Any]]:
            return sorted(self.model.items(), key=lambda entry: entry[0].encode())

        @rule(capacity=st.integers(1, 5))
        def capacity_changes(self, capacity: int) -> None:
            self.commit()
            self.capacity = capacity
            self.harness.changed(ms.stores.lru(STORE, ms.serdes.string, value_serde, capacity=capacity))
            visits["over capacity"] += len(self.model) > capacity

        @invariant()
        def counts_exactly(self) -> None:
            assert self.store.approximate_count() == len(self.model)

    LeastRecentlyUsed.spec = ms.stores.lru(STORE, ms.serdes.string, value_serde, capacity=3)
    LeastRecentlyUsed.make, LeastRecentlyUsed.visits = staticmethod(make), visits
    LeastRecentlyUsed.values = values
    return LeastRecentlyUsed


def expiring_machine(make: Callable[[], Engine], serde: str, visits: Visits) -> type[Bounded]:
    value_serde, values = SERDES[serde]

    class Expiring(Bounded):
        @initialize()
        def begin(self) -> None:
            self.harness.task.stream_time = 100
            self.harness.commit()

        def expected_value(self, key: str) -> Any:
            visits["asked for an expired entry"] += key in self.model and not self.is_live(key)
            return self.model[key][0] if self.is_live(key) else None

        def note_write(self, key: str, value: Any) -> None:
            visits["prolonged"] += self.is_live(key) and self.model[key][1] < self.now()
            self.model[key] = (value, self.now())

        def entries(self) -> list[tuple[str, Any]]:
            live = [(key, value) for key, (value, _) in self.model.items() if self.is_live(key)]
            return sorted(live, key=lambda entry: entry[0].encode())

        @rule(data=st.data(), several_keys=st.lists(keys, min_size=1, max_size=4))
        def put_several(self, data: st.DataObject, several_keys: list[str]) -> None:
            for key in several_keys:
                self.put(data, key)

        @invariant()
        def gets_like_the_model(self) -> None:
            for key in KEYS:
                assert self.store.get(key) == self.expected_value(key)

        def now(self) -> int:
            return self.harness.task.stream_time

        def is_live(self, key: str) -> bool:
            return key in self.model and self.now() < self.model[key][1] + TTL

        @rule(step=st.sampled_from([0, 1, 4, 9, 10, 11, 30]))
        def time_moves(self, step: int) -> None:
            self.harness.task.stream_time += step

        @rule()
        def batches_pass(self) -> None:
            """Advance the time and commit several batches, which remove all expired entries from the byte stores."""
            self.harness.task.stream_time += 5
            for _ in range(len(KEYS) + 1):
                self.commit()
            stores = self.harness.engine.stores()
            counts = [stores.open(name).approximate_count() for name in (STORE, f"{STORE}/written")]
            self.harness.give_up()
            visits["removed"] += len(self.entries()) < len(self.model)
            assert counts == [len(self.entries())] * 2
            self.model = {key: value for key, value in self.model.items() if self.is_live(key)}

    Expiring.spec = ms.stores.key_value(STORE, ms.serdes.string, value_serde, ttl=TTL)
    Expiring.make, Expiring.visits, Expiring.values = staticmethod(make), visits, values
    return Expiring


@pytest.mark.parametrize(("make", "serde"), each_engine(SERDES, "lists"))
def test_a_store_with_a_capacity_evicts_the_least_recently_used_entries(
    make: Callable[[], Engine], serde: str
) -> None:
    visits = Visits()
    run_state_machine_as_test(lru_machine(make, serde, visits), settings=settings(max_examples=80))
    visits.demand(
        **{"committed": 20, "gave up": 20, "evicted committed": 20, "evicted own": 20, "over capacity": 5}
    )


@pytest.mark.parametrize(("make", "serde"), each_engine(SERDES, "lists"))
def test_a_store_with_a_time_to_live_returns_only_unexpired_entries(
    make: Callable[[], Engine], serde: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "REMOVED_PER_BATCH", 1)
    visits = Visits()
    run_state_machine_as_test(expiring_machine(make, serde, visits), settings=settings(max_examples=80))
    visits.demand(
        **{
            "committed": 20,
            "gave up": 20,
            "asked for an expired entry": 20,
            "prolonged": 20,
            "removed": 5,
        }
    )
