"""KeyValueStore: the batch's own writes over the committed content."""

from __future__ import annotations

from typing import Any

import pytest

import millstream as ms
from millstream.core.model.errors import SerdeError, StoreError
from millstream.core.ports import StoreChange
from millstream.core.state.keyvalue import KeyValueStore
from millstream.core.state.memory import MemoryStores
from millstream.core.state.opening import open_store

TEXT, INT, JSON = ms.serdes.string, ms.serdes.int64, ms.serdes.json


def store_with(
    key: ms.Serde[Any] = TEXT, value: ms.Serde[Any] = INT, *, timestamped: bool = False, **committed: Any
) -> KeyValueStore[Any, Any]:
    spec = ms.stores.key_value("counts", key, value, timestamped=timestamped)
    stores = MemoryStores()
    first = open_store(spec, stores)
    first.put_all(committed.items())
    stores.apply(first.drain().changes)
    store: KeyValueStore[Any, Any] = open_store(spec, stores)
    return store


def changes(store: KeyValueStore[Any, Any]) -> list[StoreChange]:
    """Drain a store; a plain one has only its own byte store."""
    drained = store.drain()
    assert not drained.dropped
    return drained.changes.get("counts", [])


def test_own_writes_hide_committed_ones() -> None:
    store = store_with(a=1, b=2)
    store.put("a", 10)
    store.delete("b")
    store.put("c", 3)
    assert [store.get(key) for key in "abcd"] == [10, None, 3, None]
    assert list(store.all()) == [("a", 10), ("c", 3)]


def test_putting_none_deletes_the_key() -> None:
    store = store_with(a=1)
    store.put("a", None)
    assert store.get("a") is None
    assert changes(store) == [(b"a", None)]


def test_delete_returns_the_old_value() -> None:
    store = store_with(a=1)
    assert [store.delete("a"), store.delete("a"), store.delete("none")] == [1, None, None]


def test_put_if_absent_keeps_an_existing_value() -> None:
    store = store_with(a=1)
    assert [store.put_if_absent("a", 9), store.put_if_absent("b", 2), store.put_if_absent("b", 9)] == [
        1,
        None,
        2,
    ]
    assert list(store.all()) == [("a", 1), ("b", 2)]


def test_a_range_includes_both_ends() -> None:
    store = store_with(a=1, b=2, d=4)
    store.put("c", 3)
    assert [key for key, _ in store.range("b", "c")] == ["b", "c"]
    assert [key for key, _ in store.range(None, "b")] == ["a", "b"]
    assert [key for key, _ in store.range("bb", None)] == ["c", "d"]
    assert [key for key, _ in store.reverse_range("a", "c")] == ["c", "b", "a"]
    assert [key for key, _ in store.reverse_all()] == ["d", "c", "b", "a"]
    assert list(store.range("c", "b")) == []


def test_a_prefix_may_be_a_key_or_bytes() -> None:
    store = store_with(a=1, ab=2, b=3)
    store.put("abc", 4)
    assert [key for key, _ in store.prefix_scan("ab")] == ["ab", "abc"]
    assert [key for key, _ in store.prefix_scan(b"a")] == ["a", "ab", "abc"]
    assert [key for key, _ in store.prefix_scan(b"")] == ["a", "ab", "abc", "b"]


@pytest.mark.parametrize(
    ("prefix", "found"),
    [(b"\xff", [b"\xff", b"\xff\xff"]), (b"a\xff", [b"a\xff", b"a\xff\x00"]), (b"\xff\xff\xff", [])],
)
def test_a_prefix_may_end_with_the_largest_byte(prefix: bytes, found: list[bytes]) -> None:
    store = store_with(ms.serdes.bytes)
    store.put_all((key, 1) for key in (b"a", b"a\xff", b"a\xff\x00", b"b", b"\xff", b"\xff\xff"))
    assert [key for key, _ in store.prefix_scan(prefix)] == found


def test_the_order_is_that_of_the_serialised_keys() -> None:
    numbers = store_with(INT)
    numbers.put_all((number, 1) for number in (-1, 0, 1, 256))
    assert [key for key, _ in numbers.all()] == [
        0,
        1,
        256,
        -1,
    ]  # as in Kafka Streams: two's complement, big endian


def test_an_iterator_sees_only_writes_before_its_creation() -> None:
    store = store_with(a=1, b=2)
    store.put("c", 3)
    entries = store.all()
    store.put("a", 10)
    store.delete("c")
    store.put("d", 4)
    assert list(entries) == [("a", 1), ("b", 2), ("c", 3)]


def test_a_store_may_be_changed_while_it_is_iterated() -> None:
    store = store_with(a=1, b=2)
    for key, value in store.all():
        store.put(key + key, value)
        store.delete(key)
    assert list(store.all()) == [("aa", 1), ("bb", 2)]


def test_drain_returns_one_change_per_key_and_starts_again() -> None:
    store = store_with(a=1)
    for value in range(5):
        store.put("b", value)
    store.delete("a")
    store.delete("never-there")
    assert changes(store) == [(b"b", b"\0\0\0\0\0\0\0\x04"), (b"a", None), (b"never-there", None)]
    assert changes(store) == []


def test_the_count_is_approximate() -> None:
    store = store_with(a=1)
    store.put("a", 2)
    store.put("b", 2)
    assert store.approximate_count() == 3


class TestMutableObjects:
    def test_are_kept_as_they_were_put(self) -> None:
        store = store_with(value=JSON)
        items = [1]
        store.put("a", items)
        items.append(2)
        assert store.get("a") == [1]

    def test_that_get_returns_are_copies(self) -> None:
        store = store_with(value=JSON, a=[1])
        for _ in range(2):
            got = store.get("a")
            got.append(2)
            assert store.get("a") == [1]
            store.put("a", [1])

    def test_that_iterators_return_are_copies(self) -> None:
        store = store_with(value=JSON, a=[1])
        store.put("b", [2])
        for _, items in store.all():
            items.append(9)
        assert list(store.all()) == [("a", [1]), ("b", [2])]


class TestATimestampedStore:
    def test_returns_value_and_timestamp(self) -> None:
        store = store_with(timestamped=True, a=ms.ValueAndTimestamp(1, 10))
        store.put("b", (2, 20))
        assert store.get("a") == ms.ValueAndTimestamp(1, 10)
        got = store.get("b")
        assert isinstance(got, ms.ValueAndTimestamp)
        assert [(key, entry.value, entry.timestamp) for key, entry in store.all()] == [
            ("a", 1, 10),
            ("b", 2, 20),
        ]
        assert store.delete("a") == ms.ValueAndTimestamp(1, 10)
        assert store.get("a") is None

    def test_is_stored_as_in_kafka_streams(self) -> None:
        store = store_with(value=TEXT, timestamped=True)
        store.put("a", ("x", 1))
        assert changes(store) == [(b"a", b"\0\0\0\0\0\0\0\x01x")]

    def test_keeps_mutable_objects_as_they_were_put(self) -> None:
        store = store_with(value=JSON, timestamped=True)
        items = [1]
        store.put("a", (items, 5))
        items.append(2)
        assert store.get("a") == ([1], 5)


class TestErrors:
    @pytest.mark.parametrize("use", ["get", "delete"])
    def test_a_key_must_not_be_none(self, use: str) -> None:
        with pytest.raises(StoreError, match="store 'counts': a key must not be None"):
            getattr(store_with(), use)(None)
        with pytest.raises(StoreError, match="a key must not be None"):
            store_with().put(None, 1)

    def test_the_error_for_a_key_that_does_not_fit_names_the_store(self) -> None:
        with pytest.raises(SerdeError, match=r"^store 'counts': serdes\.string takes str, but got int 5"):
            store_with().get(5)

    @pytest.mark.parametrize("timestamped", [False, True])
    def test_a_value_of_another_type_is_refused_when_it_is_put(self, timestamped: bool) -> None:
        store = store_with(timestamped=timestamped)
        with pytest.raises(
            SerdeError, match=r"^store 'counts': serdes\.int64 takes an int of 64 bits, but got str 'five'"
        ):
            store.put("a", ("five", 1) if timestamped else "five")
        assert changes(store) == []

    def test_a_value_of_a_subclass_may_fit(self) -> None:
        class Name(str):
            pass

        store = store_with(value=TEXT)
        store.put("a", Name("x"))
        assert changes(store) == [(b"a", b"x")]

    def test_an_accepted_value_that_cannot_be_serialised_is_refused_with_its_key(self) -> None:
        def written(number: float) -> bytes:
            raise TypeError("no number at all")

        store = store_with(value=ms.serdes.of(written, float, name="wrong", immutable=True, accepts=(float,)))
        store.put("a", 1.5)
        with pytest.raises(
            SerdeError, match=r"^store 'counts', key b'a': TypeError: no number at all.*put in this"
        ):
            store.drain()

    def test_a_mutable_value_is_refused_at_once(self) -> None:
        with pytest.raises(SerdeError, match=r"serdes\.json cannot write set"):
            store_with(value=JSON).put("a", {1})

    def test_the_error_for_unreadable_stored_bytes_hints_at_a_changed_serde(self) -> None:
        stores = MemoryStores()
        stores.apply({"counts": [(b"a", b"abc")]})
        store = open_store(ms.stores.key_value("counts", TEXT, INT), stores)
        for read in (lambda: store.get("a"), lambda: list(store.all())):
            with pytest.raises(
                StoreError,
                match=r"store 'counts': 3 stored bytes cannot be read as int64 .* changed without a new store name\?",
            ):
                read()


@pytest.mark.parametrize(
    "spec",
    [
        ms.stores.key_value("s", ms.serdes.string, ms.serdes.int64),
        ms.stores.key_value("s", ms.serdes.string, ms.serdes.int64, ttl=1000),
        ms.stores.lru("s", ms.serdes.string, ms.serdes.int64, capacity=2),
    ],
)
def test_check_refuses_invalid_entries_without_putting_them(spec: Any) -> None:
    store = open_store(spec, MemoryStores())
    store.check("k", 1)
    store.check("k", None)
    with pytest.raises(SerdeError, match="int64"):
        store.check("k", "text")
    with pytest.raises(StoreError, match="must not be None"):
        store.check(None, 1)
    assert store.get("k") is None
