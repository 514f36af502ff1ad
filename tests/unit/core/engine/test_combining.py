"""Combining: which records are combined, for which topologies, and what a task does with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import millstream as ms
from millstream.core.engine.records.combining import Combiner
from millstream.core.model.record import Records
from millstream.core.topology.analysis.combinable import combined_aggregation
from millstream.core.topology.folds import Fold
from millstream.core.topology.layout import lay_out
from millstream.core.topology.nodes import Source
from millstream.drivers.spark import wire
from millstream.drivers.spark.spec import TopologySpec
from unit.helpers import Host, records, sent

LARGE_CACHE = 10 << 20
Grouped = ms.KGroupedStream[str, Any]


def combiner(fold: Fold, value: ms.Serde[Any] = ms.serdes.int64) -> Combiner:
    return Combiner(Source("in", (), ("in",), ms.serdes.string, value), fold)


def numbers(values: list[int], key: str = "k", first_ms: int = 0) -> Records:
    return records(
        [(key, ms.serdes.int64.serialize(value), first_ms + number) for number, value in enumerate(values)]
    )


class TestRecords:
    def test_a_key_has_one_record_with_the_last_offset_and_headers_and_the_largest_timestamp(self) -> None:
        rows = [
            ("a" if number % 3 else "b", "x", 100 - number, ((str(number), None),)) for number in range(90)
        ]
        found = combiner(Fold.COUNT, ms.serdes.string).combined(records(rows, 500))
        assert (found.keys, found.offsets, found.weights) == ([b"b", b"a"], [587, 589], [30, 60])
        assert found.timestamps == [100, 99]
        assert found.headers == [(("87", None),), (("89", None),)]
        assert (found.represented(), found.byte_count()) == (90, 180)

    @pytest.mark.parametrize(
        ("fold", "total"), [(Fold.SUM, 45 * 7), (Fold.MIN, 0), (Fold.MAX, 9), (Fold.MEAN, 45 * 7)]
    )
    def test_the_value_stands_for_all_values(self, fold: Fold, total: int) -> None:
        found = combiner(fold).combined(numbers([*range(10)] * 7))
        assert (found.values, found.weights) == ([ms.serdes.int64.serialize(total)], [70])

    def test_texts_are_compared_and_not_added(self) -> None:
        rows = records([("k", text, 1) for text in ["b", "a", "c", "\xe9"] * 20])
        assert combiner(Fold.MAX, ms.serdes.string).combined(rows).values == ["\xe9".encode()]
        assert combiner(Fold.SUM, ms.serdes.string).combined(rows) is rows

    @pytest.mark.parametrize("count", [0, 1, 63])
    def test_few_records_are_left_as_they_are(self, count: int) -> None:
        rows = numbers([1] * count)
        assert combiner(Fold.COUNT).combined(rows) is rows

    def test_records_of_many_keys_are_left_as_they_are(self) -> None:
        rows = records([(str(number % 30), "x", 1) for number in range(90)])
        assert combiner(Fold.COUNT, ms.serdes.string).combined(rows) is rows

    @pytest.mark.parametrize(
        ("fold", "value", "spoiled"),
        [
            (Fold.COUNT, ms.serdes.string, {"keys": None}),
            (Fold.COUNT, ms.serdes.string, {"values": None}),
            (Fold.COUNT, ms.serdes.string, {"values": b"\xff"}),
            (Fold.COUNT, ms.serdes.string, {"keys": b"\xff"}),
            (Fold.COUNT, ms.serdes.string, {"timestamps": -1}),
            (Fold.SUM, ms.serdes.json, {"values": b"1.5"}),
            (Fold.SUM, ms.serdes.json, {"values": b"true"}),
            (Fold.MEAN, ms.serdes.json, {"values": b'"text"'}),
            (Fold.MIN, ms.serdes.json, {"values": b"[1]"}),
            (Fold.MAX, ms.serdes.json, {"values": b"{"}),
        ],
    )
    def test_a_piece_with_a_record_that_may_fail_or_round_is_left_as_it_is(
        self, fold: Fold, value: ms.Serde[Any], spoiled: dict[str, Any]
    ) -> None:
        rows = records([("k", "1", 1)] * 100)
        assert combiner(fold, value).combined(rows) is not rows
        for column, item in spoiled.items():
            getattr(rows, column)[60] = item
        assert combiner(fold, value).combined(rows) is rows

    def test_floats_are_compared_and_not_added(self) -> None:
        rows = records([("k", ms.serdes.float64.serialize(0.1 * number), 1) for number in range(70)])
        assert combiner(Fold.MAX, ms.serdes.float64).combined(rows).values == rows.values[-1:]
        assert combiner(Fold.SUM, ms.serdes.float64).combined(rows) is rows
        assert combiner(Fold.MEAN, ms.serdes.float64).combined(rows) is rows

    def test_a_total_that_does_not_fit_the_serde_is_not_sent(self) -> None:
        rows = numbers([1 << 62] * 64)
        assert combiner(Fold.SUM).combined(rows) is rows

    def test_records_with_chosen_partitions_or_weights_are_left_as_they_are(self) -> None:
        rows = numbers([1] * 100)
        weighted = combiner(Fold.SUM).combined(rows)
        assert combiner(Fold.SUM).combined(weighted) is weighted
        rows.partitions = [0] * 100
        assert combiner(Fold.SUM).combined(rows) is rows

    def test_weights_cross_to_the_task(self) -> None:
        found = combiner(Fold.SUM).combined(numbers([1] * 100))
        assert wire.decode(wire.encode(found)) == found
        (part, *_) = [part for part in wire.split_by_range(wire.to_arrow(found), 16) if part.num_rows]
        assert wire.decode(wire.encode_batch(part)).weights == [100]

    def test_single_records_can_follow_combined_ones(self) -> None:
        found = combiner(Fold.SUM).combined(numbers([1] * 100))
        found.extend(numbers([5], "other"))
        assert (found.keys, found.weights) == ([b"k", b"other"], [100, 1])
        single = numbers([5], "other")
        single.extend(found.take([0]))
        assert single.weights == [1, 100]


def stored(**options: Any) -> Callable[[Grouped], ms.KTable[str, Any]]:
    return lambda grouped: grouped.count(store=ms.stores.options("kept", **options))


def topology_of(aggregate: Callable[[Any], ms.KTable[Any, Any]], **source: Any) -> ms.Topology:
    builder = ms.StreamsBuilder()
    stream: Any = builder.stream("in", value=ms.serdes.int64, **source)
    aggregate(stream.group_by_key()).to_stream().to("out")
    return builder.build()


def combines(topology: ms.Topology) -> bool:
    (sub,) = topology.plan("app").subtopologies
    return combined_aggregation(sub) is not None


class TestTopologies:
    @pytest.mark.parametrize("name", ["count", "sum", "min", "max", "mean"])
    def test_built_in_aggregations_are_combined(self, name: str) -> None:
        assert combines(topology_of(lambda grouped: getattr(grouped, name)()))

    @pytest.mark.parametrize(
        "aggregate",
        [
            lambda grouped: grouped.reduce(max),
            lambda grouped: grouped.aggregate(int, lambda key, value, total: total + value),
            lambda grouped: grouped.windowed_by(ms.TumblingWindows(10, grace=0)).count(),
            stored(cache=False),
            stored(changelog="kafka"),
            lambda grouped: grouped.count().filter(lambda key, count: count > 1, store="kept"),
        ],
        ids=["reduce", "aggregate", "windowed", "no-cache", "changelog", "second-store"],
    )
    def test_others_are_not(self, aggregate: Callable[[Grouped], ms.KTable[Any, Any]]) -> None:
        assert not combines(topology_of(aggregate))

    def test_a_source_must_have_one_topic_and_its_own_timestamps(self) -> None:
        assert not combines(topology_of(lambda grouped: grouped.count(), timestamp=ms.timestamps.wall_clock))
        builder = ms.StreamsBuilder()
        builder.stream(["in", "other"]).group_by_key().count().to_stream().to("out")
        assert not combines(builder.build())

    def test_nothing_else_may_follow_the_source(self) -> None:
        for follow in (
            lambda stream: stream.to("copy"),
            lambda stream: stream.group_by_key().count(),
        ):
            builder = ms.StreamsBuilder()
            stream = builder.stream("in")
            follow(stream)
            stream.group_by_key().count().to_stream().to("out")
            assert not combines(builder.build())
        builder = ms.StreamsBuilder()
        builder.stream("in").filter(ms.col("x") > 1).group_by_key().count().to_stream().to("out")
        assert not combines(builder.build())

    @pytest.mark.parametrize(
        ("policies", "allowed"),
        [
            (ms.ErrorPolicies(), True),
            (ms.ErrorPolicies(deserialize="skip"), True),
            (ms.ErrorPolicies(produce="skip"), True),
            (ms.ErrorPolicies(process="skip"), False),
            (ms.ErrorPolicies(dead_letter_topic="dead"), False),
            (ms.ErrorPolicies(produce=ms.dead_letter("dead")), False),
            (ms.ErrorPolicies(produce=lambda context, error: "skip"), False),
        ],
    )
    def test_a_policy_that_needs_the_failed_record_gets_it(
        self, policies: ms.ErrorPolicies, allowed: bool
    ) -> None:
        plan = topology_of(lambda grouped: grouped.count()).plan("app")
        layout = lay_out(plan, {"in": 1})
        spec = TopologySpec(plan, layout, {}, policies, {}, cache_bytes=LARGE_CACHE)
        assert (spec.combiner(plan.subtopologies[0]) is not None) is allowed
        without_caches = TopologySpec(plan, layout, {}, policies, {})
        assert without_caches.combiner(plan.subtopologies[0]) is None


def feed(host: Host, fold: Fold, *parts: Records) -> None:
    """Feed parts of a partition, combined if that is worthwhile."""
    start = 0
    for part in parts:
        part.offsets = [*range(start, start + len(part))]
        start += len(part)
        (partition,) = {source.topics[0] for source in host.sub.sources}
        host.task.feed(ms.TopicPartition(partition, 0), combiner(fold).combined(part), start)


class TestTasks:
    @pytest.mark.parametrize(
        ("name", "result"),
        [("count", 171), ("sum", 100 + 70 * 3 + 9), ("min", 1), ("max", 9), ("mean", 319 / 171)],
    )
    def test_combined_and_single_records_in_one_step(self, name: str, result: float) -> None:
        topology = topology_of(lambda grouped: getattr(grouped, name)().map_values(repr))
        host = Host(topology, cache_bytes=LARGE_CACHE)
        feed(host, Fold[name.upper()], numbers([1] * 100), numbers([9]), numbers([3] * 70))
        outcome = host.step()
        assert sent(outcome) == [("k", repr(result), 99)]
        metrics = outcome.metrics
        assert (metrics.processed, metrics.combined, metrics.merged) == (171, 168, 170)

    def test_combined_records_keep_their_weights_over_a_restart(self) -> None:
        topology = topology_of(lambda grouped: grouped.count().map_values(repr))
        host = Host(topology, cache_bytes=LARGE_CACHE)
        feed(host, Fold.COUNT, numbers([1] * 100, "a"), numbers([1] * 80, "b"))
        first = host.step(budget=1)
        host.restart()
        second = host.step()
        assert (sent(first), sent(second)) == ([("a", "100", 99)], [("b", "80", 79)])
        assert (first.metrics.processed, second.metrics.processed) == (100, 80)

    @pytest.mark.parametrize(("name", "expected"), [("count", "170"), ("mean", repr(310 / 170))])
    def test_a_table_that_needs_old_values_is_processed_record_by_record(
        self, name: str, expected: str
    ) -> None:
        def aggregate(grouped: Any) -> ms.KTable[Any, Any]:
            table: ms.KTable[Any, Any] = getattr(grouped, name)()
            return table.map_values(repr).filter(lambda key, value: value != "never")

        host = Host(topology_of(aggregate), cache_bytes=LARGE_CACHE)
        feed(host, Fold[name.upper()], numbers([1] * 100), numbers([3] * 70))
        assert sent(host.step()) == [("k", expected, 99)]

    def test_an_aggregate_that_does_not_fit_stops_at_the_last_combined_record(self) -> None:
        host = Host(topology_of(lambda grouped: grouped.sum()), cache_bytes=LARGE_CACHE)
        feed(host, Fold.SUM, numbers([1 << 56] * 120), numbers([1 << 56] * 120))
        with pytest.raises(ms.errors.ProcessingError, match="offset 239"):
            host.step()
