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


def store(
    key: ms.Serde[Any] = TEXT, value: ms.Serde[Any] = INT, *, timestamped: bool = False, **committed: Any
) -> KeyValueStore[Any, Any]:
    spec = ms.stores.key_value("shelf", key, value, timestamped=timestamped)
    stores = MemoryStores()
    first = open_store(spec, stores)
    first.put_all(committed.items())
    stores.apply(first.drain().changes)
    shelf: KeyValueStore[Any, Any] = open_store(spec, stores)
    return shelf


def changes(shelf: KeyValueStore[Any, Any]) -> list[StoreChange]:
    """Drain a store; a plain one has only its own byte store."""
    drained = shelf.drain()
    assert not drained.dropped
    return drained.changes.get("shelf", [])


def test_own_writes_hide_committed_ones() -> None:
    shelf = store(a=1, b=2)
    shelf.put("a", 10)
    shelf.delete("b")
    shelf.put("c", 3)
    assert [shelf.get(key) for key in "abcd"] == [10, None, 3, None]
    assert list(shelf.all()) == [("a", 10), ("c", 3)]


def test_put_none_deletes() -> None:
    shelf = store(a=1)
    shelf.put("a", None)
    assert shelf.get("a") is None
    assert changes(shelf) == [(b"a", None)]


def test_delete_gives_what_was_there() -> None:
    shelf = store(a=1)
    assert [shelf.delete("a"), shelf.delete("a"), shelf.delete("none")] == [1, None, None]


def test_put_if_absent_leaves_what_is_there() -> None:
    shelf = store(a=1)
    assert [shelf.put_if_absent("a", 9), shelf.put_if_absent("b", 2), shelf.put_if_absent("b", 9)] == [
        1,
        None,
        2,
    ]
    assert list(shelf.all()) == [("a", 1), ("b", 2)]


def test_a_range_has_both_its_ends() -> None:
    shelf = store(a=1, b=2, d=4)
    shelf.put("c", 3)
    assert [key for key, _ in shelf.range("b", "c")] == ["b", "c"]
    assert [key for key, _ in shelf.range(None, "b")] == ["a", "b"]
    assert [key for key, _ in shelf.range("bb", None)] == ["c", "d"]
    assert [key for key, _ in shelf.reverse_range("a", "c")] == ["c", "b", "a"]
    assert [key for key, _ in shelf.reverse_all()] == ["d", "c", "b", "a"]
    assert list(shelf.range("c", "b")) == []


def test_a_prefix_may_be_a_key_or_bytes() -> None:
    shelf = store(a=1, ab=2, b=3)
    shelf.put("abc", 4)
    assert [key for key, _ in shelf.prefix_scan("ab")] == ["ab", "abc"]
    assert [key for key, _ in shelf.prefix_scan(b"a")] == ["a", "ab", "abc"]
    assert [key for key, _ in shelf.prefix_scan(b"")] == ["a", "ab", "abc", "b"]


@pytest.mark.parametrize(
    ("prefix", "found"),
    [(b"\xff", [b"\xff", b"\xff\xff"]), (b"a\xff", [b"a\xff", b"a\xff\x00"]), (b"\xff\xff\xff", [])],
)
def test_a_prefix_of_the_largest_bytes(prefix: bytes, found: list[bytes]) -> None:
    shelf = store(ms.serdes.bytes)
    shelf.put_all((key, 1) for key in (b"a", b"a\xff", b"a\xff\x00", b"b", b"\xff", b"\xff\xff"))
    assert [key for key, _ in shelf.prefix_scan(prefix)] == found


def test_the_order_is_that_of_the_serialised_keys() -> None:
    numbers = store(INT)
    numbers.put_all((number, 1) for number in (-1, 0, 1, 256))
    assert [key for key, _ in numbers.all()] == [
        0,
        1,
        256,
        -1,
    ]  # as in Kafka Streams: two's complement, big endian


def test_an_iterator_sees_the_writes_up_to_its_making() -> None:
    shelf = store(a=1, b=2)
    shelf.put("c", 3)
    entries = shelf.all()
    shelf.put("a", 10)
    shelf.delete("c")
    shelf.put("d", 4)
    assert list(entries) == [("a", 1), ("b", 2), ("c", 3)]


def test_a_store_may_be_changed_while_it_is_walked() -> None:
    shelf = store(a=1, b=2)
    for key, value in shelf.all():
        shelf.put(key + key, value)
        shelf.delete(key)
    assert list(shelf.all()) == [("aa", 1), ("bb", 2)]


def test_drain_gives_one_change_per_key_and_begins_anew() -> None:
    shelf = store(a=1)
    for value in range(5):
        shelf.put("b", value)
    shelf.delete("a")
    shelf.delete("never-there")
    assert changes(shelf) == [(b"b", b"\0\0\0\0\0\0\0\x04"), (b"a", None), (b"never-there", None)]
    assert changes(shelf) == []


def test_the_count_is_approximate() -> None:
    shelf = store(a=1)
    shelf.put("a", 2)
    shelf.put("b", 2)
    assert shelf.approximate_count() == 3


class TestObjectsThatCanChange:
    def test_are_kept_as_they_were_put(self) -> None:
        shelf = store(value=JSON)
        items = [1]
        shelf.put("a", items)
        items.append(2)
        assert shelf.get("a") == [1]

    def test_that_were_got_are_copies(self) -> None:
        shelf = store(value=JSON, a=[1])
        for _ in range(2):
            got = shelf.get("a")
            got.append(2)
            assert shelf.get("a") == [1]
            shelf.put("a", [1])

    def test_that_were_walked_are_copies(self) -> None:
        shelf = store(value=JSON, a=[1])
        shelf.put("b", [2])
        for _, items in shelf.all():
            items.append(9)
        assert list(shelf.all()) == [("a", [1]), ("b", [2])]


class TestTimestamped:
    def test_gives_value_and_timestamp(self) -> None:
        shelf = store(timestamped=True, a=ms.ValueAndTimestamp(1, 10))
        shelf.put("b", (2, 20))
        assert shelf.get("a") == ms.ValueAndTimestamp(1, 10)
        got = shelf.get("b")
        assert isinstance(got, ms.ValueAndTimestamp)
        assert [(key, entry.value, entry.timestamp) for key, entry in shelf.all()] == [
            ("a", 1, 10),
            ("b", 2, 20),
        ]
        assert shelf.delete("a") == ms.ValueAndTimestamp(1, 10)
        assert shelf.get("a") is None

    def test_is_stored_as_kafka_streams_does(self) -> None:
        shelf = store(value=TEXT, timestamped=True)
        shelf.put("a", ("x", 1))
        assert changes(shelf) == [(b"a", b"\0\0\0\0\0\0\0\x01x")]

    def test_of_objects_that_can_change(self) -> None:
        shelf = store(value=JSON, timestamped=True)
        items = [1]
        shelf.put("a", (items, 5))
        items.append(2)
        assert shelf.get("a") == ([1], 5)


class TestErrors:
    @pytest.mark.parametrize("use", ["get", "delete"])
    def test_a_key_is_never_none(self, use: str) -> None:
        with pytest.raises(StoreError, match="store 'shelf': a key must not be None"):
            getattr(store(), use)(None)
        with pytest.raises(StoreError, match="a key must not be None"):
            store().put(None, 1)

    def test_a_key_that_does_not_fit_names_the_store(self) -> None:
        with pytest.raises(SerdeError, match=r"^store 'shelf': serdes\.string takes str, but got int 5"):
            store().get(5)

    @pytest.mark.parametrize("timestamped", [False, True])
    def test_a_value_of_another_type_is_told_when_it_is_put(self, timestamped: bool) -> None:
        shelf = store(timestamped=timestamped)
        with pytest.raises(
            SerdeError, match=r"^store 'shelf': serdes\.int64 takes an int of 64 bits, but got str 'five'"
        ):
            shelf.put("a", ("five", 1) if timestamped else "five")
        assert changes(shelf) == []

    def test_a_value_of_another_type_may_fit(self) -> None:
        class Name(str):
            pass

        shelf = store(value=TEXT)
        shelf.put("a", Name("x"))
        assert changes(shelf) == [(b"a", b"x")]

    def test_a_value_whose_type_fits_and_whose_size_does_not_is_told_with_its_key(self) -> None:
        shelf = store()
        shelf.put("a", 1 << 64)
        with pytest.raises(
            SerdeError, match=r"^store 'shelf', key b'a': serdes\.int64 takes an int of 64 bits.*put in this"
        ):
            shelf.drain()

    def test_a_value_that_can_change_is_told_at_once(self) -> None:
        with pytest.raises(SerdeError, match=r"serdes\.json cannot write set"):
            store(value=JSON).put("a", {1})

    def test_stored_bytes_that_do_not_fit_hint_at_the_serde(self) -> None:
        stores = MemoryStores()
        stores.apply({"shelf": [(b"a", b"abc")]})
        shelf = open_store(ms.stores.key_value("shelf", TEXT, INT), stores)
        for read in (lambda: shelf.get("a"), lambda: list(shelf.all())):
            with pytest.raises(
                StoreError,
                match=r"store 'shelf': 3 stored bytes cannot be read as int64 .* changed without a new store name\?",
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
def test_what_could_not_be_put_is_refused_without_putting(spec: Any) -> None:
    store = open_store(spec, MemoryStores())
    store.check("k", 1)
    store.check("k", None)
    with pytest.raises(SerdeError, match="int64"):
        store.check("k", "text")
    with pytest.raises(StoreError, match="must not be None"):
        store.check(None, 1)
    assert store.get("k") is None
