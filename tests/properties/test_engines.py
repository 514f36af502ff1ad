"""All engines of committed content have one contract: a sorted map from bytes to bytes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.core.ports import StoreChange

from .engines import ENGINES, Copied, Engine, Memory, Rocksdb, Visits

LONG = st.builds(
    lambda first, size, rest: first * size + rest,
    st.sampled_from([b"k", b"\xff"]),
    st.sampled_from([469, 470, 471, 600]),
    st.sampled_from([b"", b"\x00", b"a", b"b", b"\xff", b"\xff" * 600]),
)
"""Keys around and beyond the longest key of LMDB; many share their first bytes."""
KEYS = st.one_of(
    st.sampled_from([b"", b"\x00", b"a", b"a\x00", b"aa", b"ab", b"b", b"\xff", b"\xff\xff"]),
    st.binary(max_size=4),
    LONG,
)
BOUNDS = st.none() | KEYS
BATCHES = st.lists(
    st.dictionaries(KEYS, st.none() | st.binary(max_size=8), min_size=2, max_size=10), min_size=2, max_size=6
)


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    engine: Engine = request.param()
    yield engine
    engine.close()


def test_an_empty_store_has_no_entries(engine: Engine) -> None:
    reader = engine.reader()
    assert (reader.get(b"a"), list(reader.scan(None, None)), reader.approximate_count()) == (None, [], 0)
    assert list(reader.scan(b"a", b"b", reverse=True)) == []


def test_an_empty_value_is_a_value(engine: Engine) -> None:
    engine.apply([(b"a", b"")])
    assert (engine.reader().get(b"a"), list(engine.reader().scan(None, None))) == (b"", [(b"a", b"")])


def test_deleting_an_absent_key_changes_nothing(engine: Engine) -> None:
    engine.apply([(b"a", None)])
    engine.apply([(b"a", b"1"), (b"b", None)])
    assert list(engine.reader().scan(None, None)) == [(b"a", b"1")]


def test_a_scan_includes_its_low_bound_and_excludes_its_high_bound(engine: Engine) -> None:
    engine.apply([(key, b"") for key in (b"a", b"b", b"c")])
    reader = engine.reader()
    assert [key for key, _ in reader.scan(b"a", b"c")] == [b"a", b"b"]
    assert [key for key, _ in reader.scan(b"a", b"c", reverse=True)] == [b"b", b"a"]
    assert [key for key, _ in reader.scan(b"aa", None)] == [b"b", b"c"]
    assert list(reader.scan(b"c", b"a")) == list(reader.scan(b"c", b"a", reverse=True)) == []


@pytest.mark.parametrize("make", ENGINES)
def test_an_engine_reads_like_a_sorted_dict(make: type[Memory] | type[Copied]) -> None:
    visits = Visits()

    @settings(max_examples=100 if make is not Rocksdb else 15)
    @given(BATCHES, st.lists(st.tuples(BOUNDS, BOUNDS), min_size=1, max_size=5))
    def reads(
        batches: list[dict[bytes, bytes | None]], bounds: list[tuple[bytes | None, bytes | None]]
    ) -> None:
        engine = make()
        try:
            model: dict[bytes, bytes] = {}
            for batch in batches:
                commit(engine, model, list(batch.items()), visits)
            compare(engine, model, bounds, visits, exact=make is not Rocksdb)
        finally:
            engine.close()

    reads()
    visits.demand(deleted=10, overwritten=5, empty_scan=5, cut_scan=5, crossed_bounds=5)


def commit(engine: Engine, model: dict[bytes, bytes], batch: list[StoreChange], visits: Visits) -> None:
    engine.apply(batch)
    for key, value in batch:
        if value is None:
            visits["deleted"] += model.pop(key, None) is not None
        else:
            visits["overwritten"] += key in model
            model[key] = value


def compare(
    engine: Engine,
    model: dict[bytes, bytes],
    bounds: list[tuple[bytes | None, bytes | None]],
    visits: Visits,
    *,
    exact: bool,
) -> None:
    reader = engine.reader()
    assert reader.approximate_count() == len(model) or not exact
    for low, high in bounds:
        inside = sorted(
            (key, value)
            for key, value in model.items()
            if (low is None or key >= low) and (high is None or key < high)
        )
        assert list(reader.scan(low, high)) == inside
        assert list(reader.scan(low, high, reverse=True)) == inside[::-1]
        visits["empty_scan"] += not inside
        visits["cut_scan"] += 0 < len(inside) < len(model)
        visits["crossed_bounds"] += low is not None and high is not None and low > high
        for key in (low, high):
            if key is not None:
                assert reader.get(key) == model.get(key)
