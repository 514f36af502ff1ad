"""Late streams: records that an aggregation drops, and records that a join could no longer join completely."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from millstream.core.model.errors import TopologyError
from millstream.testing import TopologyTestDriver
from unit.helpers import Host, sent

WINDOWS: dict[str, Any] = {
    "tumbling": ms.TumblingWindows(1000, grace=500),
    "hopping": ms.HoppingWindows(1000, advance=400, grace=500),
    "sliding": ms.SlidingWindows(300, grace=500),
    "sessions": ms.SessionWindows(400, grace=300),
}
EMITS = {"update": ms.on_window_update, "close": ms.on_window_close}


def to_late(stream: ms.KStream[Any, Any]) -> None:
    stream.to("late")


def counting(kind: str, emit: ms.EmitStrategy = ms.on_window_update) -> ms.Topology:
    builder = ms.StreamsBuilder()
    windowed = builder.stream("in").group_by_key().windowed_by(WINDOWS[kind], emit=emit, late=to_late)
    windowed.count(store="w").to_stream().to("out")
    return builder.build()


def joining(join: str = "join", **options: Any) -> ms.Topology:
    builder = ms.StreamsBuilder()
    left, right = builder.stream("left"), builder.stream("right")
    windows = ms.JoinWindows(before=100, after=200, grace=50)
    getattr(left, join)(right, lambda a, b: f"{a}+{b}", windows=windows, **options).to("out")
    return builder.build()


@pytest.mark.parametrize("emit", EMITS.values(), ids=EMITS.keys())
@pytest.mark.parametrize("kind", WINDOWS)
def test_a_late_record_is_forwarded_unchanged(kind: str, emit: ms.EmitStrategy) -> None:
    with TopologyTestDriver(counting(kind, emit)) as driver:
        driver.pipe("in", "a", "first", 10_000)
        driver.pipe("in", "a", "late", 2_000, [("h", b"x")])
        driver.pipe("in", "a", "in time", 9_900)
        assert driver.read("late") == [ms.Record("a", "late", 2_000, (("h", b"x"),))]
        assert driver.metrics()["dropped_records"] >= 1


def test_a_record_that_is_late_for_some_of_its_windows_is_forwarded_once() -> None:
    with TopologyTestDriver(counting("hopping")) as driver:
        driver.pipe("in", "a", "first", 2_000)
        driver.pipe("in", "b", "late for one", 1_300)
        driver.pipe("in", "c", "late for all", 100)
        driver.pipe("in", "d", "late for none", 1_600)
        assert [record.value for record in driver.read("late")] == ["late for one", "late for all"]
        counted = {record.key.key: record.value for record in driver.read("out")}
        assert counted == {"a": 1, "b": 1, "d": 1}


def test_records_without_a_key_are_not_late() -> None:
    with TopologyTestDriver(counting("tumbling")) as driver:
        driver.pipe("in", "a", "x", 10_000)
        driver.pipe("in", None, "x", 0)
        assert driver.read("late") == []


def test_each_aggregation_has_its_own_late_stream() -> None:
    builder = ms.StreamsBuilder()
    late_streams: list[ms.KStream[Any, Any]] = []
    windowed = builder.stream("in").group_by_key().windowed_by(WINDOWS["tumbling"], late=late_streams.append)
    windowed.count(store="one")
    windowed.count(store="other")
    late_streams[0].to("late-one")
    late_streams[1].to("late-other")
    with TopologyTestDriver(builder.build()) as driver:
        driver.pipe("in", "a", "x", 10_000)
        driver.pipe("in", "a", "y", 0)
        assert [r.value for r in driver.read("late-one")] == ["y"]
        assert [r.value for r in driver.read("late-other")] == ["y"]


def test_a_late_stream_can_be_processed_like_any_other_stream() -> None:
    builder = ms.StreamsBuilder()

    def count_late(late: ms.KStream[Any, Any]) -> None:
        late.group_by_key().count(store="late-count").to_stream().to("late", value=ms.serdes.int64)

    grouped = builder.stream("in").group_by(lambda k, v: v[0])
    grouped.windowed_by(WINDOWS["tumbling"], late=count_late).count(store="w")
    with TopologyTestDriver(builder.build()) as driver:
        for value, timestamp in (("a", 10_000), ("a1", 0), ("a2", 0)):
            driver.pipe("in", None, value, timestamp)
        assert [(r.key, r.value) for r in driver.read("late")] == [("a", 1), ("a", 2)]


steps = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 6_000)), max_size=30)


@given(steps=steps)
def test_each_record_is_either_counted_or_late(steps: list[tuple[str, int]]) -> None:
    with TopologyTestDriver(counting("tumbling", ms.on_window_close)) as driver:
        for key, timestamp in [*steps, ("end", 100_000)]:
            driver.pipe("in", key, "x", timestamp)
        counted = sum(record.value for record in driver.read("out"))
        assert counted + len(driver.read("late")) == len(steps)


@pytest.mark.parametrize("join", ["join", "left_join", "outer_join", "join_prior"])
def test_a_record_of_either_side_of_a_join_is_late_after_its_window_closed(join: str) -> None:
    def other_late(stream: ms.KStream[Any, Any]) -> None:
        stream.to("other-late")

    with TopologyTestDriver(joining(join, late=to_late, other_late=other_late)) as driver:
        driver.pipe("left", "a", "now", 10_000)
        # A left record waits for 200 + 50 ms, a right one for 100 + 50 ms.
        for timestamp in (9_750, 9_749):
            driver.pipe("left", "a", f"l{timestamp}", timestamp)
        for timestamp in (9_850, 9_849):
            driver.pipe("right", "b", f"r{timestamp}", timestamp)
        driver.pipe("right", "b", None, 0)
        assert [(r.key, r.value, r.timestamp) for r in driver.read("late")] == [("a", "l9749", 9_749)]
        assert [(r.key, r.value, r.timestamp) for r in driver.read("other-late")] == [("b", "r9849", 9_849)]


def test_a_join_with_a_table_has_no_late_stream() -> None:
    builder = ms.StreamsBuilder()
    with pytest.raises(TopologyError, match="no record is late for a table"):
        builder.stream("in").join(  # type: ignore[call-overload]
            builder.table("table"), lambda value, row: value, late=to_late
        )


def test_a_record_that_is_too_old_to_be_stored_by_a_join_counts_as_late() -> None:
    minute = 60_000
    builder = ms.StreamsBuilder()
    windows = ms.JoinWindows(minute, minute, grace=0)
    builder.stream("in").join(
        builder.stream("other"), lambda left, right: f"{left} {right}", windows=windows
    ).to("out")
    host = Host(builder.build())
    host.run("other", ("a", "there", 0))
    assert host.run("in", ("a", "first", 20 * minute)).metrics.dropped == {}
    outcome = host.run("in", ("a", "late", minute))
    assert sent(outcome) == [("a", "late there", minute)]
    assert outcome.metrics.dropped == {"late for a join": 1}


@pytest.mark.parametrize("kind", WINDOWS)
def test_each_stream_of_a_cogroup_has_its_own_late_stream(kind: str) -> None:
    builder = ms.StreamsBuilder()
    texts = builder.stream("texts").group_by_key()
    numbers = builder.stream("numbers", value=ms.serdes.int64).group_by_key()
    both = texts.cogroup(lambda k, v, so_far: so_far + v)
    both = both.cogroup(numbers, lambda k, v, so_far: f"{so_far}{v}")
    late_streams: list[ms.KStream[Any, Any]] = []
    windowed: Any = both.windowed_by(WINDOWS[kind], late=late_streams.append)
    merger = [lambda key, merged, value: merged + value] if kind == "sessions" else []
    windowed.aggregate(str, *merger, store="w")
    late_streams[0].to("late-texts")
    late_streams[1].to("late-numbers")
    with TopologyTestDriver(builder.build()) as driver:
        driver.pipe("texts", "a", "x", 10_000)
        driver.pipe("numbers", "a", 1, 2_000)  # not late: its stream has its own stream time
        driver.pipe("texts", "a", "y", 2_000, [("h", b"1")])
        driver.pipe("numbers", "a", 2, 10_000)
        driver.pipe("numbers", "a", 3, 2_001)
        assert driver.read("late-texts") == [ms.Record("a", "y", 2_000, (("h", b"1"),))]
        assert [(r.value, r.timestamp) for r in driver.read("late-numbers")] == [(3, 2_001)]
