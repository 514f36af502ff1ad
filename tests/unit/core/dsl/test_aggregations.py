"""Aggregations of streams and tables, one record at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import millstream as ms
from millstream.core.topology.nodes import Repartition

INT = ms.serdes.int64


def run(
    define: Callable[[ms.StreamsBuilder], ms.KTable[Any, Any]],
    *rows: tuple[Any, ...],
    value: ms.Serde[Any] = ms.serdes.string,
) -> list[tuple[Any, Any, int]]:
    """Pipe rows of key, value and optionally a timestamp into `in`, and return the updates of the table."""
    builder = ms.StreamsBuilder()
    define(builder).to_stream().to("out", value=value)
    with ms.testing.TopologyTestDriver(builder.build()) as driver:
        for number, (key, item, *timestamp) in enumerate(rows):
            driver.pipe("in", key, item, timestamp[0] if timestamp else number)
        return [(r.key, r.value, r.timestamp) for r in driver.read("out")]


class TestStreams:
    def test_count_ignores_records_without_a_key_or_a_value(self) -> None:
        def define(builder: ms.StreamsBuilder) -> ms.KTable[Any, Any]:
            return builder.stream("in").group_by_key().count(store="s")

        rows = [("a", "x"), ("b", "x"), ("a", "y"), (None, "x"), ("a", None)]
        assert run(define, *rows, value=INT) == [("a", 1, 0), ("b", 1, 1), ("a", 2, 2)]

    def test_reduce_takes_the_first_value_as_it_is(self) -> None:
        def define(builder: ms.StreamsBuilder) -> ms.KTable[Any, Any]:
            return builder.stream("in").group_by_key().reduce(lambda so_far, value: so_far + value, store="s")

        assert run(define, ("a", "x"), ("a", "y"), ("a", "z")) == [
            ("a", "x", 0),
            ("a", "xy", 1),
            ("a", "xyz", 2),
        ]

    def test_aggregate_begins_with_its_initializer(self) -> None:
        def define(builder: ms.StreamsBuilder) -> ms.KTable[Any, Any]:
            grouped = builder.stream("in").group_by_key()
            return grouped.aggregate(list, lambda k, v, items: [*items, v], value=ms.serdes.json, store="s")

        assert run(define, ("a", "x"), ("b", "y"), ("a", "z"), value=ms.serdes.json) == [
            ("a", ["x"], 0),
            ("b", ["y"], 1),
            ("a", ["x", "z"], 2),
        ]

    def test_an_aggregate_that_is_changed_in_place_is_stored(self) -> None:
        def append(key: Any, value: Any, items: list[Any]) -> list[Any]:
            items.append(value)
            return items

        def define(builder: ms.StreamsBuilder) -> ms.KTable[Any, Any]:
            return (
                builder.stream("in").group_by_key().aggregate(list, append, value=ms.serdes.json, store="s")
            )

        assert run(define, ("a", "x"), ("a", "y"), value=ms.serdes.json) == [
            ("a", ["x"], 0),
            ("a", ["x", "y"], 1),
        ]

    def test_a_result_of_none_deletes_the_key(self) -> None:
        def define(builder: ms.StreamsBuilder) -> ms.KTable[Any, Any]:
            grouped = builder.stream("in").group_by_key()
            return grouped.reduce(lambda so_far, value: None if value == "!" else so_far + value, store="s")

        assert run(define, ("a", "x"), ("a", "!"), ("a", "y")) == [
            ("a", "x", 0),
            ("a", None, 1),
            ("a", "y", 2),
        ]

    def test_the_timestamp_of_a_result_is_the_largest_so_far(self) -> None:
        def define(builder: ms.StreamsBuilder) -> ms.KTable[Any, Any]:
            return builder.stream("in").group_by_key().count(store="s")

        rows = [("a", "x", 5), ("a", "x", 3), ("a", "x", 9), ("b", "x", 1)]
        assert run(define, *rows, value=INT) == [("a", 1, 5), ("a", 2, 5), ("a", 3, 9), ("b", 1, 1)]

    def test_to_table_takes_the_newest_value(self) -> None:
        def define(builder: ms.StreamsBuilder) -> ms.KTable[Any, Any]:
            return builder.stream("in").to_table(store="s")

        assert run(define, ("a", "x"), ("a", None), ("a", "y"), (None, "z")) == [
            ("a", "x", 0),
            ("a", None, 1),
            ("a", "y", 2),
        ]


class TestTables:
    def test_map_values_leaves_deletions_alone(self) -> None:
        def define(builder: ms.StreamsBuilder) -> ms.KTable[Any, Any]:
            return builder.table("in").map_values(lambda v: v.upper())

        assert run(define, ("a", "x"), ("a", None)) == [("a", "X", 0), ("a", None, 1)]

    def test_map_values_can_use_the_key(self) -> None:
        def define(builder: ms.StreamsBuilder) -> ms.KTable[Any, Any]:
            return builder.table("in").map_values(lambda k, v: k + v, with_key=True)

        assert run(define, ("a", "x")) == [("a", "ax", 0)]

    def test_a_filter_deletes_what_it_let_through_before(self) -> None:
        def define(builder: ms.StreamsBuilder) -> ms.KTable[Any, Any]:
            return builder.table("in").filter(lambda k, v: v > "m")

        assert run(define, ("a", "b"), ("a", "x"), ("a", "c"), ("a", "d"), ("a", None)) == [
            ("a", "x", 1),
            ("a", None, 2),
        ]

    def test_filter_not_is_the_opposite_of_filter(self) -> None:
        def define(builder: ms.StreamsBuilder) -> ms.KTable[Any, Any]:
            return builder.table("in").filter_not(lambda k, v: v > "m")

        assert run(define, ("a", "b"), ("a", "x"), ("a", "y")) == [("a", "b", 0), ("a", None, 1)]

    def test_a_result_can_be_kept_in_a_store(self) -> None:
        builder = ms.StreamsBuilder()
        builder.table("in").map_values(str.upper, store="upper", value=ms.serdes.string)
        with ms.testing.TopologyTestDriver(builder.build()) as driver:
            driver.pipe("in", "a", "x", 4)
            assert driver.store("upper").get("a") == ms.ValueAndTimestamp("X", 4)
            driver.pipe("in", "a", None, 5)
            assert driver.store("upper").get("a") is None

    def test_a_chain_of_steps_forwards_deletions(self) -> None:
        def define(builder: ms.StreamsBuilder) -> ms.KTable[Any, Any]:
            lengths = builder.table("in").map_values(len).filter(lambda k, v: v % 2 == 0)
            return lengths.map_values(str)

        assert run(define, ("a", "xx"), ("a", "xxx"), ("a", "xxxx")) == [
            ("a", "2", 0),
            ("a", None, 1),
            ("a", "4", 2),
        ]


class TestGroupedTables:
    def by_value(self, builder: ms.StreamsBuilder) -> ms.KGroupedTable[Any, Any]:
        return builder.table("in").group_by(lambda key, value: (value[0], value[1:]))

    def test_a_row_that_moves_leaves_its_old_group(self) -> None:
        def define(builder: ms.StreamsBuilder) -> ms.KTable[Any, Any]:
            return self.by_value(builder).count(store="s")

        assert run(define, ("a", "g1"), ("b", "g2"), ("a", "h1"), ("b", None), value=INT) == [
            ("g", 1, 0),
            ("g", 2, 1),
            ("g", 1, 2),
            ("h", 1, 2),
            ("g", 0, 3),
        ]

    def test_a_row_that_stays_is_subtracted_and_added_at_once(self) -> None:
        def define(builder: ms.StreamsBuilder) -> ms.KTable[Any, Any]:
            return self.by_value(builder).aggregate(
                int,
                lambda k, v, total: total + int(v),
                lambda k, v, total: total - int(v),
                value=INT,
                store="s",
            )

        assert run(define, ("a", "g5"), ("b", "g7"), ("a", "g6"), value=INT) == [
            ("g", 5, 0),
            ("g", 12, 1),
            ("g", 13, 2),
        ]

    def test_reduce_adds_new_values_and_subtracts_old_ones(self) -> None:
        def define(builder: ms.StreamsBuilder) -> ms.KTable[Any, Any]:
            return self.by_value(builder).reduce(lambda a, b: a + b, lambda a, b: a.replace(b, ""), store="s")

        assert run(define, ("a", "gx"), ("b", "gy"), ("a", "gz")) == [
            ("g", "x", 0),
            ("g", "xy", 1),
            ("g", "yz", 2),
        ]

    def test_rows_without_a_group_are_left_out(self) -> None:
        def define(builder: ms.StreamsBuilder) -> ms.KTable[Any, Any]:
            grouped = builder.table("in").group_by(lambda key, value: (None if value == "?" else value, key))
            return grouped.count(store="s")

        assert run(define, ("a", "?"), ("a", "g"), ("a", "?"), value=INT) == [("g", 1, 1), ("g", 0, 2)]

    def test_a_grouped_table_is_repartitioned_once_for_all_its_aggregations(self) -> None:
        builder = ms.StreamsBuilder()
        grouped = builder.table("in").group_by(
            lambda k, v: (v, k), key=ms.serdes.bytes, value=INT, name="groups"
        )
        grouped.count(store="one")
        grouped.reduce(max, min, store="two")
        (node,) = (n for n in builder.build().nodes.values() if isinstance(n, Repartition))
        assert (node.topic_name, node.key.name, node.value.name) == ("groups", "bytes", "change(int64)")

    def test_an_aggregation_of_a_filtered_table_sees_old_values(self) -> None:
        def define(builder: ms.StreamsBuilder) -> ms.KTable[Any, Any]:
            words = builder.table("in").map_values(str.lower).filter(lambda k, v: v != "x")
            return words.group_by(lambda k, v: (v, k)).count(store="s")

        assert run(define, ("a", "A"), ("b", "A"), ("a", "X"), ("b", "B"), value=INT) == [
            ("a", 1, 0),
            ("a", 2, 1),
            ("a", 1, 2),
            ("a", 0, 3),
            ("b", 1, 3),
        ]
