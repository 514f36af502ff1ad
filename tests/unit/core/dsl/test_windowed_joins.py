"""Joins with tables by key and window: both sides are looked up by `Windowed` keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from golden.micro_batches import MicroBatches
from millstream.core.model.errors import ProcessingError, TopologyError

Event = tuple[str, str, str, int]
"""Topic, key, value and timestamp of a record."""
Table = ms.KTable[Any, Any]
KINDS: dict[str, Any] = {
    "tumbling": ms.TumblingWindows(10, grace=15),
    "hopping": ms.HoppingWindows(10, advance=5, grace=0),
    "sliding": ms.SlidingWindows(10, grace=0),
    "session": ms.SessionWindows(10, grace=0),
}


def joined(left: Any, right: Any) -> str:
    return f"{left}/{right}"


def counts(builder: ms.StreamsBuilder, topic: str, kind: str = "tumbling") -> Table:
    grouped = builder.stream(topic).group_by_key()
    counted: Table = grouped.windowed_by(KINDS[kind]).count()
    return counted


def send_rows(stream: ms.KStream[Any, Any]) -> None:
    stream.map(lambda w, v: (f"{w.key}@{w.start}", str(v))).to("out")


def topology(define: Callable[[ms.StreamsBuilder], ms.KStream[Any, Any]]) -> ms.Topology:
    builder = ms.StreamsBuilder()
    send_rows(define(builder))
    return builder.build()


def results(
    define: Callable[[ms.StreamsBuilder], ms.KStream[Any, Any]], events: list[Event]
) -> list[tuple[str, str, int]]:
    with ms.testing.TopologyTestDriver(topology(define)) as driver:
        for event in events:
            driver.pipe(*event)
        return [(r.key, r.value, r.timestamp) for r in driver.read("out")]


EVENTS: list[Event] = [
    ("left", "a", "x", 1),
    ("right", "a", "x", 3),
    ("right", "a", "x", 2),
    ("left", "b", "x", 4),
    ("left", "a", "x", 11),
    ("right", "a", "x", 12),
    ("left", "a", "x", 13),
]


@pytest.mark.parametrize(
    ("join", "expected"),
    [
        ("join", [("a@10", "2/1", 13)]),
        (
            "left_join",
            [("a@0", "1/None", 1), ("b@0", "1/None", 4), ("a@10", "1/None", 11), ("a@10", "2/1", 13)],
        ),
    ],
)
def test_a_stream_is_joined_with_the_row_of_its_key_and_window(join: str, expected: list[Any]) -> None:
    def define(b: ms.StreamsBuilder) -> ms.KStream[Any, Any]:
        joining = getattr(counts(b, "left").to_stream(), join)
        result: ms.KStream[Any, Any] = joining(counts(b, "right"), joined)
        return result

    assert results(define, EVENTS) == expected


@pytest.mark.parametrize(
    ("join", "expected"),
    [
        ("join", ["a@0 1/1 3", "a@0 1/2 3", "a@10 1/1 12", "a@10 2/1 13"]),
        (
            "left_join",
            [
                "a@0 1/None 1",
                "a@0 1/1 3",
                "a@0 1/2 3",
                "b@0 1/None 4",
                "a@10 1/None 11",
                "a@10 1/1 12",
                "a@10 2/1 13",
            ],
        ),
        (
            "outer_join",
            [
                "a@0 1/None 1",
                "a@0 1/1 3",
                "a@0 1/2 3",
                "b@0 1/None 4",
                "a@10 1/None 11",
                "a@10 1/1 12",
                "a@10 2/1 13",
            ],
        ),
    ],
)
def test_two_tables_are_joined_by_key_and_window(join: str, expected: list[str]) -> None:
    def define(b: ms.StreamsBuilder) -> ms.KStream[Any, Any]:
        joining = getattr(counts(b, "left"), join)
        table: Table = joining(counts(b, "right"), joined)
        return table.to_stream()

    assert [f"{key} {value} {time}" for key, value, time in results(define, EVENTS)] == expected


@pytest.mark.parametrize("kind", KINDS)
def test_windows_of_every_kind_can_be_joined(kind: str) -> None:
    """Both sides count the same topic, so every row has a partner with the same count, or the count of one record before."""

    def define(b: ms.StreamsBuilder) -> ms.KStream[Any, Any]:
        grouped = b.stream("in").group_by_key()
        left, right = (grouped.windowed_by(KINDS[kind]).count(name=name) for name in ("one", "other"))
        return left.join(right, joined).to_stream()

    sent_rows = results(define, [("in", "a", "x", time) for time in (20, 25, 31, 60)])
    rows = {key: value for key, value, _ in sent_rows if value != "None"}
    expected = {
        "tumbling": {"a@20": "2/2", "a@30": "1/1", "a@60": "1/1"},
        "hopping": {"a@15": "1/1", "a@20": "2/2", "a@25": "2/2", "a@30": "1/1", "a@55": "1/1", "a@60": "1/1"},
        "sliding": {"a@10": "1/1", "a@15": "2/2", "a@21": "2/2", "a@26": "1/1", "a@50": "1/1"},
        "session": {"a@20": "3/3", "a@60": "1/1"},
    }
    assert expected[kind].items() <= rows.items()
    times = {key: time for key, value, time in sent_rows if value == rows.get(key)}
    assert times["a@20"] == 31 if kind == "session" else times


def test_the_row_of_a_session_has_the_timestamp_of_its_end() -> None:
    def define(b: ms.StreamsBuilder) -> ms.KStream[Any, Any]:
        left, right = counts(b, "left", "session"), counts(b, "right", "session")
        return left.join(right, joined).to_stream()

    events = [
        ("right", "a", "x", 10),
        ("right", "a", "x", 15),
        ("left", "a", "x", 10),
        ("left", "a", "x", 15),
    ]
    assert results(define, events)[-1] == ("a@10", "2/2", 15)


def test_derived_tables_are_computed_from_the_windows() -> None:
    def define(b: ms.StreamsBuilder) -> ms.KStream[Any, Any]:
        left = counts(b, "left").map_values(lambda count: count * 10).filter(lambda w, v: w.key != "b")
        right = counts(b, "right").map_values(lambda w, count: w.key + str(count), with_key=True)
        return left.left_join(right, joined).join(counts(b, "third"), joined).to_stream()

    events = [("right", "a", "x", 1), ("third", "a", "x", 1), ("third", "b", "x", 2)]
    events += [("left", "b", "x", 3), ("left", "a", "x", 3)]
    assert results(define, events) == [("a@0", "10/a1/1", 3)]


def test_the_windows_of_a_cogroup_can_be_joined() -> None:
    def define(b: ms.StreamsBuilder) -> ms.KStream[Any, Any]:
        both = b.stream("left").group_by_key().cogroup(lambda k, v, a: a + v)
        table = both.windowed_by(KINDS["tumbling"]).aggregate(str)
        return counts(b, "right").join(table, joined).to_stream()

    assert results(define, [("left", "a", "x", 1), ("right", "a", "y", 2)]) == [("a@0", "1/x", 2)]


def test_a_join_finds_only_the_final_rows_of_a_suppressed_table() -> None:
    def define(b: ms.StreamsBuilder) -> ms.KStream[Any, Any]:
        final = counts(b, "right").suppress(ms.Suppressed.until_window_closes())
        return counts(b, "left").left_join(final, joined).to_stream()

    events = [("right", "a", "x", 1), ("left", "a", "x", 2), ("right", "b", "x", 25), ("left", "a", "x", 3)]
    assert results(define, events) == [("a@0", "1/None", 2), ("a@0", "1/1", 2), ("a@0", "2/1", 3)]


def test_windowed_tables_can_be_joined_by_foreign_keys() -> None:
    def define(b: ms.StreamsBuilder) -> ms.KStream[Any, Any]:
        names, text = b.table("names"), ms.serdes.string
        windowed = counts(b, "left").to_stream().map_values(str).repartition(value=text).to_table()
        return windowed.join(
            names, lambda _, count, name: joined(count, name), on=lambda w, _: w.key, with_key=True
        ).to_stream()

    events = [
        ("left", "a", "x", 1),
        ("names", "a", "Ann", 5),
        ("left", "a", "x", 12),
        ("names", "a", "Anna", 20),
    ]
    assert results(define, events) == [
        ("a@0", "1/Ann", 5),
        ("a@10", "1/Ann", 12),
        ("a@0", "1/Anna", 20),
        ("a@10", "1/Anna", 20),
    ]


def test_an_expired_window_has_no_row() -> None:
    def define(b: ms.StreamsBuilder) -> ms.KStream[Any, Any]:
        return counts(b, "left").left_join(counts(b, "right"), joined).to_stream()

    events = [("right", "a", "x", 1), ("right", "a", "x", 1_000_000), ("left", "a", "x", 2)]
    assert results(define, events) == [("a@0", "1/None", 2)]


def test_the_error_for_a_key_without_a_window_says_what_is_missing() -> None:
    builder = ms.StreamsBuilder()
    builder.stream("left").join(counts(builder, "right"), joined).to("out")
    with (
        ms.testing.TopologyTestDriver(builder.build()) as driver,
        pytest.raises(
            ProcessingError, match=r"windowed keys, but a row was looked up for 'a'; .* Windowed\("
        ),
    ):
        driver.pipe("left", "a", "x", 1)


def test_a_rekeyed_stream_cannot_be_joined_with_a_windowed_aggregation() -> None:
    builder = ms.StreamsBuilder()
    table = counts(builder, "right").filter(lambda w, v: True)
    moved = builder.stream("left").map(lambda k, v: (ms.Windowed(k, 0, 10), v))
    with pytest.raises(TopologyError, match="keys were changed cannot be joined with a windowed aggregation"):
        moved.join(table, joined)
    repartitioned = table.to_stream().repartition().to_table()
    moved.join(repartitioned, joined).to("out", value=ms.serdes.string)
    assert builder.build()


def test_a_windowed_aggregation_must_be_repartitioned_before_a_foreign_key_join() -> None:
    builder = ms.StreamsBuilder()
    names = builder.table("names")
    windowed = counts(builder, "left")
    for left, right in ((windowed, names), (names, windowed)):
        with pytest.raises(
            TopologyError, match=r"cannot be joined by a foreign key directly: .*repartition\("
        ):
            left.join(right, joined, on=str)


EVENT = st.tuples(st.sampled_from(["left", "right"]), st.sampled_from("ab"), st.just("x"), st.integers(0, 60))


@given(st.lists(EVENT, max_size=12))
def test_joins_of_windowed_tables_have_the_same_results_as_a_model(events: list[Event]) -> None:
    grace = 15
    rows: Counter[tuple[str, str, int]] = Counter()
    newest: Counter[tuple[str, str, int]] = Counter()
    time, last_start = {"left": -1, "right": -1}, {"left": -1, "right": -1}
    expected: list[tuple[str, str, int]] = []
    for side, key, _, timestamp in events:
        time[side] = max(time[side], timestamp)
        start = timestamp - timestamp % 10
        if start + 10 + grace <= time[side]:
            continue  # late
        last_start[side] = max(last_start[side], start)
        rows[side, key, start] += 1
        newest[side, key, start] = max(newest[side, key, start], timestamp)
        left, right, other = (
            ("left", key, start),
            ("right", key, start),
            {"left": "right", "right": "left"}[side],
        )
        kept = start > last_start[other] - (10 + grace)
        if rows[left] and rows[right] and kept:
            value = f"{rows[left]}/{rows[right]}"
            expected.append((f"{key}@{start}", value, max(newest[left], newest[right])))

    def define(b: ms.StreamsBuilder) -> ms.KStream[Any, Any]:
        return counts(b, "left").join(counts(b, "right"), joined).to_stream()

    assert results(define, events) == expected
    batches = MicroBatches(topology(define), "app", chunk=1, budget=None)
    for topic, key, value, timestamp in events:
        batches.process(topic, [(key.encode(), value.encode(), timestamp, ())])
    assert [(r.key, r.value, r.timestamp) for r in batches.sent["out"]] == expected


@pytest.mark.parametrize("first", ["join", "outer_join"])
def test_joins_of_one_stream_share_a_repartition_topic(first: str) -> None:
    builder = ms.StreamsBuilder(names="numbered")
    stream, other = builder.stream("in").select_key(lambda k, v: v or None), builder.stream("other")
    windows = ms.JoinWindows(10, 10, grace=0)
    for operator in (first, "outer_join" if first == "join" else "join"):
        getattr(stream, operator)(other, lambda a, b: f"{a}{b}", windows=windows).to(operator)
    topology = builder.build()
    assert len(topology.plan().internal_topics) == 1
    with ms.testing.TopologyTestDriver(topology) as driver:
        driver.pipe("other", "k", "x", 0)
        driver.pipe("in", "", "k", 1)
        driver.pipe("in", "", "", 2)
        driver.pipe("other", "z", "late", 100)
        assert [record.value for record in driver.read("join")] == ["kx"]
        assert [record.value for record in driver.read("outer_join")][:2] == ["kx", "None"]
