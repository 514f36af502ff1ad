"""The store in memory: scans, many changes at once, and its size."""

from __future__ import annotations

from millstream.core.state.memory import MemoryStore, MemoryStores


def test_a_scan_shows_the_content_at_its_start() -> None:
    store = MemoryStore()
    store.apply([(b"b", b"2"), (b"a", b"1")])
    scan = store.scan(None, None)
    store.apply([(b"a", None), (b"c", b"3")])
    assert list(scan) == [(b"a", b"1"), (b"b", b"2")]
    assert list(store.scan(None, None, reverse=True)) == [(b"c", b"3"), (b"b", b"2")]


def test_many_changes_after_and_between_the_keys_are_in_order() -> None:
    store = MemoryStore()
    for numbers in (range(100, 200), range(299, 199, -1), range(0, 400, 2)):
        store.apply([(b"%04d" % number, b"") for number in numbers])
    keys = [key for key, _ in store.scan(None, None)]
    assert keys == [b"%04d" % number for number in sorted({*range(100, 300), *range(0, 400, 2)})]


def test_the_size_of_a_store_follows_its_content() -> None:
    store = MemoryStore()
    sizes = [store.size]
    for change in (
        (b"key", b"1"),
        (b"key", b"123"),
        (b"longer key", b"123"),
        (b"key", None),
        (b"none", None),
    ):
        store.apply([change])
        sizes.append(store.size)
    empty, first, larger, both, left, same = sizes
    assert (empty, larger - first, both - larger - larger, left - larger) == (0, 2, 7, 7)
    assert (first > len(b"key1"), same) == (True, left)
    store.clear()
    assert store.size == 0


def test_many_keys_before_the_last_one_are_in_order() -> None:
    store = MemoryStore()
    store.apply([(b"a", b""), (b"z", b"")])
    added = [b"m%03d" % number for number in range(100)]
    store.apply([(key, b"") for key in added])
    assert [key for key, _ in store.scan(None, None)] == [b"a", *added, b"z"]


def test_a_dropped_slice_is_empty() -> None:
    stores = MemoryStores()
    stores.apply({"kept": [(b"a", b"")], "dropped": [(b"a", b"")]})
    stores.apply({}, ["dropped"])
    assert (stores.names(), stores.open("dropped").get(b"a")) == ({"kept"}, None)
