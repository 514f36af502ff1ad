"""KeyValueStore behaves like a sorted dict, on every engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

import millstream as ms
from millstream.core.state.opening import open_store

from .engines import STORE, Engine, Visits, each_engine

TEXTS = ["", "\x00", "a", "a\x00", "aa", "ab", "b", "ä", "\U0010ffff"]
NUMBERS = [0, 1, -1, 255, 256, 1 << 62, -(1 << 63), (1 << 63) - 1]
BLOBS = [b"", b"\x00", b"a", b"a\xff", b"a\xff\xff", b"b", b"\xff", b"\xff\xff"]
INTS = st.integers(-(1 << 63), (1 << 63) - 1)
JSON = st.recursive(
    st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(st.none() | inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2)
    ),
    max_leaves=4,
)


def stamped(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.tuples(values, st.integers(0, 1 << 40))


VARIANTS: dict[str, tuple[ms.stores.StoreSpec, list[Any], st.SearchStrategy[Any]]] = {
    "text to numbers": (ms.stores.key_value(STORE, ms.serdes.string, ms.serdes.int64), TEXTS, INTS),
    "numbers to json": (ms.stores.key_value(STORE, ms.serdes.int64, ms.serdes.json), NUMBERS, JSON),
    "text to stamped numbers": (
        ms.stores.key_value(STORE, ms.serdes.string, ms.serdes.int64, timestamped=True),
        TEXTS,
        stamped(INTS),
    ),
    "bytes to stamped json": (
        ms.stores.key_value(STORE, ms.serdes.bytes, ms.serdes.json, timestamped=True),
        BLOBS,
        stamped(JSON),
    ),
}


def spoil(value: Any) -> None:
    """Change an object in place as far as it goes; a store must not notice."""
    inner = value[0] if isinstance(value, tuple) else value
    if isinstance(inner, list):
        inner.append("spoilt")
    elif isinstance(inner, dict):
        inner["spoilt"] = True


def machine(make: Callable[[], Engine], variant: str, visits: Visits) -> Callable[[], RuleBasedStateMachine]:
    spec, pool, values = VARIANTS[variant]
    keys = st.sampled_from(pool)
    bounds = st.none() | keys

    class Store(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.engine = make()
            self.store = open_store(spec, self.engine.stores())
            self.model: dict[Any, Any] = {}
            self.committed: set[Any] = set()
            self.written: set[Any] = set()

        def teardown(self) -> None:
            self.engine.close()

        def note(self, key: Any) -> None:
            visits["wrote over committed"] += key in self.committed
            visits["wrote again"] += key in self.written
            self.written.add(key)

        @initialize(entries=st.lists(st.tuples(keys, values), max_size=8))
        def begin(self, entries: list[tuple[Any, Any]]) -> None:
            self.put_all(entries)
            self.commit()

        @rule(key=keys, value=values)
        def put(self, key: Any, value: Any) -> None:
            self.note(key)
            self.store.put(key, value)
            self.model[key] = parsed(spec, value)
            spoil(value)

        @rule(entries=st.lists(st.tuples(keys, st.none() | values), max_size=4))
        def put_all(self, entries: list[tuple[Any, Any]]) -> None:
            self.store.put_all(entries)
            for key, value in entries:
                self.note(key)
                self.model.pop(key, None)
                if value is not None:
                    self.model[key] = parsed(spec, value)

        @rule(key=keys, value=values)
        def put_if_absent(self, key: Any, value: Any) -> None:
            assert self.store.put_if_absent(key, value) == self.model.get(key)
            if key not in self.model:
                self.note(key)
                self.model[key] = parsed(spec, value)

        @rule(key=keys)
        def delete(self, key: Any) -> None:
            visits["deleted committed"] += key in self.committed and key in self.model
            self.note(key)
            assert self.store.delete(key) == self.model.pop(key, None)

        @rule(key=keys)
        def get(self, key: Any) -> None:
            got = self.store.get(key)
            assert got == self.model.get(key)
            spoil(got)

        @rule(low=bounds, high=bounds)
        def ranges(self, low: Any, high: Any) -> None:
            inside = [
                (key, value)
                for key, value in self.entries()
                if (low is None or self.order(key) >= self.order(low))
                and (high is None or self.order(key) <= self.order(high))
            ]
            assert list(self.store.range(low, high)) == inside
            assert list(self.store.reverse_range(low, high)) == inside[::-1]

        @rule(data=st.data())
        def prefixes(self, data: st.DataObject) -> None:
            key = data.draw(keys)
            prefix = self.order(key)[: data.draw(st.sampled_from([2, 9, 0]))]
            assert list(self.store.prefix_scan(prefix)) == self.beginning_with(prefix)
            if prefix == self.order(key):
                assert list(self.store.prefix_scan(key)) == self.beginning_with(prefix)

        @rule(key=keys, value=values)
        def walk_while_changing(self, key: Any, value: Any) -> None:
            before = self.entries()
            walk: Iterator[Any] = self.store.all()
            first = next(walk, None)
            self.put(key, value)
            assert [entry for entry in (first, *walk) if entry is not None] == before

        @rule()
        def commit(self) -> None:
            changes = self.store.drain().changes.get(STORE, [])
            assert len({key for key, _ in changes}) == len(changes) == len(self.written)
            visits["committed"] += bool(changes)
            self.engine.apply(changes)
            self.store = open_store(spec, self.engine.stores())
            self.committed, self.written = set(self.model), set()

        @rule()
        def give_up(self) -> None:
            """Start another attempt from the committed content."""
            if not self.written:
                return
            visits["gave up"] += 1
            self.store = open_store(spec, self.engine.stores())
            self.model = dict(self.store.all())
            assert set(self.model) == self.committed
            self.written = set()

        @invariant()
        def walks_like_the_model(self) -> None:
            assert list(self.store.all()) == self.entries()
            assert list(self.store.reverse_all()) == self.entries()[::-1]
            visits["merged both"] += {key in self.written for key in self.model} == {True, False}
            for prefix in {self.order(key)[:1] for key in pool}:
                inside = self.beginning_with(prefix)
                visits["prefix of several"] += 1 < len(inside) < len(self.model)
                assert list(self.store.prefix_scan(prefix)) == inside
            assert (
                len(self.model) <= self.store.approximate_count() <= len(self.committed) + len(self.written)
            )

        def beginning_with(self, prefix: bytes) -> list[tuple[Any, Any]]:
            return [(key, value) for key, value in self.entries() if self.order(key).startswith(prefix)]

        def order(self, key: Any) -> bytes:
            return spec.key.serialize(key)

        def entries(self) -> list[tuple[Any, Any]]:
            return sorted(self.model.items(), key=lambda entry: self.order(entry[0]))

    return Store


def parsed(spec: ms.stores.StoreSpec, value: Any) -> Any:
    """Return the value as the store returns it: an independent copy."""
    if not spec.timestamped:
        return spec.value.deserialize(spec.value.serialize(value))
    return ms.ValueAndTimestamp(spec.value.deserialize(spec.value.serialize(value[0])), value[1])


@pytest.mark.parametrize(("make", "variant"), each_engine(VARIANTS, "bytes to stamped json"))
def test_a_key_value_store_behaves_like_a_sorted_dict(make: Callable[[], Engine], variant: str) -> None:
    visits = Visits()
    run_state_machine_as_test(machine(make, variant, visits), settings=settings(max_examples=60))
    visits.demand(
        **{
            "wrote over committed": 10,
            "wrote again": 20,
            "deleted committed": 5,
            "merged both": 5,
            "prefix of several": 3,
            "committed": 20,
            "gave up": 10,
        }
    )
