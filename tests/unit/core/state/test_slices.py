"""Keys with times, and slices: where entries are stored, what expires with them, and how much a batch reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import millstream as ms
from millstream.core.model.errors import StoreError
from millstream.core.ports import ByteReader
from millstream.core.state.keys import entries_end, entry_prefix, pack_time, split
from millstream.core.state.memory import MemoryStores
from millstream.core.state.opening import open_store
from properties.store_harness import KEYS_WITH_COMMON_PREFIXES, StoreTask

TEXT, INT = ms.serdes.string, ms.serdes.int64
MINUTE = 60_000


class StoreReopener:
    """Opens a store again and again with the committed content."""

    def __init__(self) -> None:
        self.stores = MemoryStores()
        self.task = StoreTask()
        self.memory: dict[str, Any] = {}
        self.dropped: list[str] = []

    def open(self, spec: ms.stores.StoreSpec) -> Any:
        return open_store(spec, self.stores, self.task, self.memory)

    def commit(self, store: Any) -> None:
        changes, dropped = store.drain()
        self.stores.apply(changes, dropped)
        self.dropped.extend(dropped)
        self.memory = store.memory()


def sessions(retention: int) -> ms.stores.StoreSpec:
    return ms.stores.session("s", TEXT, INT, retention=retention)


def windows(retention: int) -> ms.stores.StoreSpec:
    return ms.stores.window("s", TEXT, INT, retention=retention, size=0)


class TestKeys:
    def test_keep_the_order_of_the_serialised_keys_then_of_time(self) -> None:
        entries = [
            entry_prefix(key) + pack_time(time)
            for key in sorted(KEYS_WITH_COMMON_PREFIXES)
            for time in (0, 1, (1 << 63) - 1)
        ]
        assert entries == sorted(entries)

    @pytest.mark.parametrize("key", KEYS_WITH_COMMON_PREFIXES)
    def test_of_one_record_key_form_one_range(self, key: bytes) -> None:
        for other in KEYS_WITH_COMMON_PREFIXES:
            for time in (0, 255, (1 << 63) - 1):
                inside = entry_prefix(key) <= entry_prefix(other) + pack_time(time) < entries_end(key)
                assert inside == (other == key)

    @pytest.mark.parametrize("key", KEYS_WITH_COMMON_PREFIXES)
    def test_can_be_split_into_record_key_and_time(self, key: bytes) -> None:
        assert split(entry_prefix(key) + b"12345678", 8) == (key, b"12345678")


class TestASlice:
    def test_is_a_byte_store_named_after_its_start(self) -> None:
        reopener = StoreReopener()
        store = reopener.open(windows(2 * MINUTE))
        for start in (0, MINUTE - 1, MINUTE, 2 * MINUTE + 5):
            store.put("a", 1, start)
        assert [*store.drain().changes] == ["s/0", "s/60000", "s/120000"]

    def test_is_dropped_when_no_read_can_see_its_last_moment(self) -> None:
        reopener = StoreReopener()
        store = reopener.open(windows(2 * MINUTE))
        store.put("a", 1, MINUTE - 1)
        store.put("a", 2, 3 * MINUTE - 2)
        assert [start for start, _ in store.fetch("a", 0, 9 * MINUTE)] == [MINUTE - 1, 3 * MINUTE - 2]
        store.put("a", 3, 3 * MINUTE - 1)
        assert [start for start, _ in store.fetch("a", 0, 9 * MINUTE)] == [3 * MINUTE - 2, 3 * MINUTE - 1]
        assert store.drain().dropped == ()
        store.put("a", 4, 3 * MINUTE)
        assert store.drain().dropped == ("s/0",)

    def test_that_has_expired_refuses_puts_and_counts_them(self) -> None:
        reopener = StoreReopener()
        store = reopener.open(windows(2 * MINUTE))
        store.put("a", 1, 3 * MINUTE)
        store.put("a", 2, MINUTE - 1)
        assert reopener.task.dropped == {"expired window": 1}
        store.put("a", 3, MINUTE)  # invisible, but its slice exists: not counted, as in Kafka Streams
        assert reopener.task.dropped == {"expired window": 1}
        assert [start for start, _ in store.fetch("a", 0, 9 * MINUTE)] == [3 * MINUTE]

    def test_of_sessions_is_chosen_by_their_ends(self) -> None:
        reopener = StoreReopener()
        store = reopener.open(sessions(2 * MINUTE))
        store.put(ms.Windowed("a", 0, 2 * MINUTE), 1)
        store.put(ms.Windowed("a", 0, MINUTE - 1), 1)
        assert {*store.drain().changes} == {"s/0", "s/120000"}
        store.put(ms.Windowed("a", 3 * MINUTE, 3 * MINUTE), 1)
        store.put(ms.Windowed("a", 5, MINUTE - 1), 1)
        assert reopener.task.dropped == {"expired session": 1}

    def test_that_was_written_and_expired_in_one_batch_leaves_no_entries(self) -> None:
        reopener = StoreReopener()
        store = reopener.open(windows(MINUTE))
        store.put("a", 1, 0)
        store.put("a", 2, 10 * MINUTE)
        drained = store.drain()
        assert ([*drained.changes], drained.dropped) == (["s/600000"], ("s/0",))

    def test_is_not_searched_for_when_time_jumps(self) -> None:
        """Only existing slices are dropped, however many would fit into the expired time."""
        reopener = StoreReopener()
        store = reopener.open(windows(MINUTE))
        store.put("a", 1, 0)
        reopener.commit(store)
        store = reopener.open(windows(MINUTE))
        store.put("a", 1, 1 << 50)
        reopener.commit(store)
        assert reopener.dropped == ["s/0"]


class TestAChangeOfRetention:
    @pytest.mark.parametrize(("before", "then"), [(2, 60), (60, 2), (10, 7), (2, 3)])
    def test_keeps_entries_readable_in_their_old_slices(self, before: int, then: int) -> None:
        reopener = StoreReopener()
        store = reopener.open(windows(before * MINUTE))
        starts = [minute * MINUTE for minute in range(100, 110)]
        for start in starts:
            store.put("a", 1, start)
        reopener.commit(store)
        store = reopener.open(windows(then * MINUTE))
        horizon = starts[-1] - min(before, then) * MINUTE
        found = [start for start, _ in store.fetch("a", 0, 200 * MINUTE)]
        assert [start for start in found if start > horizon] == [start for start in starts if start > horizon]
        more = [minute * MINUTE + 7 for minute in range(108, 140)]
        for start in more:
            store.put("a", 2, start)
            reopener.commit(store)
            store = reopener.open(windows(then * MINUTE))
        horizon = more[-1] - then * MINUTE
        expected = [start for start in sorted({*found, *more}) if start > horizon]
        assert [start for start, _ in store.fetch("a", 0, 200 * MINUTE)] == expected

    def test_does_not_bring_back_dropped_entries(self) -> None:
        reopener = StoreReopener()
        store = reopener.open(windows(MINUTE))
        store.put("a", 1, 0)
        reopener.commit(store)
        store = reopener.open(windows(MINUTE))
        store.put("a", 1, 5 * MINUTE)
        reopener.commit(store)
        assert reopener.dropped == ["s/0"]
        store = reopener.open(windows(60 * MINUTE))
        store.put("a", 2, 30_000)
        store.put("b", 2, MINUTE)
        assert reopener.task.dropped == {"expired window": 1}
        assert [(w.key, w.start) for w, _ in store.all()] == [("a", 5 * MINUTE), ("b", MINUTE)]
        reopener.commit(store)
        assert reopener.dropped == ["s/0"]

    def test_does_not_allow_versions_older_than_a_dropped_slice(self) -> None:
        reopener = StoreReopener()
        short, long = (
            ms.stores.versioned("s", TEXT, INT, history_retention=minutes * MINUTE) for minutes in (1, 60)
        )
        store = reopener.open(short)
        store.put("a", 1, 0)
        store.put("a", 2, 1)
        store.put("a", 3, 5 * MINUTE)
        reopener.commit(store)
        assert reopener.dropped == ["s/0"]
        store = reopener.open(long)
        assert store.put("a", 9, 2) is None
        assert store.get("a", 3) is None
        assert store.put("a", 9, MINUTE) == 5 * MINUTE
        assert store.get("a", MINUTE) == (9, MINUTE, 5 * MINUTE)


class TestTimes:
    @pytest.mark.parametrize("time", [-1, 1 << 63, 1.0, None])
    def test_that_are_invalid_are_refused(self, time: Any) -> None:
        reopener = StoreReopener()
        with pytest.raises(StoreError, match="store 's': the start of a window must be a number of ms"):
            reopener.open(windows(1)).put("a", 1, time)
        with pytest.raises(
            StoreError, match=r"store 's': the (start|end) of a session must be a number of ms"
        ):
            reopener.open(sessions(1)).put(ms.Windowed("a", time, time), 1)
        versions = ms.stores.versioned("s", TEXT, INT, history_retention=1)
        with pytest.raises(StoreError, match="store 's': a timestamp must be a number of ms"):
            reopener.open(versions).put("a", 1, time)

    def test_a_session_must_not_end_before_its_start(self) -> None:
        with pytest.raises(StoreError, match=r"a session must not end \(4\) before it starts \(5\)"):
            StoreReopener().open(sessions(1)).put(ms.Windowed("a", 5, 4), 1)

    def test_reads_accept_any_time_range(self) -> None:
        store = StoreReopener().open(windows(MINUTE))
        last = (1 << 63) - 1
        store.put("a", 1, last)
        assert list(store.fetch("a", -5, 1 << 80)) == [(last, 1)]
        assert list(store.fetch("a", 5, 4)) == []
        assert store.fetch("a", -1) is None
        assert list(store.fetch_all(-5, 1 << 80)) == [((("a", last, last)), 1)]


class CountingReader:
    def __init__(self, base: ByteReader, reads: list[bytes]) -> None:
        self._base, self._reads = base, reads

    def get(self, key: bytes) -> bytes | None:
        self._reads.append(key)
        return self._base.get(key)

    def scan(
        self, low: bytes | None, high: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        for key, value in self._base.scan(low, high, reverse=reverse):
            self._reads.append(key)
            yield key, value

    def approximate_count(self) -> int:
        return self._base.approximate_count()


class CountingStores(MemoryStores):
    """Records every key that is read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[bytes] = []

    def open(self, name: str) -> Any:
        return CountingReader(super().open(name), self.reads)

    def apply(self, changes: Any, dropped: Any = ()) -> None:
        for name, items in changes.items():
            super().open(name).apply(items)
        for name in dropped:
            super().open(name).clear()


WORK: dict[str, tuple[ms.stores.StoreSpec, Any]] = {
    "window": (
        windows(10 * MINUTE),
        lambda s, key, time_ms: (s.put(key, 1, time_ms), list(s.fetch(key, 0, time_ms))),
    ),
    "session": (
        sessions(10 * MINUTE),
        lambda s, key, time_ms: (s.put(ms.Windowed(key, time_ms, time_ms), 1), list(s.fetch(key))),
    ),
    "versioned": (
        ms.stores.versioned("s", TEXT, INT, history_retention=10 * MINUTE),
        lambda s, key, time_ms: (s.put(key, 1, time_ms), s.put(key, 2, time_ms - 7), s.get(key, time_ms - 1)),
    ),
    "ttl": (
        ms.stores.key_value("s", TEXT, INT, ttl=MINUTE),
        lambda s, key, time_ms: (s.put(key, 1), s.get(key)),
    ),
    "lru": (
        ms.stores.lru("s", TEXT, INT, capacity=5000),
        lambda s, key, time_ms: (s.put(key, 1), s.get(key)),
    ),
}


@pytest.mark.parametrize("kind", WORK)
def test_the_reads_of_a_batch_do_not_grow_with_the_store(kind: str) -> None:
    spec, use = WORK[kind]
    reads = {}
    for size in (50, 5000):
        reopener = StoreReopener()
        reopener.stores = CountingStores()
        reopener.task.stream_time = 10 * MINUTE
        for keys, time_ms in ((range(size), 11 * MINUTE), (range(3, 8), 12 * MINUTE + 1)):
            store = reopener.open(spec)
            reopener.stores.reads.clear()
            for key in keys:
                use(store, f"key-{key}", time_ms)
            reopener.commit(store)
            reopener.task.stream_time += 1
        reads[size] = len(reopener.stores.reads)
    assert reads[5000] <= reads[50] + 10, reads


def test_a_jump_of_time_removes_expired_entries_in_steps() -> None:
    spec = ms.stores.key_value("s", TEXT, INT, ttl=1000)
    reopener = StoreReopener()
    reopener.task.stream_time = 0
    store = reopener.open(spec)
    for number in range(2500):
        store.put(str(number), 1)
    reopener.commit(store)
    reopener.task.stream_time = 1000
    removed = []
    for _ in range(4):
        store = reopener.open(spec)
        assert list(store.all()) == []
        changes, _ = store.drain()
        removed.append(len(changes.get("s", ())))
        reopener.stores.apply(changes)
    assert removed == [1000, 1000, 500, 0]
    assert [reopener.stores.open(name).approximate_count() for name in ("s", "s/written")] == [0, 0]


def test_a_store_with_many_writes_removes_as_many_expired_entries_as_it_writes() -> None:
    spec = ms.stores.key_value("s", TEXT, INT, ttl=10)
    reopener = StoreReopener()
    for batch in range(6):
        reopener.task.stream_time = batch * 10
        store = reopener.open(spec)
        for number in range(3000):
            store.put(f"{batch}-{number}", 1)
        reopener.commit(store)
        assert reopener.stores.open("s").approximate_count() <= 6000
