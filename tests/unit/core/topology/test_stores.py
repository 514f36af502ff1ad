"""Options of stores: fingerprints, and values that are refused."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import millstream as ms
from millstream.core.model.errors import TopologyError

TEXT, INT = ms.serdes.string, ms.serdes.int64
HOUR = timedelta(hours=1)

KINDS: dict[str, Callable[..., ms.stores.StoreSpec]] = {
    "key-value": lambda *args, **options: ms.stores.key_value(*args, **options),
    "expiring-key-value": lambda *args, **options: ms.stores.key_value(*args, ttl=HOUR, **options),
    "lru": lambda *args, **options: ms.stores.lru(*args, capacity=10, **options),
    "window": lambda *args, **options: ms.stores.window(*args, retention=HOUR, size=1000, **options),
    "window-with-duplicates": lambda *args, **options: ms.stores.window(
        *args, retention=HOUR, size=1000, retain_duplicates=True, **options
    ),
    "session": lambda *args, **options: ms.stores.session(*args, retention=HOUR, **options),
    "versioned": lambda *args, **options: ms.stores.versioned(*args, history_retention=HOUR, **options),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def test_the_fingerprint_contains_what_must_not_change(kind: str) -> None:
    plain = KINDS[kind]("s", TEXT, INT)
    assert plain.fingerprint == f"{kind} string -> int64"
    assert KINDS[kind]("other", TEXT, INT).fingerprint == plain.fingerprint
    if kind != "versioned":
        stamped = KINDS[kind]("s", TEXT, INT, timestamped=True)
        assert stamped.fingerprint == f"timestamped-{kind} string -> int64"


def test_the_fingerprint_does_not_depend_on_the_engine_or_the_changelog(kind: str) -> None:
    moved = KINDS[kind]("s", TEXT, INT, engine="rocksdb", changelog="kafka")
    assert moved.fingerprint == KINDS[kind]("s", TEXT, INT).fingerprint
    assert (moved.engine, moved.changelog) == ("rocksdb", "kafka")


@pytest.mark.parametrize(
    ("original", "changed"),
    [
        (ms.stores.key_value("s", TEXT, INT, ttl=1), ms.stores.key_value("s", TEXT, INT, ttl=2)),
        (ms.stores.lru("s", TEXT, INT, capacity=1), ms.stores.lru("s", TEXT, INT, capacity=2)),
        (
            ms.stores.window("s", TEXT, INT, retention=9, size=1),
            ms.stores.window("s", TEXT, INT, retention=8, size=2),
        ),
        (ms.stores.session("s", TEXT, INT, retention=1), ms.stores.session("s", TEXT, INT, retention=2)),
        (
            ms.stores.versioned("s", TEXT, INT, history_retention=1),
            ms.stores.versioned("s", TEXT, INT, history_retention=2),
        ),
    ],
)
def test_the_fingerprint_does_not_depend_on_durations_and_capacities(
    original: ms.stores.StoreSpec, changed: ms.stores.StoreSpec
) -> None:
    assert original.fingerprint == changed.fingerprint
    assert original != changed


def test_slices_cover_half_the_retention_but_at_least_a_minute() -> None:
    lengths = [ms.stores.session("s", TEXT, INT, retention=r).slice_ms for r in (0, 120_000, HOUR)]
    assert lengths == [60_000, 60_000, 1_800_000]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ms.stores.key_value("a/b", TEXT, INT), "'a/b' cannot be the name of a store"),
        (lambda: ms.stores.key_value("s", TEXT, INT, ttl=0), "store 's': ttl must be at least 1 ms, not 0"),
        (lambda: ms.stores.lru("s", TEXT, INT, capacity=0), "store 's': capacity must be at least 1, not 0"),
        (
            lambda: ms.stores.window("s", TEXT, INT, retention=9, size=10),
            "store 's': retention must be at least 10 ms, not 9; windows would expire before they end",
        ),
        (
            lambda: ms.stores.window("s", TEXT, INT, retention=9, size=-1),
            "size must be at least 0 ms, not -1",
        ),
        (lambda: ms.stores.session("s", TEXT, INT, retention=-1), "retention must be at least 0 ms, not -1"),
        (
            lambda: ms.stores.key_value("s", TEXT, INT, engine="redis"),  # type: ignore[arg-type]
            "store 's': engine must be one of None, 'lmdb', 'rocksdb', 'memory', not 'redis'",
        ),
        (
            lambda: ms.stores.key_value("s", TEXT, INT, changelog=True),  # type: ignore[arg-type]
            "store 's': changelog must be one of 'spark', 'kafka', not True",
        ),
    ],
)
def test_an_invalid_option_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        make()


def test_a_duration_must_be_a_timedelta_or_an_int() -> None:
    with pytest.raises(TypeError, match="a duration must be"):
        ms.stores.session("s", TEXT, INT, retention=1.5)  # type: ignore[arg-type]


def test_duplicates_cannot_be_stored_in_the_order_of_time() -> None:
    with pytest.raises(TopologyError, match="store 's': duplicates need order='key'"):
        ms.stores.window("s", TEXT, INT, retention=10, size=10, retain_duplicates=True, order="time")


def test_the_order_must_be_by_key_or_by_time() -> None:
    with pytest.raises(TopologyError, match="store 's': order must be one of 'key', 'time', not 'start'"):
        ms.stores.session("s", TEXT, INT, retention=10, order="start")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["window", "window-with-duplicates", "session"])
@pytest.mark.parametrize("internal", ["with_open", "expired", "windows"])
def test_options_that_only_operators_set_are_not_accepted(kind: str, internal: str) -> None:
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{internal}'"):
        KINDS[kind]("s", TEXT, INT, **{internal: True})


def test_stores_in_the_order_of_time_have_another_kind() -> None:
    assert ms.stores.session("s", TEXT, INT, retention=10, order="time").kind == "session-by-time"
    assert ms.stores.window("s", TEXT, INT, retention=10, size=10, order="time").kind == "window-by-time"
