"""When a task checks for closed windows: at once, by the wall clock, or as late as Kafka Streams does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from millstream.core.model.errors import TopologyError
from millstream.testing import TopologyTestDriver
from unit.helpers import Host, sent

SIZE, GRACE = 1000, 500
WINDOWS: dict[str, Any] = {
    "tumbling": ms.TumblingWindows(SIZE, GRACE),
    "hopping": ms.HoppingWindows(SIZE, 400, GRACE),
    "sliding": ms.SlidingWindows(300, GRACE),
    "sessions": ms.SessionWindows(400, GRACE),
}


def counting(kind: str, emit: ms.EmitStrategy) -> ms.Topology:
    builder = ms.StreamsBuilder()
    builder.stream("in").group_by_key().windowed_by(WINDOWS[kind], emit=emit).count(store="w").to_stream().to(
        "out"
    )
    return builder.build()


def emitted(driver: TopologyTestDriver) -> list[tuple[str, int, int, int]]:
    return [(*record.key, record.value) for record in driver.read("out")]


def test_a_check_waits_for_its_interval_of_wall_clock() -> None:
    with TopologyTestDriver(counting("tumbling", ms.EmitStrategy.on_window_close(every=1000))) as driver:
        for timestamp in (0, 1500, 2500):
            driver.pipe("in", "a", "x", timestamp)
        assert emitted(driver) == []
        driver.advance_wall_clock(1000)
        assert emitted(driver) == []
        driver.pipe("in", "a", "x", 2000)
        assert emitted(driver) == [("a", 0, 1000, 1), ("a", 1000, 2000, 1)]


@pytest.mark.parametrize("expired", ["given", "lost"])
def test_early_and_late_records_of_sliding_windows_do_not_trigger_a_check(
    expired: Literal["given", "lost"],
) -> None:
    """Kafka Streams 4.3 emits these results."""
    emit = ms.EmitStrategy.on_window_close(every=1000, expired=expired)
    with TopologyTestDriver(counting("sliding", emit)) as driver:
        for timestamp, expected in [(299, []), (1_000, [("a", 0, 300, 1)])]:
            driver.pipe("in", "a", "x", timestamp)
            assert emitted(driver) == expected
        driver.pipe("in", "a", "x", 2_000)
        driver.advance_wall_clock(1000)
        driver.pipe("in", "a", "x", 1_199)
        assert emitted(driver) == []
        driver.pipe("in", "a", "x", 1_200)
        assert emitted(driver) == [("a", 700, 1000, 1)]


@pytest.mark.parametrize("kind", WINDOWS)
def test_a_check_does_not_wait_for_a_clock_that_has_moved_back(kind: str) -> None:
    host = Host(counting(kind, ms.EmitStrategy.on_window_close(every=1000)))
    host.feed("in", [("a", "x", 0)])
    host.step(1_000_000)
    host.feed("in", [("a", "x", 5_000)])
    assert len(sent(host.step(1000))) >= 1


def test_a_join_does_not_wait_for_a_clock_that_has_moved_back() -> None:
    builder = ms.StreamsBuilder()
    windows = ms.JoinWindows(before=10, after=10, grace=0, unmatched_interval=1000)
    left, right = builder.stream("in"), builder.stream("other")
    left.left_join(right, lambda mine, _: mine, windows=windows).to("out")
    host = Host(builder.build())
    for now_ms, timestamp in ((1_000_000, 0), (1_000_000, 50), (1000, 100)):
        host.feed("in", [("a", "x", timestamp)])
        outcome = host.step(now_ms)
    assert [timestamp for _, _, timestamp in sent(outcome)] == [50]


@pytest.mark.parametrize("kind", WINDOWS)
def test_a_check_is_not_postponed_when_windows_are_about_to_be_dropped(kind: str) -> None:
    with TopologyTestDriver(counting(kind, ms.EmitStrategy.on_window_close(every=10**9))) as driver:
        for timestamp in (1_000, 3_000):
            driver.pipe("in", "a", "x", timestamp)
        assert emitted(driver) == []
        driver.pipe("in", "a", "x", 1_000_000)
        assert {window[1:3] for window in emitted(driver)} >= {
            "tumbling": {(1000, 2000), (3000, 4000)},
            "hopping": {(800, 1800), (2800, 3800)},
            "sliding": {(700, 1000), (2700, 3000)},
            "sessions": {(1000, 1000), (3000, 3000)},
        }[kind]


@pytest.mark.parametrize("kind", WINDOWS)
def test_an_idle_input_closes_windows_whose_check_was_postponed(kind: str) -> None:
    emit = ms.EmitStrategy.on_window_close(every=10**9, close_idle_after=5_000)
    with TopologyTestDriver(counting(kind, emit)) as driver:
        for timestamp in (1_000, 9_000):
            driver.pipe("in", "a", "x", timestamp)
        assert emitted(driver) == []
        driver.advance_wall_clock(20_000)
        assert sorted({window[3] for window in emitted(driver)}) == [1]
        driver.advance_wall_clock(20_000)
        assert emitted(driver) == []


def test_expired_windows_are_emitted_by_default_and_lost_on_request() -> None:
    records = [("a", 0), ("b", 1_200), ("a", 50_000)]
    results = {}
    for emit in (ms.on_window_close, ms.EmitStrategy.on_window_close(expired="lost")):
        with TopologyTestDriver(counting("tumbling", emit)) as driver:
            for key, timestamp in records:
                driver.pipe("in", key, "x", timestamp)
            results[emit.loses] = emitted(driver)
    assert results[False] == [("a", 0, 1000, 1), ("b", 1000, 2000, 1)]
    assert results[True] == []


@pytest.mark.parametrize(
    ("step", "retention", "expected"),
    [
        (50, 100, ["", "0", "", "100", "", "200", ""]),
        (60, 100, ["", "0", "", "100", "200", "", "300"]),
        (100, 100, ["0", "100", "200", "300", "400", "500", "600"]),
        (150, 100, ["0", "", "300", "", "600", "", "900"]),
        (150, 1000, ["0", "100", "300", "400", "600", "700", "900"]),
        (250, 100, ["", "", "", "", "", "", ""]),
    ],
)
def test_lost_windows_are_those_that_kafka_streams_loses_without_caches(
    step: int, retention: int, expected: list[str]
) -> None:
    """The expected starts are those of the windows that Kafka Streams 4.3 emits after the second and each later record."""
    builder = ms.StreamsBuilder()
    emit = ms.EmitStrategy.on_window_close(expired="lost")
    windowed = builder.stream("in").group_by_key().windowed_by(ms.TumblingWindows(100, 0), emit=emit)
    windowed.count(store=ms.stores.options("w", retention=retention)).to_stream().to("out")
    starts = []
    with TopologyTestDriver(builder.build()) as driver:
        for number in range(8):
            driver.pipe("in", "a", "x", number * step)
            starts.append(" ".join(str(record.key.start) for record in driver.read("out")))
    assert starts[1:] == expected


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (150, ["0-100", "50-150", "200-300", "350-450", "500-600", "650-750", "800-900"]),
        (200, ["0-100", "100-200", "300-400", "500-600", "700-800", "900-1000", "1100-1200"]),
        (201, ["0-100", "", "", "", "", "", ""]),
    ],
)
def test_lost_sliding_windows_are_those_that_kafka_streams_loses(step: int, expected: list[str]) -> None:
    """Kafka Streams 4.3 emits these windows of 100 ms with a retention of 200 ms."""
    builder = ms.StreamsBuilder()
    emit = ms.EmitStrategy.on_window_close(expired="lost")
    windowed = builder.stream("in").group_by_key().windowed_by(ms.SlidingWindows(100, 0), emit=emit)
    windowed.count(store=ms.stores.options("w", retention=200)).to_stream().to("out")
    results = []
    with TopologyTestDriver(builder.build()) as driver:
        for number in range(8):
            driver.pipe("in", "a", "x", number * step)
            results.append(" ".join(f"{r.key.start}-{r.key.end}" for r in driver.read("out")))
    assert results[1:] == expected


SESSION = [("a", 1000, 1000, 1)]


@pytest.mark.parametrize(
    ("kind", "later", "expected"),
    [
        ("sliding", 50_000, []),
        ("sessions", 50_000, SESSION),
        ("sessions", 60_000 + 400 + GRACE - 1, SESSION),
        ("sessions", 60_000 + 400 + GRACE, []),
    ],
)
def test_sessions_are_lost_on_request_when_their_slice_has_expired(
    kind: str, later: int, expected: list[tuple[str, int, int, int]]
) -> None:
    """Kafka Streams 4.3 emits these results. A slice (a segment in Kafka Streams) is one minute long."""
    with TopologyTestDriver(counting(kind, ms.EmitStrategy.on_window_close(expired="lost"))) as driver:
        for timestamp in (1_000, later):
            driver.pipe("in", "a", "x", timestamp)
        assert emitted(driver) == expected


steps = st.lists(
    st.tuples(
        st.sampled_from("ab"), st.sampled_from([-900, -100, 0, 1, 300, 700, 5_000, 90_000]), st.booleans()
    ),
    max_size=30,
)


@pytest.mark.parametrize("kind", WINDOWS)
@given(steps=steps)
def test_less_frequent_checks_emit_the_same_results_later(
    kind: str, steps: list[tuple[str, int, bool]]
) -> None:
    immediate = replayed(kind, ms.on_window_close, steps)
    later = replayed(kind, ms.EmitStrategy.on_window_close(every=1000), steps)
    assert later == immediate[: len(later)]


def replayed(kind: str, emit: ms.EmitStrategy, steps: list[tuple[str, int, bool]]) -> list[Any]:
    time = 10_000
    with TopologyTestDriver(counting(kind, emit)) as driver:
        for key, step, ticks in steps:
            time = max(time + step, 0)
            driver.pipe("in", key, "x", time)
            if ticks:
                driver.advance_wall_clock(400)
        return emitted(driver)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ms.EmitStrategy.on_window_close(every=-1), "every must be at least 0 ms, not -1"),
        (
            lambda: ms.EmitStrategy.on_window_close(expired="kept"),  # type: ignore[arg-type]
            "expired must be 'given' or 'lost', not 'kept'",
        ),
    ],
)
def test_an_impossible_strategy_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        make()
