"""Joins for which Millstream differs from the recordings of Kafka Streams, or no recording exists."""

from __future__ import annotations

from typing import Any

import pytest

import millstream as ms
from golden.micro_batches import MicroBatches
from millstream.core.model.errors import CoPartitioningError, TopologyError
from millstream.core.topology.layout import lay_out

Event = tuple[str, str, str, int]
"""Side, key, value and timestamp of a record."""


def paired(left: str | None, right: str | None) -> str:
    return f"{left}+{right}"


def stream_join(kind: str, windows: ms.JoinWindows) -> ms.Topology:
    builder = ms.StreamsBuilder()
    join = getattr(builder.stream("left"), kind)
    join(builder.stream("right"), paired, windows=windows).to("out")
    return builder.build()


def results(topology: ms.Topology, events: list[Event]) -> list[tuple[str, str, int]]:
    with ms.testing.TopologyTestDriver(topology) as driver:
        for event in events:
            driver.pipe(*event)
        return [(r.key, r.value, r.timestamp) for r in driver.read("out")]


LATE = [
    ("right", "b", "b1", 1000),
    ("left", "a", "a1", 800),
    ("right", "a", "a2", 850),
]
"""A late record whose partner arrives within the grace period."""


def test_a_late_record_waits_for_its_partner_until_its_window_closes() -> None:
    windows = ms.JoinWindows(100, 100, grace=500)
    assert results(stream_join("left_join", windows), LATE) == [("a", "a1+a2", 850)]


def test_a_late_record_has_two_results_with_unmatched_early_as_in_kafka_streams() -> None:
    windows = ms.JoinWindows(100, 100, grace=500, unmatched="early")
    expected = [("a", "a1+None", 800), ("a", "a1+a2", 850)]
    assert results(stream_join("left_join", windows), LATE) == expected


CLOSED = [
    ("left", "a", "a1", 1000),
    ("left", "b", "b1", 1101),
    ("right", "a", "a2", 1050),
]
"""A partner that arrives when the window of a record has closed."""


def test_a_record_is_not_joined_after_its_unmatched_result_was_sent() -> None:
    windows = ms.JoinWindows(100, 100, grace=0)
    assert results(stream_join("left_join", windows), CLOSED) == [("a", "a1+None", 1000)]


def test_a_record_is_joined_after_its_unmatched_result_with_unmatched_early() -> None:
    windows = ms.JoinWindows(100, 100, grace=0, unmatched="early")
    expected = [("a", "a1+None", 1000), ("a", "a1+a2", 1050)]
    assert results(stream_join("left_join", windows), CLOSED) == expected


def values_by_wall_clock(windows: ms.JoinWindows, steps: list[tuple[str, str, int] | int]) -> list[list[str]]:
    """Return the values that a left join sends after each record; an int advances the wall clock by that many ms."""
    given = []
    with ms.testing.TopologyTestDriver(stream_join("left_join", windows), wall_clock_ms=0) as driver:
        for step in steps:
            if isinstance(step, int):
                driver.advance_wall_clock(step)
            else:
                topic, value, timestamp = step
                driver.pipe(topic, value, value, timestamp)
                given.append([r.value for r in driver.read("out")])
    return given


def test_unmatched_interval_delays_results_without_a_partner() -> None:
    windows = ms.JoinWindows(100, 100, grace=0, unmatched_interval=1000)
    steps = [("left", "a", 0), ("left", "b", 500), ("left", "c", 1000), 999, ("left", "d", 1001), 1]
    assert values_by_wall_clock(windows, [*steps, ("left", "e", 1002)]) == [
        [],
        ["a+None"],
        [],
        [],
        ["b+None"],
    ]


@pytest.mark.parametrize(("after", "expected"), [(100, [[], [], []]), (0, [[], ["a+None"], []])])
def test_unmatched_interval_also_applies_after_a_check_of_an_empty_store(
    after: int, expected: list[list[str]]
) -> None:
    """The first record triggers the first check, which finds nothing unless a window closes with its own record."""
    windows = ms.JoinWindows(100, after, grace=0, unmatched="early", unmatched_interval=1000)
    steps = [("left", "a", 0), ("left", "b", 500), 999, ("left", "c", 1000)]
    assert values_by_wall_clock(windows, [*steps, 1, ("left", "d", 1500)])[:3] == expected


def test_a_window_that_ends_before_time_0_ends_at_0_with_unmatched_early() -> None:
    steps: list[tuple[str, str, int] | int] = [("right", "a", 0), ("left", "a", 36)]
    assert values_by_wall_clock(ms.JoinWindows(300, -100, grace=50, unmatched="early"), steps)[1] == ["a+a"]
    assert values_by_wall_clock(ms.JoinWindows(300, -100, grace=50), steps)[1] == ["a+None"]


@pytest.mark.parametrize("unmatched", ["final", "early"])
class TestRecordsThatFail:
    """Under the policy "skip", a failed record does not lose the result of another record."""

    def results(self, unmatched: Any, *events: Event) -> list[str]:
        def joiner(left: str, right: str | None) -> str:
            if left == "bad":
                raise ValueError(left)
            return paired(left, right)

        builder = ms.StreamsBuilder()
        windows = ms.JoinWindows(before=5, after=5, grace=0, unmatched=unmatched)
        builder.stream("left").left_join(builder.stream("right"), joiner, windows=windows).to("out")
        policies = ms.ErrorPolicies(process="skip")
        with ms.testing.TopologyTestDriver(builder.build(), policies=policies) as driver:
            for event in events:
                driver.pipe(*event)
            return [record.value for record in driver.read("out")]

    def test_keep_the_results_of_the_windows_that_they_close(self, unmatched: Any) -> None:
        alone, partner = ("left", "a", "alone", 99), ("right", "b", "partner", 101)
        assert self.results(unmatched, alone, partner, ("left", "b", "bad", 105)) == ["alone+None"]

    def test_do_not_affect_other_records_when_their_own_windows_close(self, unmatched: Any) -> None:
        waiting = [("left", "a", value, 99) for value in ("first", "bad", "second")]
        closing = [("left", "b", value, time) for value, time in (("x", 200), ("y", 201), ("z", 300))]
        expected = [
            "first+None",
            "second+None",
            "y+None",
        ]  # the policy applies to the record that closes the windows
        assert self.results(unmatched, *waiting, *closing) == expected


def test_the_stream_time_of_a_join_survives_a_restart() -> None:
    topology = stream_join("left_join", ms.JoinWindows(100, 100, grace=0))
    runner = MicroBatches(topology, "app", chunk=1, budget=None)
    runner.process("left", [(b"a", b"a1", 1000, ())])
    runner.process("left", [(b"b", b"b1", 1101, ())])
    runner.process("right", [(b"a", b"a2", 1050, ())])
    assert [r.value for r in runner.sent["out"]] == ["a1+None"]


def test_the_partners_of_a_failed_record_remain_unmatched() -> None:
    def joiner(left: str | None, right: str | None) -> str:
        if right == "bad":
            raise ValueError(right)
        return paired(left, right)

    builder = ms.StreamsBuilder()
    windows = ms.JoinWindows(before=5, after=5, grace=0)
    builder.stream("left").left_join(builder.stream("right"), joiner, windows=windows).to("out")
    with ms.testing.TopologyTestDriver(builder.build(), policies=ms.ErrorPolicies(process="skip")) as driver:
        for event in [("left", "a", "a1", 1), ("right", "a", "bad", 2), ("left", "b", "b1", 100)]:
            driver.pipe(*event)
        assert [record.value for record in driver.read("out")] == ["a1+None"]


def test_a_derived_table_is_computed_from_its_row_and_key() -> None:
    builder = ms.StreamsBuilder()
    table = builder.table("right").map_values(lambda key, value: f"{key}:{value}", with_key=True)
    builder.stream("left").join(table, paired).to("out")
    assert results(builder.build(), [("right", "a", "r", 1), ("left", "a", "l", 2)]) == [("a", "l+a:r", 2)]


def test_a_derived_table_needs_no_store() -> None:
    builder = ms.StreamsBuilder()
    towns = builder.table("towns").filter(lambda k, v: v != "-").map_values(str.upper)
    joined = builder.table("names").left_join(towns, paired)
    builder.stream("in").join(joined, lambda k, a, b: f"{k}:{a}:{b}", with_key=True).to("out")
    topology = builder.build()
    assert set(topology.stores) == {"towns-table", "names-table"}
    with ms.testing.TopologyTestDriver(topology) as driver:
        steps: list[tuple[str, str | None]] = [("in", "1"), ("names", "Ada"), ("in", "2"), ("towns", "Rome")]
        for topic, value in [*steps, ("in", "3"), ("towns", "-"), ("in", "4"), ("names", None), ("in", "5")]:
            driver.pipe(topic, "k", value, 0)
        expected = ["k:2:Ada+None", "k:3:Ada+ROME", "k:4:Ada+None"]
        assert [r.value for r in driver.read("out")] == expected


@pytest.mark.parametrize("other", ["table", "stream"])
def test_both_sides_need_equal_numbers_of_partitions(other: str) -> None:
    builder = ms.StreamsBuilder()
    options: dict[str, Any] = {} if other == "table" else {"windows": ms.JoinWindows(1, 1, 0)}
    builder.stream("one").join(getattr(builder, other)("two"), paired, **options).to("out")
    with pytest.raises(CoPartitioningError, match="'one' has 2"):
        lay_out(builder.build().plan("app"), {"one": 2, "two": 3})


def test_a_rekeyed_stream_takes_the_number_of_partitions_of_the_table() -> None:
    builder = ms.StreamsBuilder()
    orders = builder.stream("orders").select_key(lambda k, v: v)
    orders.join(builder.table("prices"), paired, name="priced").to("out")
    partitions = lay_out(builder.build().plan("app"), {"orders": 2, "prices": 5}).partitions
    assert partitions["app-priced-repartition"] == 5


def test_sides_of_two_builders_are_refused() -> None:
    with pytest.raises(TopologyError, match="different builders"):
        ms.StreamsBuilder().stream("a").join(ms.StreamsBuilder().table("b"), paired)


def test_a_join_of_two_streams_requires_windows() -> None:
    builder = ms.StreamsBuilder()
    join: Any = builder.stream("a").join
    with pytest.raises(TopologyError, match="JoinWindows"):
        join(builder.stream("b"), paired)


@pytest.mark.parametrize(
    ("side", "functions", "option", "given"),
    [
        ("table", 1, "windows", ms.JoinWindows(1, 1, 0)),
        ("table", 1, "other_value", ms.serdes.string),
        ("global_table", 2, "store", "kept"),
        ("global_table", 2, "grace", 5),
        ("stream", 1, "grace", 5),
    ],
)
def test_an_option_without_effect_is_rejected(side: str, functions: int, option: str, given: Any) -> None:
    builder = ms.StreamsBuilder()
    join: Any = builder.stream("a").join
    with pytest.raises(TopologyError, match=f"{option}=... has no effect in a join"):
        join(getattr(builder, side)("b"), *[paired] * functions, **{option: given})


def test_an_outer_join_of_a_stream_with_a_table_is_rejected() -> None:
    builder = ms.StreamsBuilder()
    outer_join: Any = builder.stream("a").outer_join
    with pytest.raises(TopologyError, match=r"other must be KStream, not a KTable; .* left_join\(\)"):
        outer_join(builder.table("b"), paired)


@pytest.mark.parametrize(
    "arguments", [{"before": -2, "after": 1}, {"grace": -1}, {"unmatched_interval": -1}, {"unmatched": "no"}]
)
def test_invalid_windows_are_rejected(arguments: dict[str, Any]) -> None:
    with pytest.raises(TopologyError, match="JoinWindows"):
        ms.JoinWindows(**{"before": 1, "after": 1, "grace": 0, **arguments})
