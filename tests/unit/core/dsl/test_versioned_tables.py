"""Versioned tables: rows with history; late updates change only the past."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import millstream as ms
from millstream.testing import TopologyTestDriver

KEPT = ms.stores.options("prices", history_retention=100)


def driver_of(define: Callable[[ms.KTable], object]) -> TopologyTestDriver:
    builder = ms.StreamsBuilder()
    define(builder.table("in", store=KEPT))
    return TopologyTestDriver(builder.build())


def test_the_store_has_the_version_of_each_timestamp() -> None:
    driver = driver_of(lambda table: table.to_stream().to("out"))
    driver.pipe("in", "apple", "old", 10)
    driver.pipe("in", "apple", "new", 20)
    store = driver.store("prices")
    assert store.get("apple")[:2] == ("new", 20)
    assert store.get("apple", 15)[:2] == ("old", 10)


def test_a_late_update_is_forwarded_and_does_not_become_the_latest() -> None:
    driver = driver_of(lambda table: table.to_stream().to("out"))
    driver.pipe("in", "apple", "new", 20)
    driver.pipe("in", "apple", "old", 10)
    assert [(r.value, r.timestamp) for r in driver.read("out")] == [("new", 20), ("old", 10)]
    assert driver.store("prices").get("apple")[:2] == ("new", 20)


def test_an_update_older_than_the_history_is_dropped_and_counted() -> None:
    driver = driver_of(lambda table: table.to_stream().to("out"))
    driver.pipe("in", "apple", "new", 201)
    driver.pipe("in", "apple", "older than the history", 100)
    assert [r.value for r in driver.read("out")] == ["new"]
    assert driver.metrics()["dropped_records"] == 1


def test_a_late_update_does_not_move_a_row_to_another_group() -> None:
    driver = driver_of(
        lambda table: (
            table.filter(lambda _, v: True)
            .map_values(str.upper)
            .group_by(lambda _, v: (v, v))
            .count(store="counts")
            .to_stream()
            .to("out", value=ms.serdes.int64)
        )
    )
    driver.pipe("in", "apple", "red", 20)
    driver.pipe("in", "apple", "green", 10)
    assert [(r.key, r.value) for r in driver.read("out")] == [("RED", 1)]
    assert driver.metrics()["dropped_records"] == 0


@pytest.mark.parametrize("store", [None, "cheap"])
def test_a_filter_forwards_every_change(store: str | None) -> None:
    builder = ms.StreamsBuilder()
    builder.table("in", store=KEPT).filter(lambda _, v: v == "cheap", store=store).to_stream().to("out")
    driver = TopologyTestDriver(builder.build(), statestore_cache_max_bytes=0)
    for time, value in enumerate(("dear", None, "cheap", "dear", "dear")):
        driver.pipe("in", "apple", value, time)
    assert [(r.value, r.timestamp) for r in driver.read("out")] == [
        (None, 0),
        (None, 1),
        ("cheap", 2),
        (None, 3),
        (None, 4),
    ]


def test_a_stream_can_be_converted_to_a_versioned_table() -> None:
    builder = ms.StreamsBuilder()
    builder.stream("in").to_table(store=KEPT).to_stream().to("out")
    driver = TopologyTestDriver(builder.build())
    driver.pipe("in", "apple", "old", 10)
    driver.pipe("in", "apple", "new", 20)
    assert driver.store("prices").get("apple", 10)[:2] == ("old", 10)


def test_aggregations_reject_history_retention() -> None:
    grouped = ms.StreamsBuilder().stream("in").group_by_key()
    with pytest.raises(ms.errors.TopologyError, match="history_retention applies only to tables"):
        grouped.count(store=KEPT)
