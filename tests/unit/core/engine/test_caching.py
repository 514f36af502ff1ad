"""Caches: which updates they forward, when, and as which input record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import millstream as ms
from millstream.core.engine.step_outcome import Outcome
from unit.helpers import Host, processing, sent, values

JSON, INT = ms.serdes.json, ms.serdes.int64
LARGE_CACHE = 1 << 20


def counting(build: Callable[[ms.StreamsBuilder], ms.KTable[Any, Any]], **host: Any) -> Host:
    """Return a host of a table that sends its updates to "out" as JSON."""
    builder = ms.StreamsBuilder()
    build(builder).to_stream().to("out", value=JSON)
    return Host(builder.build(), **{"cache_bytes": LARGE_CACHE, **host})


def counts(builder: ms.StreamsBuilder, **options: Any) -> ms.KTable[Any, Any]:
    return builder.stream("in").group_by_key().count(store=ms.stores.options("counts", **options))


def feed_sent(outcome: Outcome, topic: str, host: Host) -> None:
    """Feed the records that a step sent to a topic to the task that reads the topic."""
    for name, columns in outcome.sends:
        if name == topic:
            host.feed(topic, list(zip(columns.keys, columns.values, columns.timestamps)))


class TestAFlush:
    def test_happens_at_the_end_of_each_step(self) -> None:
        host = counting(counts)
        assert sent(host.run("in", ("a", "x", 1), ("b", "x", 2), ("a", "x", 3))) == [
            ("b", "1", 2),
            ("a", "2", 3),
        ]
        assert sent(host.run("in", ("a", "x", 4))) == [("a", "3", 4)]
        assert sent(host.step()) == []

    def test_sends_the_headers_of_the_newest_update_and_the_timestamp_of_the_row(self) -> None:
        host = counting(counts)
        outcome = host.run("in", ("a", "x", 9, (("h", b"1"),)), ("a", "x", 3, (("h", b"2"),)))
        ((_, records),) = outcome.sends
        assert (records.timestamps, records.headers) == ([9], [(("h", b"2"),)])

    def test_sends_nothing_for_a_row_that_was_added_and_deleted(self) -> None:
        host = counting(lambda b: b.table("in"))
        assert values(host.run("in", ("a", "x", 1), ("a", None, 2))) == []
        host.run("in", ("a", "x", 3))
        assert values(host.run("in", ("a", "y", 4), ("a", None, 5))) == [None]

    def test_the_store_has_every_update_immediately(self) -> None:
        seen: list[Any] = []

        def look(context: ms.ProcessorContext[Any, Any], record: ms.Record[Any, Any]) -> None:
            seen.append(context.state_store("counts").get("a").value)

        builder = ms.StreamsBuilder()
        lines = builder.stream("in")
        lines.group_by_key().count(store="counts").to_stream().to("out", value=JSON)
        lines.process(processing(look), stores=["counts"])
        outcome = Host(builder.build(), cache_bytes=LARGE_CACHE).run("in", ("a", "x", 1), ("a", "x", 2))
        assert seen == [1, 2]
        assert values(outcome) == ["2"]

    def test_reports_merged_updates_and_cache_bytes(self) -> None:
        metrics = counting(counts).run("in", *[("a", "x", n) for n in range(5)], ("b", "x", 9)).metrics
        assert metrics.merged == 4
        assert 2 * 200 < metrics.cache_bytes < 2 * 300
        metrics = counting(counts, cache_bytes=0).run("in", ("a", "x", 1), ("a", "x", 2)).metrics
        assert (metrics.merged, metrics.cache_bytes) == (0, 0)

    def test_resets_its_metrics_in_each_step(self) -> None:
        host = counting(counts)
        host.run("in", *[("a", "x", n) for n in range(5)])
        metrics = host.step().metrics
        assert (metrics.merged, metrics.cache_bytes) == (0, 0)

    def test_counts_a_row_that_was_added_and_deleted_as_two_updates(self) -> None:
        host = counting(lambda b: b.table("in"))
        assert host.run("in", ("a", "x", 1), ("a", None, 2)).metrics.merged == 2


class TestTheNewestRecord:
    def test_is_the_current_record_downstream_of_the_cache(self) -> None:
        offsets: list[Any] = []

        def note(context: ms.ProcessorContext[Any, Any], record: ms.Record[Any, Any]) -> None:
            offsets.append((record.key, context.record_metadata.offset))

        builder = ms.StreamsBuilder()
        counts(builder).to_stream().process(processing(note))
        host = Host(builder.build(), cache_bytes=LARGE_CACHE)
        host.run("in", ("a", "x", 1), ("b", "x", 2), ("a", "x", 3), ("c", "x", 4))
        assert offsets == [("b", 1), ("a", 2), ("c", 3)]

    @pytest.mark.parametrize("columns", [True, False], ids=["in columns", "record by record"])
    def test_is_the_record_that_fails(self, columns: bool) -> None:
        def picky(key: str, count: int) -> int:
            if count == 2:
                raise ValueError("no two")
            return count

        builder = ms.StreamsBuilder()
        stream = counts(builder).to_stream().map_values(picky, with_key=True)
        stream.to("out", value=JSON)
        if not columns:
            stream.process(processing(lambda context, record: None))
        policies = ms.ErrorPolicies(process="dead_letter", dead_letter_topic="dead")
        host = Host(builder.build(), cache_bytes=LARGE_CACHE, policies=policies)
        outcome = host.run("in", ("a", "1st", 1), ("b", "1st", 2), ("a", "2nd", 3))
        assert values(outcome) == ["1"]
        assert sent(outcome, "dead") == [("a", "2nd", 3)]
        assert "offset 2" in outcome.notices[0]
        assert outcome.metrics.dropped == {"process error": 1}

    @pytest.mark.parametrize("columns", [True, False], ids=["in columns", "record by record"])
    def test_of_two_sources_is_the_record_that_fails(self, columns: bool) -> None:
        builder = ms.StreamsBuilder()
        both = builder.stream("left").merge(builder.stream("right"))
        stream = both.group_by_key().count(store="counts").to_stream()
        stream.map_values(lambda n: 1 // (n - 2)).to("out", value=JSON)
        if not columns:
            stream.process(processing(lambda context, record: None))
        policies = ms.ErrorPolicies(process="dead_letter", dead_letter_topic="dead")
        host = Host(builder.build(), cache_bytes=LARGE_CACHE, policies=policies)
        host.feed("left", [("a", "1st", 1), ("b", "2nd", 2), ("c", "3rd", 6), ("c", "4th", 8)])
        host.feed("right", [("b", "5th", 3), ("a", "6th", 4), ("a", "7th", 7)])
        outcome = host.step()
        assert sent(outcome) == [("a", "1", 7)]
        assert sent(outcome, "dead") == [("b", "5th", 3), ("c", "4th", 8)]
        assert outcome.metrics.merged == 4

    def test_is_found_among_sources_with_and_without_columns(self) -> None:
        def build(builder: ms.StreamsBuilder) -> ms.KTable[Any, Any]:
            by_rows = builder.stream("rows", timestamp=lambda record, partition_time: record.timestamp)
            return builder.stream("columns").merge(by_rows).group_by_key().count(store="counts")

        host = counting(build)
        host.feed("columns", [("a", "x", 1), ("b", "x", 2), ("a", "x", 5)])
        host.feed("rows", [("a", "x", 3), ("c", "x", 4)])
        assert sent(host.step()) == [("b", "1", 2), ("c", "1", 4), ("a", "3", 5)]

    def test_stops_the_application_under_fail(self) -> None:
        builder = ms.StreamsBuilder()
        counts(builder).to_stream().map_values(lambda n: 1 // (n - 2)).to("out", value=JSON)
        host = Host(builder.build(), cache_bytes=LARGE_CACHE)
        with pytest.raises(ms.errors.ProcessingError, match=r"offset 1 .*ZeroDivisionError"):
            host.run("in", ("a", "1st", 1), ("a", "2nd", 3))


class TestAFullCache:
    def test_forwards_the_least_recently_updated_rows_first(self) -> None:
        host = counting(lambda b: b.table("in"), cache_bytes=3 * 210)
        rows = [(key, key, n) for n, key in enumerate("abcad")]
        outcome = host.run("in", *rows)
        assert values(outcome) == ['"b"', '"c"', '"a"', '"d"'], (
            "b is evicted first, because a was updated again"
        )
        outcome = host.run("in", *[(key, f"{n}", n) for n, key in enumerate("abcadab")])
        assert [key for key, *_ in sent(outcome)] == ["b", "c", "d", "a", "b"]

    def test_is_measured_before_it_forwards(self) -> None:
        host = counting(lambda b: b.table("in"), cache_bytes=3 * 210)
        assert host.run("in", *[(key, "x", 1) for key in "abcde"]).metrics.cache_bytes > 3 * 210

    def test_forwards_rows_of_columns_early(self) -> None:
        host = counting(counts, cache_bytes=20 * 250)
        rows = [(f"{n:03}", "x", n) for n in range(100)]
        outcome = host.run("in", *rows, *rows)
        assert sent(outcome) == [(f"{n:03}", "2", n) for n in range(100)]
        assert outcome.metrics.merged == 100

    def test_shares_the_cache_size_with_other_caches(self) -> None:
        builder = ms.StreamsBuilder()
        builder.table("left", store="l").to_stream().to("out")
        builder.table("right", store="r").to_stream().to("out")
        host = Host(builder.build(), cache_bytes=2 * 4 * 210)
        outcome = host.run("left", *[(key, "x", n) for n, key in enumerate("abcdabcd")])
        assert values(outcome) == ["x"] * 4


class TestNoCacheIsUsed:
    def test_for_a_store_that_disables_it(self) -> None:
        host = counting(lambda b: counts(b, cache=False))
        assert values(host.run("in", ("a", "x", 1), ("a", "x", 2))) == ["1", "2"]

    def test_for_a_versioned_table(self) -> None:
        kept = ms.stores.options("t", history_retention=100)
        host = counting(lambda b: b.table("in", store=kept))
        assert values(host.run("in", ("a", "x", 1), ("a", "y", 2))) == ['"x"', '"y"']

    def test_for_results_on_window_close(self) -> None:
        def closing(builder: ms.StreamsBuilder) -> ms.KTable[Any, Any]:
            windows = ms.TumblingWindows(10, grace=0)
            return builder.stream("in").group_by_key().windowed_by(windows, emit=ms.on_window_close).count()

        builder = ms.StreamsBuilder()
        closing(builder).to_stream(lambda windowed, count: windowed.key).to(
            "out", key=ms.serdes.string, value=JSON
        )
        host = Host(builder.build(), cache_bytes=LARGE_CACHE)
        outcome = host.run("in", ("a", "x", 1), ("a", "x", 2), ("a", "x", 11), ("b", "x", 25))
        assert sent(outcome) == [("a", "2", 2), ("a", "1", 11)]
        assert outcome.metrics.cache_bytes == 0


class TestDownstreamOfCaches:
    def test_a_suppressed_table_sends_each_window_once(self) -> None:
        builder = ms.StreamsBuilder()
        windowed = builder.stream("in").group_by_key().windowed_by(ms.TumblingWindows(10, grace=5))
        final = windowed.count().suppress(ms.Suppressed.until_window_closes())
        named = final.to_stream(lambda windowed, _: f"{windowed.key}{windowed.start}")
        named.to("out", value=JSON)
        host = Host(builder.build(), cache_bytes=LARGE_CACHE)
        in_time = ("a", "x", 1), ("a", "x", 12), ("b", "x", 3), ("a", "x", 2)
        outcome = host.run("in", *in_time, ("a", "x", 30), ("a", "late", 4))
        assert sent(outcome) == [("a0", "2", 2), ("b0", "1", 3), ("a10", "1", 12)]
        assert sent(host.run("in", ("b", "x", 60))) == [("a30", "1", 30)]

    def test_updates_of_several_caches_are_forwarded_in_the_order_of_time(self) -> None:
        builder = ms.StreamsBuilder()
        both = builder.table("left").to_stream().merge(builder.table("right").to_stream())
        counted = both.group_by_key().windowed_by(ms.TumblingWindows(5, grace=0)).count()
        counted.to_stream(lambda windowed, _: f"{windowed.key}{windowed.start}").to("out", value=JSON)
        host = Host(builder.build(), cache_bytes=LARGE_CACHE)
        host.feed("left", [("a", "x", 1), ("a", "x", 12), ("b", "x", 23)])
        host.feed("right", [("a", "x", 2), ("c", "x", 13), ("d", "x", 21)])
        outcome = host.step()
        assert outcome.metrics.dropped == {}
        assert sent(outcome) == [
            ("a0", "1", 2),
            ("a10", "1", 12),
            ("c10", "1", 13),
            ("d20", "1", 21),
            ("b20", "1", 23),
        ]

    def test_cached_and_uncached_updates_are_forwarded_in_the_order_of_time(self) -> None:
        builder = ms.StreamsBuilder()
        left = builder.table("left", store="l")
        right = builder.table("right", store=ms.stores.options("r", cache=False))
        joined = left.outer_join(
            right, lambda left_value, right_value: f"{left_value} {right_value}", store="joined"
        )
        joined.to_stream().to("out")
        host = Host(builder.build(), cache_bytes=LARGE_CACHE)
        host.feed("left", [("a", "x", 1)])
        host.feed("right", [("c", "y", 20), ("a", "z", 50)])
        assert sent(host.step()) == [("c", "None y", 20), ("a", "x z", 50)]

    def test_a_stream_finds_the_newest_row(self) -> None:
        builder = ms.StreamsBuilder()
        table = builder.table("rows")
        table.to_stream().to("changes")
        builder.stream("in").join(table, lambda value, row: f"{value} {row}").to("out")
        host = Host(builder.build(), cache_bytes=LARGE_CACHE)
        host.feed("rows", [("a", "old", 1), ("a", "new", 3)])
        host.feed("in", [("a", "x", 2), ("a", "y", 4)])
        outcome = host.step()
        assert values(outcome) == ["x old", "y new"]
        assert values(outcome, "changes") == ["new"]

    def test_a_stream_does_not_find_a_row_that_suppress_has_not_sent(self) -> None:
        builder = ms.StreamsBuilder()
        rows = builder.table("rows", store="t").suppress(ms.Suppressed.until_time_limit(10), store="held")
        builder.stream("in").left_join(rows, lambda value, row: f"{value} {row}").to("out")
        host = Host(builder.build(), cache_bytes=LARGE_CACHE)
        host.feed("rows", [("a", "old", 1), ("b", "x", 11)])
        host.step()
        host.feed("rows", [("a", "new", 12)])
        host.feed("in", [("a", "cached", 13)])
        assert values(host.step()) == ["cached old"]
        host.feed("in", [("a", "buffered", 14)])
        assert values(host.step()) == ["buffered old"]
        host.feed("rows", [("b", "y", 22)])
        host.step()
        host.feed("in", [("a", "emitted", 23)])
        assert values(host.step()) == ["emitted new"]

    def test_a_foreign_key_response_joins_the_subscribed_row_while_its_update_is_cached(self) -> None:
        """In Kafka Streams, the cached update makes the response stale."""
        builder = ms.StreamsBuilder()
        orders, customers = builder.table("orders", store="o"), builder.table("customers", store="c")
        joined = orders.join(
            customers, lambda order, name: f"{order} {name}", on=lambda order: order[0], name="named"
        )
        joined.to_stream().to("out")
        topology = builder.build()
        plan = topology.plan("app")
        left, right = (
            Host(topology, sub=plan.subtopology_of[topic].id, cache_bytes=LARGE_CACHE)
            for topic in ("orders", "customers")
        )
        registration_topic, response_topic = (
            f"app-named-subscription-{kind}-repartition" for kind in ("registration", "response")
        )
        feed_sent(left.run("orders", ("1", "x one", 1)), registration_topic, right)
        right.step()
        feed_sent(right.run("customers", ("x", "Ann", 2)), response_topic, left)
        assert values(left.step()) == ["x one Ann"]
        left.feed("orders", [("1", "x two", 3)])
        feed_sent(right.run("customers", ("x", "Bea", 4)), response_topic, left)
        outcome = left.step()
        assert (values(outcome), outcome.metrics.dropped) == (["x one Bea"], {})
        feed_sent(outcome, registration_topic, right)
        feed_sent(right.step(), response_topic, left)
        assert values(left.step()) == ["x two Bea"]

    def test_updates_are_merged_again_in_downstream_caches(self) -> None:
        builder = ms.StreamsBuilder()
        rows = builder.table("in").filter(lambda key, value: value != "z", store="kept")
        rows.to_stream().to("out")
        outcome = Host(builder.build(), cache_bytes=LARGE_CACHE).run(
            "in", ("a", "x", 1), ("a", "z", 2), ("a", "y", 3)
        )
        assert values(outcome) == ["y"]
        assert outcome.metrics.merged == 2

    def test_idle_windows_close_after_cached_updates_were_forwarded(self) -> None:
        builder = ms.StreamsBuilder()
        windowed = builder.stream("in").group_by_key().windowed_by(ms.TumblingWindows(10, grace=0))
        final = windowed.count().suppress(ms.Suppressed.until_window_closes(close_idle_after=5))
        final.to_stream(lambda window, _: window.key).to("out", key=ms.serdes.string, value=JSON)
        host = Host(builder.build(), cache_bytes=LARGE_CACHE)
        assert sent(host.run("in", ("a", "x", 1), ("a", "x", 2))) == []
        assert sent(host.step(now_ms=100)) == [("a", "2", 2)]
        assert sent(host.step(now_ms=200)) == []

    def test_a_step_with_a_budget_flushes_the_cache(self) -> None:
        host = counting(counts)
        host.feed("in", [("a", "x", n) for n in range(4)])
        outcomes: list[Outcome] = [host.step(budget=2), host.step(budget=2)]
        assert [*map(values, outcomes)] == [["2"], ["4"]]
