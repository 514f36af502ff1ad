"""Windowed aggregations, one record at a time and across restarts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from millstream.core.model.errors import ProcessingError, TopologyError
from unit.helpers import Host, sent

INT = ms.serdes.int64
TUMBLING = ms.TumblingWindows(10, grace=5)
Define = Callable[[Any], ms.KTable[Any, Any]]


def topology(
    define: Define, windows: Any = TUMBLING, emit: ms.EmitStrategy = ms.on_window_update
) -> ms.Topology:
    """Return a topology that sends the results of a windowed aggregation as text, with the key `<key>@<start>-<end>`."""
    builder = ms.StreamsBuilder()
    table = define(builder.stream("in").group_by_key().windowed_by(windows, emit=emit))
    results = table.to_stream(lambda window, _: f"{window.key}@{window.start}-{window.end}")
    results.map_values(lambda value: None if value is None else str(value)).to("out")
    return builder.build()


def counted(windows: Any = TUMBLING, emit: ms.EmitStrategy = ms.on_window_update) -> Host:
    return Host(topology(lambda windowed: windowed.count(store="w"), windows, emit))


class TestOnUpdate:
    def test_every_record_sends_the_current_result(self) -> None:
        host = counted()
        host.feed("in", [("a", "x", 3), ("a", "x", 12), ("a", "x", 1), ("b", "x", 12)])
        assert sent(host.step()) == [
            ("a@0-10", "1", 3),
            ("a@10-20", "1", 12),
            ("a@0-10", "2", 3),
            ("b@10-20", "1", 12),
        ]

    def test_a_record_updates_all_overlapping_windows(self) -> None:
        host = counted(ms.HoppingWindows(10, advance=5, grace=0))
        host.feed("in", [("a", "x", 7), ("a", "x", 12)])
        assert sent(host.step()) == [
            ("a@0-10", "1", 7),
            ("a@5-15", "1", 7),
            ("a@5-15", "2", 12),
            ("a@10-20", "1", 12),
        ]

    def test_a_late_record_is_dropped_only_for_closed_windows(self) -> None:
        host = counted(ms.HoppingWindows(10, advance=5, grace=0))
        host.feed("in", [("b", "x", 10), ("a", "x", 7)])
        outcome = host.step()
        assert [row for row in sent(outcome) if row[0][0] == "a"] == [("a@5-15", "1", 7)]
        assert outcome.metrics.dropped == {"late for a window": 1}

    def test_null_values_are_counted_and_null_keys_are_dropped(self) -> None:
        host = counted()
        host.feed("in", [("a", None, 1), (None, "x", 2)])
        outcome = host.step()
        assert sent(outcome) == [("a@0-10", "1", 1)]
        assert outcome.metrics.dropped == {"null key in a windowed aggregation": 1}

    def test_a_null_aggregate_deletes_the_window_and_is_forwarded(self) -> None:
        host = Host(topology(lambda windowed: windowed.reduce(lambda so_far, value: None, store="w")))
        host.feed("in", [("a", "x", 1), ("a", "y", 2), ("a", "z", 3)])
        assert sent(host.step()) == [("a@0-10", "x", 1), ("a@0-10", None, 2), ("a@0-10", "z", 3)]

    def test_late_records_stay_late_after_a_restart(self) -> None:
        host = counted()
        host.feed("in", [("a", "x", 15)])
        host.step()
        host.restart()
        host.feed("in", [("a", "x", 9)])
        assert host.step().metrics.dropped == {"late for a window": 1}

    def test_downstream_operators_receive_old_values(self) -> None:
        big = lambda windowed: windowed.count(store="w").filter(lambda _, count: count == 1)  # noqa: E731
        host = Host(topology(big))
        host.feed("in", [("a", "x", 1), ("a", "x", 2), ("a", "x", 3)])
        assert sent(host.step()) == [("a@0-10", "1", 1), ("a@0-10", None, 2)]

    def test_the_last_of_many_windows_has_its_result(self) -> None:
        host = counted(ms.TumblingWindows(1, grace=0))
        host.feed("in", [("a", "x", timestamp) for timestamp in range(300)])
        assert sent(host.step())[-1] == ("a@299-300", "1", 299)

    def test_the_error_of_a_failed_function_names_the_node(self) -> None:
        host = Host(topology(lambda windowed: windowed.aggregate(dict, lambda k, v, a: a["no"], store="w")))
        host.feed("in", [("a", "x", 1)])
        with pytest.raises(ProcessingError, match=r"KSTREAM-AGGREGATE-\d+ failed .* KeyError: 'no'"):
            host.step()


class TestOnClose:
    def test_a_window_sends_one_result_when_stream_time_passes_its_end_and_grace(self) -> None:
        host = counted(emit=ms.on_window_close)
        host.feed("in", [("b", "x", 3), ("a", "x", 4), ("a", "x", 14)])
        assert sent(host.step()) == []
        host.feed("in", [("c", "x", 15)])
        assert sent(host.step()) == [("a@0-10", "1", 4), ("b@0-10", "1", 3)]

    def test_no_result_is_sent_twice_after_a_restart(self) -> None:
        host = counted(emit=ms.on_window_close)
        host.feed("in", [("a", "x", 3), ("a", "x", 15)])
        assert sent(host.step()) == [("a@0-10", "1", 3)]
        host.restart()
        host.feed("in", [("a", "x", 16), ("a", "x", 25)])
        assert sent(host.step()) == [("a@10-20", "2", 16)]

    def test_no_window_is_lost_when_stream_time_jumps_far_ahead(self) -> None:
        host = counted(emit=ms.on_window_close)
        host.feed("in", [("a", "x", 3), ("a", "x", 11), ("a", "x", 10_000_000)])
        assert sent(host.step()) == [("a@0-10", "1", 3), ("a@10-20", "1", 11)]

    def test_the_store_can_be_read_by_key(self) -> None:
        with ms.testing.TopologyTestDriver(
            topology(lambda windowed: windowed.count(store="w"), TUMBLING, ms.on_window_close)
        ) as driver:
            for key, timestamp in [("b", 3), ("a", 4), ("a", 14), ("aa", 14)]:
                driver.pipe("in", key, "x", timestamp)
            store = driver.store("w")
            assert [start for start, _ in store.fetch("a", 0, 100)] == [0, 10]
            assert store.fetch("a", 10) == ms.ValueAndTimestamp(1, 14)
            assert [window.key for window, _ in store.all()] == ["a", "b", "a", "aa"]


def sessions_of(times: list[int], gap: int) -> list[tuple[int, int, int]]:
    """Return start, end and number of records of the sessions that these times form in any order."""
    sessions: list[tuple[int, int, int]] = []
    for time in sorted(times):
        if sessions and time - sessions[-1][1] <= gap:
            start, _, count = sessions.pop()
            sessions.append((start, time, count + 1))
        else:
            sessions.append((time, time, 1))
    return sessions


class TestSessions:
    def test_a_record_between_two_sessions_merges_them(self) -> None:
        host = counted(ms.SessionWindows(10, grace=20))
        host.feed("in", [("a", "x", 0), ("a", "x", 20), ("a", "x", 10)])
        assert sent(host.step()) == [
            ("a@0-0", "1", 0),
            ("a@20-20", "1", 20),
            ("a@0-0", None, 0),
            ("a@20-20", None, 20),
            ("a@0-20", "3", 20),
        ]

    @given(
        times=st.lists(st.integers(0, 100), min_size=1, max_size=20),
        gap=st.integers(1, 20),
        restarts=st.booleans(),
    )
    def test_sessions_are_the_clusters_of_the_timestamps(
        self, times: list[int], gap: int, restarts: bool
    ) -> None:
        host = counted(ms.SessionWindows(gap, grace=1000))
        for time in times:
            host.run("in", ("a", "x", time))
            if restarts:
                host.restart()
        stored_sessions = [(window.start, window.end, count) for window, count in host.store("w").all()]
        assert stored_sessions == sessions_of(times, gap)

    def test_late_records_stay_late_after_a_restart(self) -> None:
        host = counted(ms.SessionWindows(10, grace=5))
        host.run("in", ("a", "x", 100))
        host.restart()
        assert host.run("in", ("b", "x", 84)).metrics.dropped == {"late for a session": 1}
        assert sent(host.run("in", ("b", "x", 85))) == [("b@85-85", "1", 85)]

    def test_a_null_key_is_dropped(self) -> None:
        outcome = counted(ms.SessionWindows(10, grace=5)).run("in", (None, "x", 1))
        assert outcome.metrics.dropped == {"null key in a windowed aggregation": 1}

    def test_a_deletion_passes_a_filter_that_the_session_had_passed(self) -> None:
        few = lambda windowed: windowed.count(store="w").filter(lambda _, count: count == 1)  # noqa: E731
        host = Host(topology(few, ms.SessionWindows(10, grace=5)))
        assert sent(host.run("in", ("a", "x", 1), ("a", "x", 1))) == [("a@1-1", "1", 1), ("a@1-1", None, 1)]

    def test_a_failed_function_does_not_change_the_sessions(self) -> None:
        def no_more(so_far: str, value: str) -> str:
            raise ValueError("no more")

        host = Host(
            topology(lambda windowed: windowed.reduce(no_more, store="w"), ms.SessionWindows(10, grace=5)),
            policies=ms.ErrorPolicies(process="skip"),
        )
        assert sent(host.run("in", ("a", "x", 1), ("a", "y", 2))) == [("a@1-1", "x", 1)]
        assert list(host.store("w").all()) == [(ms.Windowed("a", 1, 1), "x")]

    def test_a_retention_that_is_too_short_is_rejected(self) -> None:
        kept = ms.stores.options("w", retention=14)
        with pytest.raises(TopologyError, match=r"store 'w': .* at least 15 ms, which is gap plus grace"):
            topology(lambda windowed: windowed.count(store=kept), ms.SessionWindows(10, grace=5))


class TestSessionsOnClose:
    def test_a_session_sends_one_result_when_stream_time_passes_gap_and_grace(self) -> None:
        host = counted(ms.SessionWindows(10, grace=5), ms.on_window_close)
        assert sent(host.run("in", ("b", "x", 3), ("a", "x", 3), ("a", "x", 9), ("c", "x", 18))) == []
        assert sent(host.run("in", ("c", "x", 25))) == [("b@3-3", "1", 3), ("a@3-9", "2", 9)]

    def test_no_result_is_sent_twice_after_a_restart(self) -> None:
        host = counted(ms.SessionWindows(10, grace=5), ms.on_window_close)
        assert sent(host.run("in", ("a", "x", 3), ("a", "x", 19))) == [("a@3-3", "1", 3)]
        host.restart()
        assert sent(host.run("in", ("a", "x", 20), ("a", "x", 36))) == [("a@19-20", "2", 20)]

    def test_a_closed_session_accepts_no_records_even_while_it_is_still_stored(self) -> None:
        kept = ms.stores.options("w", retention=1000)
        define = lambda windowed: windowed.count(store=kept)  # noqa: E731
        host = Host(topology(define, ms.SessionWindows(10, grace=5), ms.on_window_close))
        host.run("in", ("a", "x", 3), ("b", "x", 19))
        assert sent(host.run("in", ("a", "x", 13), ("b", "x", 40))) == [
            ("a@13-13", "1", 13),
            ("b@19-19", "1", 19),
        ]

    def test_a_session_without_an_aggregate_sends_nothing(self) -> None:
        none = lambda windowed: windowed.reduce(lambda so_far, value: None, store="w")  # noqa: E731
        host = Host(topology(none, ms.SessionWindows(10, grace=5), ms.on_window_close))
        assert sent(host.run("in", ("a", "x", 3), ("a", "x", 3), ("b", "x", 40))) == []

    def test_open_sessions_have_an_additional_store(self) -> None:
        kept = ms.stores.options("w", engine="memory")
        define = lambda windowed: windowed.count(store=kept)  # noqa: E731
        stores = (
            topology(define, ms.SessionWindows(1, grace=0), ms.on_window_close)
            .plan("app")
            .subtopologies[0]
            .stores
        )
        assert {name: spec.engine for name, spec in stores.items()} == {"w": "memory", "w-open": "memory"}

    @given(
        rows=st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 60)), min_size=1, max_size=30),
        gap=st.integers(1, 8),
        grace=st.integers(0, 8),
        restarts=st.booleans(),
    )
    def test_every_session_is_sent_once(
        self, rows: list[tuple[str, int]], gap: int, grace: int, restarts: bool
    ) -> None:
        updates = counted(ms.SessionWindows(gap, grace=grace))
        closes = counted(ms.SessionWindows(gap, grace=grace), ms.on_window_close)
        last: dict[str, str | None] = {}
        given: list[str] = []
        for key, timestamp in [*rows, ("c", 1000)]:
            for window, count, _ in sent(updates.run("in", (key, "x", timestamp))):
                last[str(window)] = count
            given += [
                f"{window} {count}" for window, count, _ in sent(closes.run("in", (key, "x", timestamp)))
            ]
            if restarts:
                closes.restart()
        assert sorted(given) == sorted(
            f"{window} {count}" for window, count in last.items() if count and window[0] != "c"
        )


class TestStore:
    @pytest.mark.parametrize(
        "windows", [TUMBLING, ms.SlidingWindows(5, grace=5), ms.SessionWindows(5, grace=5)]
    )
    def test_has_a_different_format_for_results_on_close(self, windows: Any) -> None:
        update, close = (
            topology(lambda windowed: windowed.count(store="w"), windows, emit)
            .plan("app")
            .store_fingerprints()["w"]
            for emit in (ms.on_window_update, ms.on_window_close)
        )
        assert update != close

    def test_a_retention_that_is_too_short_is_rejected(self) -> None:
        kept = ms.stores.options("w", retention=14)
        with pytest.raises(TopologyError, match=r"store 'w': a retention of 14 ms .* at least 15 ms"):
            topology(lambda windowed: windowed.count(store=kept))

    def test_a_longer_retention_keeps_windows_readable(self) -> None:
        kept = ms.stores.options("w", retention=1000)
        with ms.testing.TopologyTestDriver(topology(lambda windowed: windowed.count(store=kept))) as driver:
            for timestamp in (3, 500):
                driver.pipe("in", "a", "x", timestamp)
            assert [window.start for window, _ in driver.store("w").all()] == [0, 500]

    def test_only_windowed_aggregations_have_a_retention(self) -> None:
        stream = ms.StreamsBuilder().stream("in")
        with pytest.raises(TopologyError, match="retention applies only to windowed aggregations"):
            stream.group_by_key().count(store=ms.stores.options("w", retention=1000))


def test_windowed_keys_are_serialized_as_in_kafka_streams() -> None:
    builder = ms.StreamsBuilder()
    table = builder.stream("in").group_by_key().windowed_by(TUMBLING).count(store="w")
    table.to_stream().to("out")
    host = Host(builder.build())
    host.feed("in", [("a", "x", 12)])
    (_, columns), *_ = host.step().sends
    assert columns.keys == [b"a\x00\x00\x00\x00\x00\x00\x00\x0a"]
