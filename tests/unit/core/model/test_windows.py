from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from millstream.core.engine.columns import Column
from millstream.core.engine.operators.windows.window_columns import WindowedKeys
from millstream.core.model.errors import TopologyError

sizes = st.integers(1, 60)


@st.composite
def hopping(draw: st.DrawFn) -> ms.HoppingWindows:
    size = draw(sizes)
    return ms.HoppingWindows(size, draw(st.integers(1, size)), grace=draw(st.integers(0, 50)))


@given(windows=hopping(), timestamp=st.integers(0, 500))
def test_a_record_belongs_to_every_window_of_the_grid_that_contains_its_timestamp(
    windows: ms.HoppingWindows, timestamp: int
) -> None:
    grid = range(0, 501, windows.advance_ms)
    holding = [start for start in grid if start <= timestamp < start + windows.size_ms]
    assert list(windows.starts(timestamp)) == holding
    assert holding


@given(windows=hopping(), stream_time=st.integers(-1, 500))
def test_a_window_closes_when_stream_time_reaches_its_end_and_grace(
    windows: ms.HoppingWindows, stream_time: int
) -> None:
    grid = range(0, 501, windows.advance_ms)
    closed = [start for start in grid if start + windows.size_ms + windows.grace_ms <= stream_time]
    last = windows.last_closed(stream_time)
    assert last == closed[-1] if closed else last < 0
    assert last % windows.advance_ms == 0


def test_durations_may_be_timedeltas() -> None:
    second = timedelta(seconds=1)
    assert ms.TumblingWindows(second, grace=second) == ms.TumblingWindows(1000, grace=1000)


@pytest.mark.parametrize(
    ("size", "advance", "grace", "message"),
    [
        (0, 1, 0, "the size of windows must be at least 1 ms, not 0"),
        (10, 11, 0, r"advance by at least 1 ms and at most by their size \(10 ms\), not by 11 ms"),
        (10, 0, 0, "not by 0 ms"),
        (10, 5, -1, "the grace of windows must be at least 0 ms, not -1"),
    ],
)
def test_impossible_windows_are_refused(size: int, advance: int, grace: int, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        ms.HoppingWindows(size, advance, grace=grace)


@pytest.mark.parametrize(
    ("gap", "grace", "message"),
    [
        (0, 0, "the gap of sessions must be at least 1 ms, not 0"),
        (1, -1, "the grace of sessions must be at least 0 ms, not -1"),
    ],
)
def test_impossible_sessions_are_refused(gap: int, grace: int, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        ms.SessionWindows(gap, grace=grace)


def test_the_grace_must_be_chosen_explicitly() -> None:
    with pytest.raises(TypeError, match="grace"):
        ms.TumblingWindows(1000)  # type: ignore[call-arg]


LAST = (1 << 63) - 1
"""The largest timestamp, in ms since the epoch: Long.MAX_VALUE."""


@pytest.mark.parametrize(
    "windows",
    [
        ms.TumblingWindows(10, grace=0),
        ms.HoppingWindows(10, 5, grace=0),
        ms.SlidingWindows(10, grace=0),
        ms.SessionWindows(10, grace=0),
        ms.UnlimitedWindows(),
    ],
    ids=lambda windows: type(windows).__name__,
)
def test_no_window_ends_after_the_largest_timestamp(windows: Any) -> None:
    builder = ms.StreamsBuilder()
    counts = builder.stream("in").group_by_key().windowed_by(windows).count(store="w")
    counts.to_stream(lambda window, count: str(window.end)).to("out", value=ms.serdes.int64)
    with ms.testing.TopologyTestDriver(builder.build()) as driver:
        for timestamp in (LAST - 5, LAST - 2):
            driver.pipe("in", "k", "v", timestamp=timestamp)
        ends = [int(record.key) for record in driver.read("out")]
    assert LAST - 5 <= max(ends) <= LAST


def test_windowed_keys_in_columns_end_at_the_largest_timestamp() -> None:
    keys = Column(known=["a", "b"])
    column = WindowedKeys(keys, ms.serdes.string, [0, LAST - 2], 10)
    assert [(window.start, window.end) for window in column.objects()] == [(0, 10), (LAST - 2, LAST)]
