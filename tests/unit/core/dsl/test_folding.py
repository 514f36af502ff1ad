"""Sums, minima, maxima and means of every grouping equal what Python computes from the same records."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from millstream.core.model import means

NUMBER = ms.serdes.json


class Tens(ms.Windows):
    """Tumbling windows of 10 ms as custom windows."""

    def windows_for(self, timestamp: int) -> list[tuple[int, int]]:
        start = timestamp - timestamp % 10
        return [(start, start + 10)]


FOLDS: dict[str, Callable[[list[int]], float]] = {
    "count": len,
    "sum": sum,
    "min": min,
    "max": max,
    "mean": statistics.mean,
}
GROUPINGS: dict[str, tuple[Any, bool]] = {
    "tumbling": (ms.TumblingWindows(10, grace=1000), False),
    "hopping": (ms.HoppingWindows(10, 4, grace=1000), False),
    "of the user's own": (Tens(10, grace=1000), False),
    "sliding": (ms.SlidingWindows(10, grace=1000), True),
    "session": (ms.SessionWindows(5, grace=1000), True),
}
"""Windows, and whether their ends are inclusive."""
ROWS = st.lists(
    st.tuples(st.sampled_from(["a", "b"]), st.integers(-(2**62), 2**62), st.integers(0, 40)), max_size=12
)


def driver_of(define: Callable[[ms.StreamsBuilder], ms.KTable[Any, Any]]) -> ms.testing.TopologyTestDriver:
    builder = ms.StreamsBuilder()
    define(builder).to_stream().to("out", value=NUMBER)
    return ms.testing.TopologyTestDriver(builder.build(), policies=ms.ErrorPolicies(process="skip"))


def grouped(builder: ms.StreamsBuilder) -> ms.KGroupedStream[str, Any]:
    return builder.stream("in", value=NUMBER).group_by_key()


@pytest.mark.parametrize("fold", FOLDS)
@given(rows=ROWS)
def test_a_fold_covers_all_values_of_its_key(fold: str, rows: list[tuple[str, int, int]]) -> None:
    with driver_of(lambda builder: getattr(grouped(builder), fold)(store="s")) as driver:
        values: dict[str, list[int]] = {"a": [], "b": []}
        for key, value, timestamp in rows:
            driver.pipe("in", key, value, timestamp)
            values[key].append(value)
            (result,) = driver.read("out")
            assert (result.key, result.value) == (key, pytest.approx(FOLDS[fold](values[key])))


@pytest.mark.parametrize("grouping", GROUPINGS)
@pytest.mark.parametrize("fold", FOLDS)
@given(rows=ROWS)
def test_a_fold_covers_the_values_in_its_window(
    fold: str, grouping: str, rows: list[tuple[str, int, int]]
) -> None:
    windows, closed = GROUPINGS[grouping]
    with driver_of(lambda b: getattr(grouped(b).windowed_by(windows), fold)(store="s")) as driver:
        for number, (key, value, timestamp) in enumerate(rows, start=1):
            driver.pipe("in", key, value, timestamp)
            results = [result for result in driver.read("out") if result.value is not None]
            assert results
            for result in results:
                _, start, end = result.key
                expected_values = [v for k, v, t in rows[:number] if k == key and start <= t < end + closed]
                assert (result.key.key, result.value) == (key, pytest.approx(FOLDS[fold](expected_values)))


@pytest.mark.parametrize("grouping", ["tumbling", "own", "session"])
@pytest.mark.parametrize("emit", [ms.on_window_update, ms.on_window_close], ids=["update", "close"])
def test_records_without_a_value_are_dropped_and_do_not_advance_stream_time(grouping: str, emit: Any) -> None:
    windows = {
        "tumbling": ms.TumblingWindows(10, grace=0),
        "own": Tens(10, grace=0),
        "session": ms.SessionWindows(5, grace=0),
    }[grouping]
    late: list[Any] = []
    with driver_of(
        lambda b: (
            grouped(b)
            .windowed_by(windows, emit=emit, late=lambda s: s.foreach(lambda k, v: late.append(v)))
            .sum(store="s")
        )
    ) as driver:
        for value, timestamp in ((None, 500), (1, 0), (2, 1), (None, 500), (3, 2)):
            driver.pipe("in", "a", value, timestamp)
        assert driver.metrics()["dropped_records"] == 2
        driver.pipe("in", "a", 4, 30)
        sums = [result.value for result in driver.read("out") if result.value is not None]
        assert sums == ([1, 3, 6, 4] if emit is ms.on_window_update else [6])
        assert late == []


def test_a_value_that_is_not_a_number_fails_only_its_record() -> None:
    with driver_of(lambda builder: grouped(builder).mean(store="s")) as driver:
        for value in (1, "2", [3], 4.0):
            driver.pipe("in", "a", value)
        assert [result.value for result in driver.read("out")] == [1.0, 2.5]
        assert driver.metrics()["dropped_records"] == 2


def test_the_mean_of_a_grouped_table_follows_its_rows() -> None:
    def mean(builder: ms.StreamsBuilder) -> ms.KTable[str, float]:
        rows = builder.table("in", value=NUMBER, store="rows")
        return rows.group_by(lambda key, value: (key[0], value), value=NUMBER).mean(store="s")

    with driver_of(mean) as driver:
        for key, value in (("a1", 1), ("a2", 4), ("a1", 2), ("a1", None), ("a2", None)):
            driver.pipe("in", key, value)
        assert [result.value for result in driver.read("out")] == [1.0, 2.5, 3.0, 4.0, None]


def test_the_sum_of_a_grouped_table_subtracts_old_values() -> None:
    def total(builder: ms.StreamsBuilder) -> ms.KTable[str, Any]:
        rows = builder.table("in", value=NUMBER, store="rows")
        return rows.group_by(lambda key, value: (key[0], value), value=NUMBER).sum(store="s")

    with driver_of(total) as driver:
        for key, value in (("a1", 1), ("a2", 4), ("a1", 2), ("a1", None)):
            driver.pipe("in", key, value)
        assert [result.value for result in driver.read("out")] == [1, 5, 6, 4]


@given(
    total=st.one_of(st.integers(), st.floats(allow_nan=False)),
    number=st.integers(1, 2**62),
)
def test_sums_are_stored_exactly(total: float, number: int) -> None:
    sums = means.Sums(total, number)
    again = means.serde.deserialize(means.serde.serialize(sums))
    assert again == sums
    assert type(again.total) is type(total)


@pytest.mark.parametrize("data", [b"", b"12345678", b"12345678i", b"12345678f1", b"12345678x1"])
def test_other_bytes_cannot_be_deserialized_as_sums(data: bytes) -> None:
    with pytest.raises(Exception, match=r"not a sum|unpack"):
        means.serde.deserialize(data)
