"""The contract that stores of every kind fulfil with every engine.

To test another kind, add it to `KINDS`; to test another engine, add it to `properties.engines.ENGINES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import millstream as ms
from millstream.core.model.errors import SerdeError, StoreError
from millstream.core.ports import store_of
from millstream.core.state.memory import MemoryStores
from millstream.core.state.opening import open_store
from millstream.core.topology import stores
from properties.engines import ENGINES, Engine
from properties.store_harness import KEYS_WITH_COMMON_PREFIXES, StoreHarness

TEXT, INT, JSON, BLOB = ms.serdes.string, ms.serdes.int64, ms.serdes.json, ms.serdes.bytes
TIME_MS = 100_000


@dataclass(frozen=True)
class Kind:
    """How tests use a kind of store, which has one value per key at one time.

    Attributes:
        spec: Returns a specification with these serdes.
        put: Sets the value of a key, None deletes it.
        get: Returns the value of a key.
        walk: Iterates over keys and values, forwards or backwards.
    """

    spec: Callable[..., stores.StoreSpec]
    put: Callable[[Any, Any, Any], object]
    get: Callable[[Any, Any], Any]
    walk: Callable[[Any, bool], Iterator[tuple[Any, Any]]]


def walk_pairs(store: Any, reverse: bool) -> Iterator[tuple[Any, Any]]:
    yield from store.reverse_all() if reverse else store.all()


def walk_windows(store: Any, reverse: bool) -> Iterator[tuple[Any, Any]]:
    return ((window.key, value) for window, value in walk_pairs(store, reverse))


def walk_versions(store: Any, reverse: bool) -> Iterator[tuple[Any, Any]]:
    return ((key, latest.value) for key, latest in walk_pairs(store, reverse))


def as_session(key: Any) -> ms.Windowed:
    return ms.Windowed(key, TIME_MS - 5, TIME_MS)


def version(store: Any, key: Any) -> Any:
    found = store.get(key)
    return None if found is None else found.value


def spec_with(spec: Callable[..., stores.StoreSpec], **options: Any) -> Callable[..., stores.StoreSpec]:
    return lambda *serdes: spec("counts", *serdes, **options)


ANY_KEY = Kind(
    spec_with(stores.key_value),
    lambda store, key, value: store.put(key, value),
    lambda store, key: store.get(key),
    lambda store, reverse: walk_pairs(store, reverse),
)
WINDOW = Kind(
    spec_with(stores.window, retention=50_000, size=10),
    lambda store, key, value: store.put(key, value, TIME_MS),
    lambda store, key: store.fetch(key, TIME_MS),
    walk_windows,
)
KINDS: dict[str, Kind] = {
    "key-value": ANY_KEY,
    "expiring": Kind(spec_with(stores.key_value, ttl=10), ANY_KEY.put, ANY_KEY.get, ANY_KEY.walk),
    "lru": Kind(spec_with(stores.lru, capacity=100), ANY_KEY.put, ANY_KEY.get, ANY_KEY.walk),
    "window": WINDOW,
    "session": Kind(
        spec_with(stores.session, retention=50_000),
        lambda store, key, value: store.put(as_session(key), value),
        lambda store, key: store.fetch_session(*as_session(key)),
        walk_windows,
    ),
    "versioned": Kind(
        spec_with(stores.versioned, history_retention=50_000),
        lambda store, key, value: store.put(key, value, TIME_MS),
        version,
        walk_versions,
    ),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture(params=ENGINES)
def make(request: pytest.FixtureRequest) -> Callable[[], Engine]:
    engine: Callable[[], Engine] = request.param
    return engine


@pytest.fixture
def open_harness(kind: Kind, make: Callable[[], Engine]) -> Iterator[Callable[..., StoreHarness]]:
    opened = []

    def open_with(key: ms.Serde[Any] = TEXT, value: ms.Serde[Any] = INT) -> StoreHarness:
        opened.append(StoreHarness(make, kind.spec(key, value)))
        return opened[-1]

    yield open_with
    for created in opened:
        created.close()


@pytest.fixture
def harness(open_harness: Callable[..., StoreHarness]) -> StoreHarness:
    return open_harness()


def walked(kind: Kind, harness: StoreHarness, *, reverse: bool = False) -> list[tuple[Any, Any]]:
    return list(kind.walk(harness.store, reverse))


def test_a_value_is_returned_in_the_batch_that_put_it_and_in_later_ones(
    kind: Kind, harness: StoreHarness
) -> None:
    kind.put(harness.store, "a", 1)
    kind.put(harness.store, "b", 2)
    kind.put(harness.store, "a", 3)
    for _ in range(3):
        assert [kind.get(harness.store, key) for key in ("a", "b", "c")] == [3, 2, None]
        harness.commit()


def test_putting_none_deletes_the_key(kind: Kind, harness: StoreHarness) -> None:
    for key in ("a", "b"):
        kind.put(harness.store, key, 1)
    harness.commit()
    kind.put(harness.store, "a", None)
    kind.put(harness.store, "c", None)
    for _ in range(2):
        assert [kind.get(harness.store, key) for key in ("a", "b", "c")] == [None, 1, None]
        harness.commit()


def test_an_abandoned_batch_leaves_nothing(kind: Kind, harness: StoreHarness) -> None:
    kind.put(harness.store, "a", 1)
    harness.commit()
    kind.put(harness.store, "a", 2)
    kind.put(harness.store, "b", 2)
    harness.give_up()
    assert [kind.get(harness.store, key) for key in ("a", "b")] == [1, None]


def test_a_batch_that_only_reads_changes_nothing(kind: Kind, harness: StoreHarness) -> None:
    kind.put(harness.store, "a", 1)
    harness.commit()
    kind.get(harness.store, "b")
    assert harness.store.drain() == ({}, ())


def test_iterators_merge_own_writes_and_committed_entries(kind: Kind, harness: StoreHarness) -> None:
    for key in ("a", "c", "e"):
        kind.put(harness.store, key, 1)
    harness.commit()
    for key, value in (("b", 2), ("c", 2), ("e", None), ("f", 2)):
        kind.put(harness.store, key, value)
    expected = [("a", 1), ("b", 2), ("c", 2), ("f", 2)]
    for _ in range(2):
        assert walked(kind, harness) == expected
        assert walked(kind, harness, reverse=True) == expected[::-1]
        harness.commit()


@pytest.mark.parametrize("reverse", [False, True])
def test_an_iterator_over_all_entries_ignores_later_changes(
    kind: Kind, harness: StoreHarness, reverse: bool
) -> None:
    kind.put(harness.store, "a", 1)
    kind.put(harness.store, "c", 1)
    harness.commit()
    kind.put(harness.store, "b", 1)
    walk = harness.store.reverse_all() if reverse else harness.store.all()
    for key, value in (("a", None), ("b", 5), ("d", 5)):
        kind.put(harness.store, key, value)
    expected = [("a", 1), ("b", 1), ("c", 1)]
    seen = [(getattr(key, "key", key), getattr(value, "value", value)) for key, value in walk]
    assert seen == (expected[::-1] if reverse else expected)


def test_a_store_may_be_changed_while_it_is_iterated(kind: Kind, harness: StoreHarness) -> None:
    for key in ("a", "b"):
        kind.put(harness.store, key, 1)
    for key, value in kind.walk(harness.store, False):
        kind.put(harness.store, key + key, value + 1)
        kind.put(harness.store, key, None)
    assert walked(kind, harness) == [("aa", 2), ("bb", 2)]


def test_keys_that_begin_with_each_other_are_kept_apart(
    kind: Kind, open_harness: Callable[..., StoreHarness]
) -> None:
    harness = open_harness(BLOB, INT)
    for number, key in enumerate(KEYS_WITH_COMMON_PREFIXES):
        kind.put(harness.store, key, number)
        for other in KEYS_WITH_COMMON_PREFIXES[number + 1 :]:
            assert kind.get(harness.store, other) is None
    for _ in range(2):
        assert [kind.get(harness.store, key) for key in KEYS_WITH_COMMON_PREFIXES] == list(
            range(len(KEYS_WITH_COMMON_PREFIXES))
        )
        in_order = sorted(zip(KEYS_WITH_COMMON_PREFIXES, range(len(KEYS_WITH_COMMON_PREFIXES)), strict=True))
        assert walked(kind, harness) == in_order
        assert walked(kind, harness, reverse=True) == in_order[::-1]
        harness.commit()


def test_mutable_objects_are_kept_as_they_were_put(
    kind: Kind, open_harness: Callable[..., StoreHarness]
) -> None:
    harness = open_harness(TEXT, JSON)
    items = [1]
    kind.put(harness.store, "a", items)
    items.append(2)
    for _ in range(2):
        for _ in range(2):
            got = kind.get(harness.store, "a")
            assert got == [1]
            got.append(3)
        harness.commit()


def test_byte_stores_are_named_after_the_store(kind: Kind, harness: StoreHarness) -> None:
    kind.put(harness.store, "a", 1)
    kind.get(harness.store, "a")
    assert {store_of(name) for name in harness.store.drain().changes} == {"counts"}


def test_a_key_must_not_be_none(kind: Kind, harness: StoreHarness) -> None:
    for use in (lambda: kind.put(harness.store, None, 1), lambda: kind.get(harness.store, None)):
        with pytest.raises(StoreError, match="store 'counts': a key must not be None"):
            use()


def test_the_error_for_a_key_that_does_not_fit_names_the_store(kind: Kind, harness: StoreHarness) -> None:
    with pytest.raises(SerdeError, match=r"^store 'counts': serdes\.string takes str, but got int 5"):
        kind.put(harness.store, 5, 1)


@pytest.mark.parametrize(("serde", "wrong"), [(INT, "five"), (JSON, {1})])
def test_a_value_that_does_not_fit_is_refused_and_leaves_the_store_as_it_was(
    kind: Kind, open_harness: Callable[..., StoreHarness], serde: ms.Serde[Any], wrong: Any
) -> None:
    harness = open_harness(TEXT, serde)
    kind.put(harness.store, "a", 1)
    before = harness.store.memory()
    with pytest.raises(SerdeError, match=r"^store 'counts': serdes\.(int64 takes an int|json cannot write)"):
        kind.put(harness.store, "a", wrong)
    assert kind.get(harness.store, "a") == 1
    assert harness.store.memory() == before
    harness.commit()
    assert kind.get(harness.store, "a") == 1


@pytest.mark.parametrize(
    ("serde", "value"),
    [(INT, 1 << 63), (ms.serdes.int32, 1 << 31), (ms.serdes.int16, -(1 << 15) - 1), (TEXT, "\ud83d")],
)
def test_a_number_with_too_many_bits_and_text_with_a_surrogate_are_refused_at_once(
    kind: Kind, make: Callable[[], Engine], serde: ms.Serde[Any], value: Any
) -> None:
    harness = StoreHarness(make, kind.spec(TEXT, serde))
    with pytest.raises(SerdeError, match=rf"^store 'counts': serdes\.{serde.name} takes "):
        kind.put(harness.store, "a", value)
    harness.store.drain()


@pytest.mark.parametrize("serde", [INT, JSON])
def test_a_timestamped_store_returns_value_and_timestamp(
    kind: Kind, make: Callable[[], Engine], serde: ms.Serde[Any]
) -> None:
    if kind is KINDS["versioned"]:
        return
    spec = kind.spec(TEXT, serde)
    harness = StoreHarness(make, type(spec)(**{**vars(spec), "timestamped": True}))
    kind.put(harness.store, "a", ms.ValueAndTimestamp(1, 10))
    kind.put(harness.store, "b", (2, 20))
    for _ in range(2):
        assert kind.get(harness.store, "a") == ms.ValueAndTimestamp(1, 10)
        assert isinstance(kind.get(harness.store, "b"), ms.ValueAndTimestamp)
        assert [(key, *value) for key, value in walked(kind, harness)] == [("a", 1, 10), ("b", 2, 20)]
        harness.commit()
    with pytest.raises(SerdeError, match="store 'counts' is timestamped: put ValueAndTimestamp"):
        kind.put(harness.store, "a", 5)
    harness.close()


def serialize_unless_negative(number: int) -> bytes | None:
    """Serialise a number; a negative number becomes None, which deletes its key."""
    return None if number < 0 else ms.serdes.int64.serialize(number)


def nullable_serde(**options: Any) -> ms.Serde[Any]:
    # The public type does not permit None, which a serde of a user may return anyway.
    return ms.serdes.of(serialize_unless_negative, ms.serdes.int64.deserialize, name="some", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("timestamped", [False, True])
@pytest.mark.parametrize("immutable", [False, True])
@pytest.mark.parametrize("cut", [False, True])
def test_a_value_that_is_serialised_to_none_deletes_its_key_at_once(
    kind: Kind, make: Callable[[], Engine], immutable: bool, timestamped: bool, cut: bool
) -> None:
    if timestamped and kind is KINDS["versioned"]:
        return
    spec = kind.spec(TEXT, nullable_serde(immutable=immutable))
    harness = StoreHarness(make, type(spec)(**{**vars(spec), "timestamped": True}) if timestamped else spec)

    def put(key: str, value: int) -> None:
        kind.put(harness.store, key, ms.ValueAndTimestamp(value, 1) if timestamped else value)

    for key in ("a", "b"):
        put(key, 1)
    if cut:
        harness.commit()
    put("a", -1)
    put("c", -1)
    for _ in range(2):
        found = [kind.get(harness.store, key) for key in ("a", "b", "c")]
        assert found == [None, (1, 1) if timestamped else 1, None]
        assert [key for key, _ in walked(kind, harness)] == ["b"]
        harness.commit()
    harness.close()


def test_an_accepted_type_must_not_be_serialised_to_none(
    kind: Kind, open_harness: Callable[..., StoreHarness]
) -> None:
    harness = open_harness(TEXT, nullable_serde(immutable=True, accepts=(int,)))
    kind.put(harness.store, "a", -1)
    with pytest.raises(
        SerdeError, match=r"store 'counts', key b'a.*: TypeError: serdes\.some lists the type"
    ):
        harness.store.drain()


def test_an_lru_store_does_not_count_values_that_are_serialised_to_none() -> None:
    harness = StoreHarness(ENGINES[0], stores.lru("counts", TEXT, nullable_serde(immutable=True), capacity=1))
    harness.store.put("a", 1)
    harness.store.put("b", -1)
    assert (harness.store.get("a"), harness.store.approximate_count()) == (1, 1)
    harness.store.put("a", -1)
    assert harness.store.approximate_count() == 0


ITERATORS: dict[str, tuple[Callable[..., stores.StoreSpec], dict[str, tuple[Any, ...]]]] = {
    **{
        name: (
            spec,
            {
                "all": (),
                "reverse_all": (),
                "range": ("a", "z"),
                "reverse_range": ("a", "z"),
                "prefix_scan": (b"",),
            },
        )
        for name, spec in {
            "key-value": spec_with(stores.key_value),
            "expiring": spec_with(stores.key_value, ttl=10),
            "lru": spec_with(stores.lru, capacity=100),
        }.items()
    },
    **{
        f"window by {order}": (
            spec_with(stores.window, retention=50_000, size=10, order=order),
            {
                "all": (),
                "reverse_all": (),
                "fetch": ("k", 0, 2 * TIME_MS),
                "reverse_fetch": ("k", 0, 2 * TIME_MS),
                "fetch_range": ("a", "z", 0, 2 * TIME_MS),
                "reverse_fetch_range": ("a", "z", 0, 2 * TIME_MS),
                "fetch_all": (0, 2 * TIME_MS),
                "reverse_fetch_all": (0, 2 * TIME_MS),
            },
        )
        for order in ("key", "time")
    },
    **{
        f"session by {order}": (
            spec_with(stores.session, retention=50_000, order=order),
            {
                "all": (),
                "reverse_all": (),
                "fetch": ("k",),
                "reverse_fetch": ("k",),
                "fetch_range": ("a", "z"),
                "reverse_fetch_range": ("a", "z"),
                "find_sessions": ("k", 0, 2 * TIME_MS),
                "reverse_find_sessions": ("k", 0, 2 * TIME_MS),
                "find_sessions_range": ("a", "z", 0, 2 * TIME_MS),
                "reverse_find_sessions_range": ("a", "z", 0, 2 * TIME_MS),
            },
        )
        for order in ("key", "time")
    },
}


def test_every_method_that_iterates_is_in_the_table_of_iterators() -> None:
    for name, (spec, methods) in ITERATORS.items():
        store = StoreHarness(ENGINES[0], spec(TEXT, INT)).store
        words = ("all", "range", "scan", "fetch", "find_sessions")
        public = {found for found in dir(store) if not found.startswith("_") and found.endswith(words)}
        single_key = {"put_all", "fetch"} if hasattr(store, "get") else set()
        assert public - single_key == set(methods), name


@pytest.mark.parametrize(
    ("spec", "method", "arguments"),
    [
        pytest.param(spec, method, arguments, id=f"{name}-{method}")
        for name, (spec, methods) in ITERATORS.items()
        for method, arguments in methods.items()
    ],
)
@pytest.mark.parametrize(("committed", "value"), [(False, INT), (True, JSON)], ids=["objects", "bytes"])
def test_every_iterator_shows_the_store_as_it_was_when_the_iterator_was_created(
    make: Callable[[], Engine],
    spec: Callable[..., stores.StoreSpec],
    method: str,
    arguments: tuple[Any, ...],
    committed: bool,
    value: ms.Serde[Any],
) -> None:
    harness = StoreHarness(make, spec(TEXT, value))
    kind = type(harness.store).__name__

    def put(number: int, content: int | None) -> None:
        if kind == "WindowStore":
            harness.store.put("k", content, TIME_MS + number)
        elif kind == "SessionStore":
            harness.store.put(ms.Windowed("k", TIME_MS + number, TIME_MS + number), content)
        else:
            harness.store.put(f"k{number}", content)

    for number in (1, 3, 5):
        put(number, number)
    if committed:
        harness.commit()
    unstarted = getattr(harness.store, method)(*arguments)
    started = getattr(harness.store, method)(*arguments)
    first = next(started)
    for number, content in ((0, 0), (1, None), (2, 2), (3, 33), (5, None), (6, 6)):
        put(number, content)
    expected = [5, 3, 1] if method.startswith("reverse") else [1, 3, 5]
    assert [content for _, content in unstarted] == expected
    assert [content for _, content in (first, *started)] == expected
    harness.close()


@pytest.mark.parametrize("order", ["key", "time"])
def test_sessions_of_all_keys_are_found_by_their_ends(make: Callable[[], Engine], order: str) -> None:
    harness = StoreHarness(make, stores.session("counts", TEXT, INT, retention=50_000, order=order))
    for key, start, end in (("b", 0, 5), ("a", 2, 20), ("c", 9, 9), ("a", 30_000, 30_000)):
        harness.store.put(ms.Windowed(key, start, end), end)
    for _ in range(2):
        found = [value for _, value in harness.store.find_sessions(6, 20)]
        assert found == ([20, 9] if order == "key" else [9, 20])
        assert [value for _, value in harness.store.find_sessions(21, 20)] == []
        assert [value for _, value in harness.store.find_sessions(20_000, 1 << 63)] == [30_000]
        harness.commit()
    harness.close()


def test_a_session_must_not_be_none() -> None:
    store = StoreHarness(ENGINES[0], KINDS["session"].spec(TEXT, INT)).store
    for use in (lambda: store.put(None, 1), lambda: store.remove(None)):
        with pytest.raises(StoreError, match="store 'counts': a key must not be None"):
            use()


def test_a_window_at_the_largest_timestamp_ends_there() -> None:
    last = (1 << 63) - 1
    store = StoreHarness(ENGINES[0], stores.window("counts", TEXT, INT, retention=50_000, size=10)).store
    store.put("a", 1, last - 5)
    assert [(window.start, window.end) for window, _ in store.all()] == [(last - 5, last)]
    serde = ms.serdes.time_windowed(TEXT, 10)
    assert serde.deserialize(serde.serialize(ms.Windowed("a", last - 5, last))).end == last


def test_duplicates_are_numbered_with_31_bits() -> None:
    spec = stores.window("counts", TEXT, INT, retention=50_000, size=10, retain_duplicates=True)
    numbers = []
    for count in ((1 << 30) - 1, (1 << 31) - 2, (1 << 31) - 1):
        store: Any = open_store(spec, MemoryStores(), memory={"count": count})
        store.put("a", 1, 5)
        numbers.append(store.memory()["count"])
    assert numbers == [1 << 30, (1 << 31) - 1, 0]


def test_a_version_has_the_time_until_which_it_is_valid() -> None:
    harness = StoreHarness(ENGINES[0], KINDS["versioned"].spec(TEXT, INT))
    for time_ms in (10, 20, 30):
        harness.store.put("a", time_ms, time_ms)
    for _ in range(2):
        assert harness.store.get("a", 15) == ms.VersionedRecord(10, 10, valid_to=20)
        assert harness.store.get("a") == ms.VersionedRecord(30, 30, valid_to=None)
        harness.commit()
    harness.store.delete("a", 40)
    assert harness.store.get("a", 35) == ms.VersionedRecord(30, 30, valid_to=40)
