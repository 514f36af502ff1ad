"""Values that do not fit the serde of a store fail their record, although most values are not serialised when they are put."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import millstream as ms

MINUTE = ms.TumblingWindows(60_000, grace=0)
KEEPING: dict[str, Callable[[ms.KStream[Any, Any], ms.Serde[Any]], ms.KTable[Any, Any]]] = {
    "table": lambda stream, serde: stream.to_table(value=serde),
    "versioned": lambda stream, serde: stream.to_table(
        value=serde, store=ms.stores.options("versions", history_retention=10)
    ),
    "derived": lambda stream, serde: stream.to_table(value=ms.serdes.json).map_values(
        lambda value: value, value=serde, store="derived"
    ),
    "reduce": lambda stream, serde: stream.group_by_key(value=serde).reduce(max),
    "max": lambda stream, serde: stream.group_by_key(value=serde).max(),
    "windows": lambda stream, serde: stream.group_by_key(value=serde).windowed_by(MINUTE).max(),
    "reduce windows": lambda stream, serde: stream.group_by_key(value=serde).windowed_by(MINUTE).reduce(max),
    "sliding": lambda stream, serde: (
        stream.group_by_key(value=serde).windowed_by(ms.SlidingWindows(1_000, grace=0)).reduce(max)
    ),
    "sessions": lambda stream, serde: (
        stream.group_by_key(value=serde).windowed_by(ms.SessionWindows(1_000, grace=0)).max()
    ),
}
UNFIT: dict[str, tuple[ms.Serde[Any], Any, Any]] = {
    "a surrogate": (ms.serdes.string, "\u00e9", "\ud83d"),
    "17 bits": (ms.serdes.int16, (1 << 15) - 1, 1 << 15),
    "33 bits": (ms.serdes.int32, (1 << 31) - 1, 1 << 31),
    "65 bits": (ms.serdes.int64, (1 << 63) - 1, 1 << 63),
}


@pytest.mark.parametrize("commit_every", [1, 2, 10])
@pytest.mark.parametrize("unfit_value", UNFIT.values(), ids=UNFIT)
@pytest.mark.parametrize("keeping", KEEPING.values(), ids=KEEPING)
def test_a_value_that_a_store_cannot_hold_is_skipped_in_micro_batches_of_any_size(
    keeping: Callable[[ms.KStream[Any, Any], ms.Serde[Any]], ms.KTable[Any, Any]],
    unfit_value: tuple[ms.Serde[Any], Any, Any],
    commit_every: int,
) -> None:
    serde, fits, unfit = unfit_value
    builder = ms.StreamsBuilder()
    stream = builder.stream("in", value=ms.serdes.json).map_values(ms.col("v"))
    keeping(stream, serde).to_stream().to("out", value=serde)
    with ms.testing.TopologyTestDriver(
        builder.build(),
        policies=ms.ErrorPolicies(process="skip"),
        commit_every=commit_every,
        statestore_cache_max_bytes=0,
    ) as driver:
        for time, value in enumerate((fits, unfit, fits)):
            driver.pipe("in", "k", json.dumps({"v": value}).encode(), time)
        driver.commit()
        assert {record.value for record in driver.read("out")} <= {fits, None}
        assert driver.dropped() == {"process error": 1}


@pytest.mark.parametrize("kind", ["left_join", "outer_join"])
def test_the_partner_of_a_record_that_a_join_cannot_store_stays_unmatched(kind: str) -> None:
    builder = ms.StreamsBuilder()
    left, right = (
        builder.stream(topic, value=ms.serdes.json).map_values(ms.col("v")) for topic in ("left", "right")
    )
    windows, serdes = (
        ms.JoinWindows(5, 5, grace=0),
        {"value": ms.serdes.string, "other_value": ms.serdes.string},
    )
    joined = getattr(left, kind)(right, lambda one, other: [one, other], windows=windows, **serdes)
    joined.to("out", value=ms.serdes.json)
    with ms.testing.TopologyTestDriver(builder.build(), policies=ms.ErrorPolicies(process="skip")) as driver:
        for topic, value, time in (("left", "a", 0), ("right", "\ud83d", 1), ("left", "b", 20)):
            driver.pipe(topic, "k", json.dumps({"v": value}).encode(), time)
        assert [record.value for record in driver.read("out")] == [["a", None]]
        assert driver.dropped() == {"process error": 1}


@pytest.mark.parametrize("cache", [0, 1 << 20])
def test_windows_that_a_record_updates_are_forwarded_even_if_it_fails_in_another_window(cache: int) -> None:
    builder = ms.StreamsBuilder()
    windows = builder.stream("in", value=ms.serdes.int16).group_by_key(value=ms.serdes.int16)
    sums = windows.windowed_by(ms.SlidingWindows(10, grace=50)).sum(store="sums")
    sums.to_stream(lambda window, _: str(window.start)).to("out", value=ms.serdes.int16)
    with ms.testing.TopologyTestDriver(
        builder.build(), policies=ms.ErrorPolicies(process="skip"), statestore_cache_max_bytes=cache
    ) as driver:
        for value, time in (((1 << 15) - 1, 20), (1, 32), (1, 25)):
            driver.pipe("in", "k", value, time)
        sent = {record.key: record.value for record in driver.read("out")}
        stored = {str(window.start): row.value for window, row in driver.store("sums").all()}
        assert driver.dropped() == {"process error": 1}
    assert stored["22"] == 2
    assert sent == stored
