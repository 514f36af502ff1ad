"""Sliding windows, one record at a time and across restarts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from millstream.core.model.errors import TopologyError
from unit.helpers import Host, sent

Rows = list[tuple[str, int]]


def topology(windows: ms.SlidingWindows, emit: ms.EmitStrategy = ms.on_window_update) -> ms.Topology:
    """Collect the values of each window in the order in which they were added."""
    builder = ms.StreamsBuilder()
    windowed = builder.stream("in").group_by_key().windowed_by(windows, emit=emit)
    kept = ms.stores.options("w", retention=10_000)
    texts = windowed.aggregate(
        str, lambda _, value, so_far: so_far + value, value=ms.serdes.string, store=kept
    )
    texts.to_stream(lambda w, _: f"{w.key}@{w.start}-{w.end}").to("out")
    return builder.build()


class TestOnUpdate:
    def test_a_record_creates_its_own_window_and_the_window_after_the_previous_record(self) -> None:
        host = Host(topology(ms.SlidingWindows(10, grace=0)))
        assert sent(host.run("in", ("a", "x", 20), ("a", "y", 25))) == [
            ("a@10-20", "x", 20),
            ("a@21-31", "y", 25),
            ("a@15-25", "xy", 25),
        ]

    def test_a_record_out_of_order_is_added_to_the_windows_around_it(self) -> None:
        host = Host(topology(ms.SlidingWindows(10, grace=100)))
        host.run("in", ("a", "x", 20), ("a", "y", 28))
        assert sent(host.run("in", ("a", "z", 24))) == [
            ("a@21-31", "yz", 28),
            ("a@18-28", "xyz", 28),
            ("a@14-24", "xz", 24),
            ("a@25-35", "y", 28),
        ]

    def test_a_record_just_after_the_window_of_the_previous_record_may_update_its_window_twice(
        self,
    ) -> None:
        """As in Kafka Streams: its left window is also the right window of the previous record, if that record is found."""
        host = Host(topology(ms.SlidingWindows(10, grace=100)))
        host.run("in", ("a", "x", 15), ("a", "y", 18))
        twice = ("a@19-29", "z", 29)
        assert sent(host.run("in", ("a", "z", 29))) == [twice, twice]
        host = Host(topology(ms.SlidingWindows(10, grace=100)))
        host.run("in", ("a", "x", 20))
        assert sent(host.run("in", ("a", "z", 31))) == [("a@21-31", "z", 31)]

    def test_a_record_whose_window_starts_at_0_updates_its_own_window_first(
        self,
    ) -> None:
        host = Host(topology(ms.SlidingWindows(10, grace=100)))
        host.run("in", ("a", "x", 3))
        assert sent(host.run("in", ("a", "y", 10))) == [("a@0-10", "xy", 10), ("a@4-14", "y", 10)]

    def test_a_late_record_is_added_to_the_window_that_begins_with_it_if_that_is_open(self) -> None:
        host = Host(topology(ms.SlidingWindows(10, grace=5)))
        host.run("in", ("a", "x", 84), ("a", "y", 90), ("b", "x", 100))
        assert sent(host.run("in", ("a", "late", 84))) == []
        assert sent(host.run("in", ("a", "z", 85))) == [("a@85-95", "yz", 90), ("a@86-96", "y", 90)]

    def test_a_second_late_record_with_the_same_timestamp_creates_no_window_after_it(self) -> None:
        host = Host(topology(ms.SlidingWindows(10, grace=0)))
        host.run("in", ("a", "x", 20), ("b", "x", 30))
        assert sent(host.run("in", ("a", "y", 25))) == [("a@21-31", "y", 25)]
        assert sent(host.run("in", ("a", "z", 25))) == [("a@21-31", "yz", 25)]

    def test_early_records_share_the_first_window(self) -> None:
        host = Host(topology(ms.SlidingWindows(10, grace=100)))
        assert sent(host.run("in", ("a", "x", 3), ("a", "y", 7))) == [
            ("a@0-10", "x", 3),
            ("a@4-14", "y", 7),
            ("a@0-10", "xy", 7),
        ]

    def test_null_keys_and_null_values_are_dropped(self) -> None:
        outcome = Host(topology(ms.SlidingWindows(10, grace=0))).run("in", ("a", None, 1), (None, "x", 2))
        assert outcome.metrics.dropped == {"null key or value in an aggregation": 2}

    def test_late_records_stay_late_after_a_restart(self) -> None:
        host = Host(topology(ms.SlidingWindows(10, grace=5)))
        host.run("in", ("a", "x", 100))
        host.restart()
        assert host.run("in", ("b", "x", 84)).metrics.dropped == {"late for a window": 1}
        assert host.run("in", ("b", "x", 85)).metrics.dropped == {"late for a window": 1}
        assert sent(host.run("in", ("b", "x", 95))) == [("b@85-95", "x", 95)]

    def test_a_failed_function_does_not_change_the_windows(self) -> None:
        def failing(so_far: str, value: str) -> str:
            raise ValueError("no more")

        builder = ms.StreamsBuilder()
        grouped = builder.stream("in").group_by_key().windowed_by(ms.SlidingWindows(10, grace=5))
        grouped.reduce(failing, store="w")
        host = Host(builder.build(), policies=ms.ErrorPolicies(process="skip"))
        host.run("in", ("a", "x", 20), ("a", "y", 25))
        assert [(window.start, row.value) for window, row in host.store("w").all()] == [(10, "x")]

    def test_only_an_update_of_an_existing_window_has_an_old_value(self) -> None:
        builder = ms.StreamsBuilder()
        counts = (
            builder.stream("in").group_by_key().windowed_by(ms.SlidingWindows(10, grace=5)).count(store="w")
        )
        total = counts.group_by(
            lambda window, n: (window.key, n), key=ms.serdes.string, value=ms.serdes.int64
        )
        add = total.reduce(lambda a, b: a + b, lambda a, b: a - b, store="total")
        add.to_stream().map_values(str).to("out")
        with ms.testing.TopologyTestDriver(builder.build()) as driver:
            driver.pipe("in", "a", "x", 20)
            driver.pipe("in", "a", "y", 25)
            driver.pipe("in", "a", "z", 24)
            assert driver.store("total").get("a").value == sum(
                row.value for _, row in driver.store("w").all()
            )


class TestOnClose:
    def test_a_window_sends_one_result_when_stream_time_has_passed_its_end_and_grace(self) -> None:
        host = Host(topology(ms.SlidingWindows(10, grace=5), ms.on_window_close))
        assert sent(host.run("in", ("b", "x", 20), ("a", "x", 20), ("c", "x", 25))) == []
        assert sent(host.run("in", ("c", "y", 26))) == [("a@10-20", "x", 20), ("b@10-20", "x", 20)]

    @given(
        rows=st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 60)), min_size=1, max_size=20),
        difference=st.integers(1, 12),
        grace=st.integers(0, 12),
        restarts=st.booleans(),
    )
    def test_the_result_of_each_window_is_its_last_update(
        self, rows: Rows, difference: int, grace: int, restarts: bool
    ) -> None:
        windows = ms.SlidingWindows(difference, grace=grace)
        updates, closes = Host(topology(windows)), Host(topology(windows, ms.on_window_close))
        last: dict[Any, Any] = {}
        given: list[Any] = []
        for number, (key, timestamp) in enumerate([*rows, ("c", 1000)]):
            row = (key, chr(ord("a") + number), timestamp)
            last.update(
                {
                    window: (text, result_timestamp)
                    for window, text, result_timestamp in sent(updates.run("in", row))
                }
            )
            given += sent(closes.run("in", row))
            if restarts:
                closes.restart()
        assert sorted(given) == sorted((window, *row) for window, row in last.items() if window[0] != "c")


@given(
    rows=st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 60)), max_size=20),
    difference=st.integers(1, 20),
    restarts=st.booleans(),
)
def test_every_set_of_records_within_the_difference_has_its_window(
    rows: Rows, difference: int, restarts: bool
) -> None:
    host = Host(topology(ms.SlidingWindows(difference, grace=1000)))
    for number, (key, timestamp) in enumerate(rows):
        host.run("in", (key, chr(ord("a") + number), timestamp))
        if restarts:
            host.restart()
    stored_windows = {tuple(window): sorted(row.value) for window, row in host.store("w").all()}
    expected = {}
    for key, timestamp in rows:
        for start in (max(0, timestamp - difference), timestamp + 1):
            window = (key, start, start + difference)
            texts = [
                chr(ord("a") + number)
                for number, (k, t) in enumerate(rows)
                if k == key and start <= t <= start + difference
            ]
            if texts:
                expected[window] = texts
    assert stored_windows == expected


def test_invalid_windows_are_rejected() -> None:
    with pytest.raises(TopologyError, match="difference of sliding windows must be at least 1 ms, not 0"):
        ms.SlidingWindows(0, grace=0)
    with pytest.raises(TopologyError, match="grace of sliding windows must be at least 0 ms, not -1"):
        ms.SlidingWindows(1, grace=-1)


def test_a_retention_that_is_too_short_is_rejected() -> None:
    windowed = ms.StreamsBuilder().stream("in").group_by_key().windowed_by(ms.SlidingWindows(10, grace=5))
    with pytest.raises(TopologyError, match="at least 25 ms, which is twice the difference plus grace"):
        windowed.count(store=ms.stores.options("w", retention=24))
