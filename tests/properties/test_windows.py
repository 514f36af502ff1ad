"""WindowStore and SessionStore behave like sorted lists, on every engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import millstream as ms
from millstream.core.state.keys import FOREVER
from millstream.core.topology.stores import TimedSpec

from .engines import STORE, Engine, Memory, Visits, each_engine
from .store_harness import StoreHarness

RETENTION, SLICE = 150_000, 75_000
KEYS = [b"", b"\x00", b"a", b"a\x00", b"a\x00\xff", b"aa", b"b", b"\xff"]
STEPS = [0, 1, 999, 10_000, 60_000, 74_999, 75_000, 75_001, 149_999, 150_000, 150_001, 300_000]
keys = st.sampled_from(KEYS)
bounds = st.none() | keys
values = st.integers(-3, 3)
back = st.sampled_from(STEPS)


Session = tuple[bytes, int, int, int]
"""Key, end, start and value."""


class Timed(RuleBasedStateMachine):
    """Puts entries at or before a time that advances, in batches."""

    spec: TimedSpec
    make: Callable[[], Engine]
    visits: Visits

    def __init__(self) -> None:
        super().__init__()
        self.harness = StoreHarness(self.make, self.spec)
        self.now = 400_000
        self.time = -1
        self.dropped = 0
        self.entries: Any = None
        self.kept_time = -1

    def teardown(self) -> None:
        self.harness.close()

    @property
    def store(self) -> Any:
        return self.harness.store

    def oldest(self) -> int:
        return self.time - RETENTION + 1

    def accepts_put(self, time: int) -> bool:
        """Advance the store's time as a put does; return whether the slice of the put has not expired."""
        self.visits["put out of order"] += time < self.time
        self.time = max(self.time, time)
        accepted = time - time % SLICE + SLICE > self.time - RETENTION
        self.visits["put into an expired slice"] += not accepted
        self.visits["put of an expired window"] += accepted and time < self.oldest()
        if self.spec.strict:
            accepted = time >= self.oldest()
        self.dropped += not accepted
        return accepted

    @rule(step=back)
    def time_moves(self, step: int) -> None:
        self.now += step

    @rule()
    def commit(self) -> None:
        self.visits["dropped slices"] += bool(self.harness.commit())
        self.remember()

    @rule()
    def give_up(self) -> None:
        self.visits["gave up"] += 1
        self.harness.give_up()
        self.recall()

    def remember(self) -> None:
        self.kept, self.kept_time = list(self.entries), self.time

    def recall(self) -> None:
        self.entries, self.time = list(self.kept), self.kept_time

    @invariant()
    def drops_are_counted(self) -> None:
        assert sum(self.harness.task.dropped.values()) == self.dropped


def window_machine(
    make: Callable[[], Engine],
    visits: Visits,
    *,
    duplicates: bool = False,
    by_time: bool = False,
    strict: bool = False,
) -> type[Timed]:
    spec = ms.stores.window(
        STORE, ms.serdes.bytes, ms.serdes.int64, retention=RETENTION, size=10, retain_duplicates=duplicates
    )
    spec = replace(spec, order="time" if by_time else "key", strict=strict)

    class Windows(Timed):
        def __init__(self) -> None:
            super().__init__()
            self.entries: list[tuple[bytes, int, int]] = []
            self.kept: list[tuple[bytes, int, int]] = []

        @rule(key=keys, ago=back, value=st.none() | values)
        def put(self, key: bytes, ago: int, value: int | None) -> None:
            start = self.now - ago
            self.store.put(key, value, start)
            if duplicates and value is None:
                return
            self.put_into_model(key, start, value)

        @precondition(lambda self: not duplicates)
        @rule(key=keys, ago=back, value=st.none() | values)
        def put_into_an_open_window(self, key: bytes, ago: int, value: int | None) -> None:
            start = self.now - ago
            share = self.store.open_window(start)
            if share is not None:
                stored, rows = share
                rows.put(stored(key), value)
            self.put_into_model(key, start, value)

        def put_into_model(self, key: bytes, start: int, value: int | None) -> None:
            if self.accepts_put(start):
                if not duplicates:
                    self.visits["put again"] += any(e[:2] == (key, start) for e in self.entries)
                    self.entries = [e for e in self.entries if e[:2] != (key, start)]
                if value is not None:
                    self.entries.append((key, start, value))

        @initialize(entries=st.lists(st.tuples(keys, back, values), max_size=12))
        def begin(self, entries: list[tuple[bytes, int, int]]) -> None:
            for entry in entries:
                self.put(*entry)
            self.commit()

        @rule(entries=st.lists(st.tuples(keys, back, values), min_size=2, max_size=6))
        def put_several(self, entries: list[tuple[bytes, int, int]]) -> None:
            for entry in entries:
                self.put(*entry)

        @rule(key=keys, ago=back, length=back)
        def fetch(self, key: bytes, ago: int, length: int) -> None:
            first, last = self.now - ago, self.now - ago + length
            expected = [(s, v) for k, s, v in self.unexpired() if k == key and first <= s <= last]
            assert list(self.store.fetch(key, first, last)) == expected
            assert list(self.store.reverse_fetch(key, first, last)) == expected[::-1]
            starting = [v for k, s, v in self.unexpired() if k == key and s == first]
            assert self.store.fetch(key, first) == (starting[-1] if starting else None)

        @rule(low=bounds, high=bounds, ago=back, length=back)
        def fetch_range(self, low: bytes | None, high: bytes | None, ago: int, length: int) -> None:
            first, last = self.now - ago, self.now - ago + length
            inside = [
                (ms.Windowed(k, s, s + 10), v)
                for k, s, v in self.unexpired()
                if (low is None or k >= low) and (high is None or k <= high) and first <= s <= last
            ]
            self.visits["several keys"] += len({window.key for window, _ in inside}) > 1
            assert list(self.store.fetch_range(low, high, first, last)) == inside
            assert list(self.store.reverse_fetch_range(low, high, first, last)) == inside[::-1]
            if low is None and high is None:
                assert list(self.store.fetch_all(first, last)) == inside
                assert list(self.store.reverse_fetch_all(first, last)) == inside[::-1]

        @rule(key=keys, ago=back)
        def walk_while_changing(self, key: bytes, ago: int) -> None:
            before = self.everything()
            walk, first = self.store.all(), []
            first.extend([entry] if (entry := next(walk, None)) is not None else [])
            self.put(key, ago, 1)
            assert [*first, *walk] == before

        @invariant()
        def walks_like_the_model(self) -> None:
            assert list(self.store.all()) == self.everything()
            assert list(self.store.reverse_all()) == self.everything()[::-1]
            for key in KEYS:
                expected = [(s, v) for k, s, v in self.unexpired() if k == key]
                self.visits["fetched from several slices"] += len({s // SLICE for s, _ in expected}) > 1
                assert list(self.store.fetch(key, 0, FOREVER)) == expected

        def unexpired(self) -> list[tuple[bytes, int, int]]:
            unexpired = [entry for entry in self.entries if entry[1] >= self.oldest()]
            return sorted(unexpired, key=lambda entry: entry[1::-1] if by_time else entry[:2])

        def everything(self) -> list[tuple[ms.Windowed, int]]:
            return [(ms.Windowed(k, s, s + 10), v) for k, s, v in self.unexpired()]

    Windows.spec, Windows.make, Windows.visits = spec, staticmethod(make), visits
    return Windows


def session_machine(
    make: Callable[[], Engine], visits: Visits, *, by_time: bool = False, strict: bool = False
) -> type[Timed]:
    order: ms.stores.Order = "time" if by_time else "key"
    spec = ms.stores.session(
        STORE, ms.serdes.bytes, ms.serdes.int64, retention=RETENTION, order=order, strict=strict
    )

    class Sessions(Timed):
        def __init__(self) -> None:
            super().__init__()
            self.entries: list[Session] = []
            self.kept: list[Session] = []

        @rule(key=keys, ago=back, length=back, value=st.none() | values)
        def put(self, key: bytes, ago: int, length: int, value: int | None) -> None:
            session = ms.Windowed(key, max(self.now - ago - length, 0), self.now - ago)
            self.store.put(session, value)
            entry_key = (session.key, session.end, session.start)
            if value is None and not strict:
                self.time = max(self.time, session.end)
                self.forget(entry_key)
            elif self.accepts_put(session.end):
                self.forget(entry_key)
                if value is not None:
                    self.entries.append((*entry_key, value))

        @initialize(entries=st.lists(st.tuples(keys, back, back, values), max_size=12))
        def begin(self, entries: list[tuple[bytes, int, int, int]]) -> None:
            for entry in entries:
                self.put(*entry)
            self.commit()

        @rule(entries=st.lists(st.tuples(keys, back, back, values), min_size=2, max_size=6))
        def put_several(self, entries: list[tuple[bytes, int, int, int]]) -> None:
            for entry in entries:
                self.put(*entry)

        @rule(data=st.data())
        def remove(self, data: st.DataObject) -> None:
            if self.entries:
                key, end, start, _ = data.draw(st.sampled_from(self.entries))
                self.store.remove(ms.Windowed(key, start, end))
                self.visits["removed"] += 1
                self.forget((key, end, start))

        @rule(key=keys, ago=back, length=back)
        def find(self, key: bytes, ago: int, length: int) -> None:
            end, start = self.now - ago, self.now - ago + length
            expected = self.windowed(
                [e for e in self.unexpired() if e[0] == key and e[1] >= end and e[2] <= start]
            )
            self.visits["found some"] += bool(expected)
            assert list(self.store.find_sessions(key, end, start)) == expected
            assert list(self.store.reverse_find_sessions(key, end, start)) == expected[::-1]
            every = self.windowed([e for e in self.unexpired() if e[0] == key])
            assert list(self.store.fetch(key)) == every
            assert list(self.store.reverse_fetch(key)) == every[::-1]

        @rule(low=bounds, high=bounds, ago=back, length=back)
        def find_range(self, low: bytes | None, high: bytes | None, ago: int, length: int) -> None:
            end, start = self.now - ago, self.now - ago + length
            inside = [
                e for e in self.unexpired() if (low is None or e[0] >= low) and (high is None or e[0] <= high)
            ]
            found = self.windowed([e for e in inside if e[1] >= end and e[2] <= start])
            assert list(self.store.find_sessions_range(low, high, end, start)) == found
            assert list(self.store.reverse_find_sessions_range(low, high, end, start)) == found[::-1]
            assert list(self.store.fetch_range(low, high)) == self.windowed(inside)
            assert list(self.store.reverse_fetch_range(low, high)) == self.windowed(inside)[::-1]

        @rule(key=keys, ago=back, length=back)
        def walk_while_changing(self, key: bytes, ago: int, length: int) -> None:
            before = self.windowed(self.unexpired())
            walk = self.store.all()
            first = [entry for entry in (next(walk, None),) if entry is not None]
            self.put(key, ago, length, 1)
            assert [*first, *walk] == before

        @invariant()
        def walks_like_the_model(self) -> None:
            assert list(self.store.all()) == self.windowed(self.unexpired())
            assert list(self.store.reverse_all()) == self.windowed(self.unexpired())[::-1]
            for key, end, start, value in self.entries:
                expected = value if end >= self.oldest() else None
                assert self.store.fetch_session(key, start, end) == expected

        def forget(self, entry_key: tuple[bytes, int, int]) -> None:
            self.entries = [entry for entry in self.entries if entry[:3] != entry_key]

        def unexpired(self) -> list[Session]:
            unexpired = [entry for entry in self.entries if entry[1] >= self.oldest()]
            return sorted(unexpired, key=lambda entry: (entry[1], entry[0], -entry[2]) if by_time else entry)

        def windowed(self, entries: list[Session]) -> list[tuple[ms.Windowed, int]]:
            return [(ms.Windowed(key, start, end), value) for key, end, start, value in entries]

    Sessions.spec, Sessions.make, Sessions.visits = spec, staticmethod(make), visits
    return Sessions


@pytest.mark.parametrize(
    ("make", "kind"),
    [*each_engine(["by key", "by time", "duplicates"], "duplicates"), (Memory, "by time, strict")],
)
def test_a_window_store_behaves_like_a_sorted_list_of_unexpired_entries(
    make: Callable[[], Engine], kind: str
) -> None:
    visits = Visits()
    duplicates = kind == "duplicates"
    run_state_machine_as_test(
        window_machine(
            make, visits, duplicates=duplicates, by_time="by time" in kind, strict="strict" in kind
        ),
        settings=settings(max_examples=80),
    )
    visits.demand(
        **{
            "put out of order": 100,
            "put into an expired slice": 5,
            "put of an expired window": 5,
            "dropped slices": 5,
            "gave up": 50,
            "fetched from several slices": 5,
            "several keys": 20,
        }
    )
    assert duplicates or visits["put again"]


@pytest.mark.parametrize(("make", "kind"), [*each_engine(["by key"], "by key"), (Memory, "by time, strict")])
def test_a_session_store_behaves_like_a_sorted_list_of_unexpired_entries(
    make: Callable[[], Engine], kind: str
) -> None:
    visits = Visits()
    machine = session_machine(make, visits, by_time="by time" in kind, strict="strict" in kind)
    run_state_machine_as_test(machine, settings=settings(max_examples=80))
    visits.demand(
        **{
            "put out of order": 100,
            "put into an expired slice": 5,
            "put of an expired window": 5,
            "dropped slices": 5,
            "gave up": 50,
            "removed": 20,
            "found some": 10,
        }
    )
