"""Suppressed tables: which results are sent and when, one record at a time and across restarts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from millstream.core.model.errors import ProcessingError, TopologyError
from millstream.core.topology.window_nodes import closing_of
from unit.helpers import Host, sent

FINAL = ms.Suppressed.until_window_closes()


def suppressed(until: ms.Suppressed) -> ms.Topology:
    builder = ms.StreamsBuilder()
    builder.table("in", store="t").suppress(until, store="held").to_stream().to("out")
    return builder.build()


def final_counts(windows: Any, until: ms.Suppressed = FINAL) -> ms.Topology:
    builder = ms.StreamsBuilder()
    counts = builder.stream("in").group_by_key().windowed_by(windows).count(store="w")
    final = counts.suppress(until, store="held").to_stream(lambda w, _: f"{w.key}@{w.start}-{w.end}")
    final.map_values(str).to("out")
    return builder.build()


class TestUntilAWindowCloses:
    def test_a_window_sends_only_its_last_result(self) -> None:
        host = Host(final_counts(ms.TumblingWindows(10, grace=5)))
        assert sent(host.run("in", ("b", "x", 3), ("a", "x", 4), ("a", "x", 1), ("a", "x", 14))) == []
        assert sent(host.run("in", ("c", "x", 15))) == [("a@0-10", "2", 4), ("b@0-10", "1", 3)]

    def test_suppressed_results_survive_a_restart(self) -> None:
        host = Host(final_counts(ms.TumblingWindows(10, grace=5)))
        host.run("in", ("a", "x", 3), ("a", "x", 4))
        host.restart()
        assert sent(host.run("in", ("a", "x", 5), ("a", "x", 15))) == [("a@0-10", "3", 5)]
        host.restart()
        assert sent(host.run("in", ("a", "x", 25))) == [("a@10-20", "1", 15)]

    @pytest.mark.parametrize("grace", [0, 5])
    def test_the_largest_timestamp_closes_only_windows_whose_end_plus_grace_it_reaches(
        self, grace: int
    ) -> None:
        host, last = Host(final_counts(ms.TumblingWindows(10, grace=grace))), (1 << 63) - 1
        closed = [(f"b@{last - 7}-{last}", "1", last)] if grace == 0 else []
        assert sent(host.run("in", ("a", "x", 3), ("b", "x", last))) == [("a@0-10", "1", 3), *closed]
        assert sent(host.run("in", ("c", None, last))) == (
            [(f"c@{last - 7}-{last}", "1", last)] if grace == 0 else []
        )

    def test_deletions_of_merged_sessions_are_not_sent(self) -> None:
        host = Host(final_counts(ms.SessionWindows(10, grace=0)))
        assert sent(host.run("in", ("a", "x", 0), ("a", "x", 10), ("b", "x", 20))) == [("a@0-10", "2", 10)]

    def test_a_full_buffer_stops_the_application(self) -> None:
        until = ms.Suppressed.until_window_closes(max_records=1)
        host = Host(final_counts(ms.TumblingWindows(10, grace=5), until))
        host.run("in", ("a", "x", 3), ("a", "x", 4))
        with pytest.raises(
            ProcessingError, match=r"SUPPRESS-\d+ of task 0_0 buffers 2 rows, more than max_records=1"
        ):
            host.run("in", ("b", "x", 3))

    def test_windows_are_found_through_filters_maps_and_streams(self) -> None:
        builder = ms.StreamsBuilder()
        counts = (
            builder.stream("in").group_by_key().windowed_by(ms.TumblingWindows(10, grace=5)).count(store="w")
        )
        doubled = (
            counts.filter(lambda _, n: n > 1).map_values(lambda n: str(2 * n)).to_stream().to_table(store="t")
        )
        doubled.suppress(FINAL, store="held").to_stream(lambda window, _: window.key).to("out")
        host = Host(builder.build())
        assert sent(
            host.run("in", ("a", "x", 3), ("a", "x", 4), ("b", "x", 4), ("a", "x", 13), ("a", "x", 16))
        ) == [("a", "4", 4)]

    def test_the_longest_grace_applies(self) -> None:
        grouped = ms.StreamsBuilder().stream("in").group_by_key()
        short, long = (
            grouped.windowed_by(ms.TumblingWindows(10, grace=grace)).count(store=f"w{grace}").to_stream()
            for grace in (0, 7)
        )
        table = short.merge(long).to_table(store="t")
        assert closing_of(table._graph.topology.nodes, table._node).wait_ms == 7

    def test_a_table_without_windows_is_refused(self) -> None:
        with pytest.raises(TopologyError, match="not a windowed table"):
            suppressed(FINAL)

    def test_a_windowed_table_that_is_regrouped_is_refused(self) -> None:
        counts = (
            ms.StreamsBuilder()
            .stream("in")
            .group_by_key()
            .windowed_by(ms.TumblingWindows(10, grace=5))
            .count()
        )
        by_key = counts.group_by(lambda window, n: (window.key, n)).count()
        with pytest.raises(TopologyError, match="not a windowed table"):
            by_key.suppress(FINAL)


class TestUntilATimeLimit:
    def test_a_row_is_sent_once_per_time_limit_with_its_newest_value(self) -> None:
        host = Host(suppressed(ms.Suppressed.until_time_limit(10)))
        assert sent(host.run("in", ("a", "1", 0), ("a", "2", 6), ("b", "1", 9))) == []
        assert sent(host.run("in", ("b", "2", 12))) == [("a", "2", 6)]
        assert sent(host.run("in", ("b", "3", 19))) == [("b", "3", 19)]

    def test_deletions_are_sent(self) -> None:
        host = Host(suppressed(ms.Suppressed.until_time_limit(10)))
        assert sent(host.run("in", ("a", "1", 0), ("a", None, 1), ("b", "1", 10))) == [("a", None, 1)]

    def test_a_time_limit_of_zero_suppresses_nothing(self) -> None:
        host = Host(suppressed(ms.Suppressed.until_time_limit(0)))
        rows = [("a", "1", 5), ("a", "2", 3), ("b", "1", 3)]
        assert sent(host.run("in", *rows)) == rows

    def test_rows_keep_the_headers_of_their_newest_update(self) -> None:
        host = Host(suppressed(ms.Suppressed.until_time_limit(10)))
        host.run("in", ("a", "1", 0, (("h", b"1"),)), ("a", "2", 1, (("h", b"2"), ("n", None))))
        host.restart()
        (_, columns), *_ = host.run("in", ("b", "1", 10)).sends
        assert columns.headers == [(("h", b"2"), ("n", None))]

    def test_a_full_buffer_sends_its_oldest_rows(self) -> None:
        host = Host(suppressed(ms.Suppressed.until_time_limit(1000, max_records=2)))
        assert sent(host.run("in", ("a", "1", 7), ("b", "1", 5), ("c", "1", 9))) == [("b", "1", 5)]
        host.restart()
        assert sent(host.run("in", ("c", "2", 10), ("b", "2", 11))) == [("a", "1", 7)]

    def test_a_full_buffer_stops_the_application_with_when_full_fail(self) -> None:
        host = Host(suppressed(ms.Suppressed.until_time_limit(1000, max_bytes=100, when_full="fail")))
        host.run("in", ("a", "1", 7))
        with pytest.raises(
            ProcessingError, match="buffers 1 rows, more than max_records=None or max_bytes=100"
        ):
            host.run("in", ("a", "1" * 100, 8))

    def test_a_limit_that_is_added_later_applies_to_buffered_rows(self) -> None:
        host = Host(suppressed(ms.Suppressed.until_time_limit(1000)))
        host.run("in", ("a", "1", 7), ("b", "1", 5), ("c", "1", 9))
        host.sub = (
            suppressed(ms.Suppressed.until_time_limit(1000, max_records=2)).plan("app").subtopologies[0]
        )
        host.restart()
        assert sent(host.run("in", ("d", "1", 9))) == [("b", "1", 5), ("a", "1", 7)]

    def test_the_error_policy_applies_to_a_value_that_does_not_fit_its_serde(self) -> None:
        builder = ms.StreamsBuilder()
        mixed = builder.table("in", store="t").map_values(
            lambda v: v if v != "?" else 1, value=ms.serdes.string
        )
        mixed.suppress(ms.Suppressed.until_time_limit(0), store="held").to_stream().to("out")
        host = Host(builder.build(), policies=ms.ErrorPolicies(process="skip"))
        outcome = host.run("in", ("a", "?", 1), ("a", "x", 2))
        assert sent(outcome) == [("a", "x", 2)]
        assert outcome.metrics.dropped == {"process error": 1}

    def test_the_old_value_of_an_update_is_the_value_that_was_sent_before(self) -> None:
        builder = ms.StreamsBuilder()
        rows = builder.table("in", store="t").suppress(ms.Suppressed.until_time_limit(10), store="held")
        rows.filter(lambda _, v: v != "x").to_stream().to("out")
        host = Host(builder.build())
        host.run("in", ("a", "x", 0), ("a", "y", 1), ("b", "1", 10))
        assert sent(host.run("in", ("a", "z", 11), ("a", "x", 12), ("b", "2", 30))) == [
            ("b", "2", 30),
            ("a", None, 12),
        ]

    def test_a_join_finds_the_row_that_was_sent_last(self) -> None:
        builder = ms.StreamsBuilder()
        rows = builder.table("in", store="t").suppress(ms.Suppressed.until_time_limit(10), store="held")
        builder.stream("ask").left_join(rows, lambda _, row: str(row)).to("out")
        host = Host(builder.build())
        ask = lambda: [value for _, value, _ in sent(host.run("ask", ("a", "?", 50)))]  # noqa: E731
        host.run("in", ("a", "1", 0))
        assert ask() == ["None"]
        host.run("in", ("b", "1", 10))
        assert ask() == ["1"]
        host.run("in", ("a", "2", 11))
        assert ask() == ["1"]
        host.run("in", ("b", "2", 30))
        assert ask() == ["2"]

    def test_a_versioned_table_is_refused(self) -> None:
        table = ms.StreamsBuilder().table("in", store=ms.stores.options("t", history_retention=10))
        with pytest.raises(TopologyError, match="is a versioned table"):
            table.filter(lambda *_: True).suppress(ms.Suppressed.until_time_limit(1))

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: ms.Suppressed.until_time_limit(-1), "at least 0 ms, not -1"),
            (lambda: ms.Suppressed.until_time_limit(1, max_records=0), "max_records .* at least 1, not 0"),
            (lambda: ms.Suppressed.until_window_closes(max_bytes=-1), "max_bytes .* at least 1, not -1"),
            (
                lambda: ms.Suppressed.until_time_limit(1, when_full="wait"),
                "'emit_early' or 'fail', not 'wait'",
            ),  # type: ignore[arg-type]
            (
                lambda: ms.Suppressed.until_window_closes(close_idle_after=0),
                "close_idle_after must be at least 1 ms",
            ),
        ],
    )
    def test_invalid_options_are_rejected(self, make: Any, message: str) -> None:
        with pytest.raises(TopologyError, match=message):
            make()


Row = tuple[str, str | None, int]


class Model:
    """A model of the buffer: a dict from key to buffer time and newest update."""

    def __init__(self, limit: int, max_records: int | None) -> None:
        self.limit, self.max_records, self.time = limit, max_records, -1
        self.buffered: dict[str, tuple[int, Row]] = {}

    def update(self, row: Row) -> list[Row]:
        key, _, timestamp = row
        self.buffered[key] = (self.buffered.get(key, (timestamp,))[0], row)
        self.time = max(self.time, timestamp)
        given = []
        while self.buffered:
            first = min(self.buffered, key=lambda k: (self.buffered[k][0], k))
            due = self.buffered[first][0] <= self.time - self.limit
            if not due and (self.max_records is None or len(self.buffered) <= self.max_records):
                break
            given.append(self.buffered.pop(first)[1])
        return given


@given(
    rows=st.lists(
        st.tuples(st.sampled_from("abcd"), st.sampled_from(["1", "2", None]), st.integers(0, 30)), max_size=30
    ),
    limit=st.integers(0, 10),
    max_records=st.none() | st.integers(1, 3),
    restarts=st.booleans(),
)
def test_suppress_sends_the_same_rows_as_a_model_of_its_buffer(
    rows: list[Row], limit: int, max_records: int | None, restarts: bool
) -> None:
    host = Host(suppressed(ms.Suppressed.until_time_limit(limit, max_records=max_records)))
    model = Model(limit, max_records)
    for row in rows:
        assert sent(host.run("in", row)) == model.update(row)
        if restarts:
            host.restart()
