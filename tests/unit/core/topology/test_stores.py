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
    "key-value": lambda *given, **more: ms.stores.key_value(*given, **more),
    "expiring-key-value": lambda *given, **more: ms.stores.key_value(*given, ttl=HOUR, **more),
    "lru": lambda *given, **more: ms.stores.lru(*given, capacity=10, **more),
    "window": lambda *given, **more: ms.stores.window(*given, retention=HOUR, size=1000, **more),
    "window-with-duplicates": lambda *given, **more: ms.stores.window(
        *given, retention=HOUR, size=1000, retain_duplicates=True, **more
    ),
    "session": lambda *given, **more: ms.stores.session(*given, retention=HOUR, **more),
    "versioned": lambda *given, **more: ms.stores.versioned(*given, history_retention=HOUR, **more),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def test_the_fingerprint_shows_what_must_not_change(kind: str) -> None:
    plain = KINDS[kind]("s", TEXT, INT)
    assert plain.fingerprint == f"{kind} string -> int64"
    assert KINDS[kind]("other", TEXT, INT).fingerprint == plain.fingerprint
    if kind != "versioned":
        stamped = KINDS[kind]("s", TEXT, INT, timestamped=True)
        assert stamped.fingerprint == f"timestamped-{kind} string -> int64"


def test_the_fingerprint_does_not_tell_what_may_change(kind: str) -> None:
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
def test_how_long_and_how_many_may_change(
    original: ms.stores.StoreSpec, changed: ms.stores.StoreSpec
) -> None:
    assert original.fingerprint == changed.fingerprint
    assert original != changed


def test_slices_hold_half_the_retention_and_a_minute_at_least() -> None:
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
def test_an_impossible_option_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        make()


def test_a_duration_is_a_timedelta_or_an_int() -> None:
    with pytest.raises(TypeError, match="a duration must be"):
        ms.stores.session("s", TEXT, INT, retention=1.5)  # type: ignore[arg-type]


def test_duplicates_cannot_lie_in_the_order_of_time() -> None:
    with pytest.raises(TopologyError, match="store 's': duplicates need order='key'"):
        ms.stores.window("s", TEXT, INT, retention=10, size=10, retain_duplicates=True, order="time")


def test_an_order_is_that_of_keys_or_of_time() -> None:
    with pytest.raises(TopologyError, match="store 's': order must be one of 'key', 'time', not 'start'"):
        ms.stores.session("s", TEXT, INT, retention=10, order="start")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["window", "window-with-duplicates", "session"])
@pytest.mark.parametrize("internal", ["with_open", "expired", "windows"])
def test_what_only_operators_say_about_their_stores_is_no_option(kind: str, internal: str) -> None:
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{internal}'"):
        KINDS[kind]("s", TEXT, INT, **{internal: True})


def test_another_order_is_another_layout() -> None:
    assert ms.stores.session("s", TEXT, INT, retention=10, order="time").kind == "session-by-time"
    assert ms.stores.window("s", TEXT, INT, retention=10, size=10, order="time").kind == "window-by-time"
