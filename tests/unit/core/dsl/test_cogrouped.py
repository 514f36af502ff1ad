"""Several grouped streams that share an aggregate."""

from __future__ import annotations

from typing import Any

import pytest

import millstream as ms
from millstream.core.model.errors import TopologyError
from unit.helpers import Host, sent


def appended(mark: str) -> Any:
    return lambda _, value, so_far: f"{so_far}{mark}{value}"


def both(builder: ms.StreamsBuilder, *, rekeyed: bool = False) -> ms.CogroupedKStream[Any, str]:
    streams = [builder.stream(topic) for topic in ("left", "right")]
    if rekeyed:
        streams = [stream.select_key(lambda _, value: value) for stream in streams]
    left, right = (stream.group_by_key() for stream in streams)
    return left.cogroup(appended("<")).cogroup(right, appended(">"))


def test_each_stream_updates_the_shared_row_with_its_own_aggregator() -> None:
    builder = ms.StreamsBuilder()
    both(builder).aggregate(str, store="rows").to_stream().to("out")
    host = Host(builder.build())
    host.run("left", ("a", "1", 5))
    assert sent(host.run("right", ("a", "2", 3), (None, "x", 3), ("a", None, 3))) == [("a", "<1>2", 5)]
    host.restart()
    assert sent(host.run("left", ("a", "3", 6))) == [("a", "<1>2<3", 6)]


def test_each_stream_has_its_own_stream_time() -> None:
    builder = ms.StreamsBuilder()
    windowed = both(builder).windowed_by(ms.TumblingWindows(10, grace=0))
    kept = windowed.aggregate(str, store=ms.stores.options("w", retention=11))
    kept.to_stream(lambda window, _: f"{window.key}@{window.start}").to("out")
    host = Host(builder.build())
    host.run("left", ("a", "1", 5), ("a", "2", 15))
    assert host.run("left", ("a", "late", 6)).metrics.dropped == {"late for a window": 1}
    assert sent(host.run("right", ("a", "3", 6))) == [("a@0", "<1>3", 6)]


@pytest.mark.parametrize("windows", [ms.TumblingWindows(10, grace=0), ms.HoppingWindows(10, 10, grace=0)])
def test_a_window_that_expired_by_one_stream_starts_again_for_the_other(windows: Any) -> None:
    """Kafka Streams 4.3 has the same results without a cache."""
    builder = ms.StreamsBuilder()
    rows = both(builder).windowed_by(windows).aggregate(str, store="w")
    rows.to_stream(lambda window, _: f"{window.key}@{window.start}").to("out")
    host = Host(builder.build())
    host.run("left", ("a", "1", 5), ("a", "2", 15))
    assert sent(host.run("right", ("a", "3", 6), ("a", "4", 7))) == [("a@0", ">3", 6), ("a@0", ">4", 7)]


def test_a_record_for_a_window_that_another_stream_let_expire_is_dropped() -> None:
    builder = ms.StreamsBuilder()
    both(builder).windowed_by(ms.TumblingWindows(10, grace=0)).aggregate(str, store="w")
    host = Host(builder.build())
    host.run("right", ("a", "1", 5))
    host.run("left", ("a", "2", 1_000_000))
    assert host.run("right", ("a", "3", 6)).metrics.dropped == {"expired window": 1}


def test_sessions_of_both_streams_are_merged() -> None:
    builder = ms.StreamsBuilder()
    sessions = both(builder).windowed_by(ms.SessionWindows(10, grace=100))
    merged = sessions.aggregate(str, lambda _, left, right: left + right, store="s")
    merged.to_stream(lambda window, _: f"{window.start}-{window.end}").to("out")
    host = Host(builder.build())
    host.run("left", ("a", "1", 0), ("a", "2", 20))
    assert sent(host.run("right", ("a", "3", 10)))[-1] == ("0-20", "<1<2>3", 20)


def test_idle_input_closes_the_windows_of_all_streams() -> None:
    builder = ms.StreamsBuilder()
    windowed = both(builder).windowed_by(ms.TumblingWindows(10, grace=0)).aggregate(str, store="w")
    until = ms.Suppressed.until_window_closes(close_idle_after=100)
    windowed.suppress(until, store="held").to_stream(lambda window, _: window.key).to("out")
    host = Host(builder.build())
    assert sent(host.run("left", ("a", "1", 5))) == sent(host.run("right", ("a", "2", 3))) == []
    assert sent(host.step(host.now_ms + 100)) == [("a", "<1>2", 5)]
    assert host.run("right", ("a", "3", 9)).metrics.dropped == {"late for a window": 1}


def test_each_rekeyed_stream_has_its_own_repartition_topic() -> None:
    builder = ms.StreamsBuilder()
    both(builder, rekeyed=True).aggregate(str, store="rows")
    assert list(builder.build().plan("app").internal_topics) == [
        "app-rows-repartition",
        "app-rows-1-repartition",
    ]


def test_streams_of_two_builders_are_refused() -> None:
    first, second = (ms.StreamsBuilder().stream("in").group_by_key() for _ in range(2))
    with pytest.raises(TopologyError, match="belong to different builders"):
        first.cogroup(appended("<")).cogroup(second, appended(">"))
