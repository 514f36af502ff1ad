"""Stores of operators: each belongs to one operator; processors may use it, and share stores of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import millstream as ms
from millstream.core.model.errors import TopologyError

TEXT = ms.serdes.string
COUNTS = ms.stores.key_value("x", TEXT, ms.serdes.int64, timestamped=True)
JOIN = ms.JoinWindows(5, 5, grace=0)


class Reading(ms.Processor[Any, Any, Any, Any]):
    def process(self, record: ms.Record[Any, Any]) -> None:
        row = self.context.state_store("x").get(record.key)
        self.context.forward(record.with_value(str(row.value)))


class Providing(Reading):
    stores = (COUNTS,)


def count(builder: ms.StreamsBuilder, topic: str = "in", **names: Any) -> ms.KTable[Any, int]:
    return builder.stream(topic).group_by_key().count(store="x", **names)


def join(builder: ms.StreamsBuilder, other: str, name: str) -> ms.KStream[Any, Any]:
    return builder.stream("in").join(
        builder.stream(other), lambda a, b: a + b, windows=JOIN, store="x", name=name
    )


TWO_OWNERS: dict[str, tuple[Callable[[ms.StreamsBuilder], object], str]] = {
    "two aggregations of a stream": (
        lambda b: (count(b, name="first"), count(b, name="second")),
        "store 'x' belongs to 'first', so 'second' cannot keep its own content there",
    ),
    "two aggregations of a re-keyed stream": (
        lambda b: [b.stream("in").group_by(lambda _, v: v).count(store="x") for _ in range(2)],
        "'x-repartition'; node names must be unique; the node is named after the store of its aggregation",
    ),
    "aggregations of two topics": (
        lambda b: (count(b, name="first"), count(b, "in2", name="second")),
        "store 'x' belongs to 'first', so 'second' cannot",
    ),
    "two tables": (
        lambda b: (b.table("in", store="x", name="first"), b.table("in2", store="x", name="second")),
        "store 'x' belongs to 'first', so 'second' cannot",
    ),
    "two joins of streams": (
        lambda b: (join(b, "a", "first"), join(b, "c", "second")),
        "store 'x-left' belongs to 'first-this-join', so 'second-this-join' cannot",
    ),
    "a table and a copy of it": (
        lambda b: b.table("in", store="x", name="first").map_values(str.upper, store="x", name="second"),
        "store 'x' belongs to 'first', so 'second-store' cannot",
    ),
    "two suppressions": (
        lambda b: [
            b.table(topic).suppress(ms.Suppressed.until_time_limit(5), store="x", name=topic)
            for topic in ("first", "second")
        ],
        "store 'x' belongs to 'first', so 'second' cannot",
    ),
    "two asynchronous operators": (
        lambda b: [
            b.stream(topic).map_values_async(str.upper, store="x", name=topic)
            for topic in ("first", "second")
        ],
        "store 'x' belongs to 'first', so 'second' cannot",
    ),
    "a store of processors, then an operator": (
        lambda b: count(b.add_state_store(COUNTS), name="counting"),
        "store 'x' was added for processors, so 'counting' cannot",
    ),
    "an operator, then a store of processors": (
        lambda b: (count(b, name="counting"), b.add_state_store(COUNTS)),
        r"store 'x' belongs to 'counting'. A processor may use it, with stores=\['x'\] alone",
    ),
    "an operator, then a processor that provides the store": (
        lambda b: (count(b, name="counting"), b.stream("in2").process(Providing)),
        "store 'x' belongs to 'counting'",
    ),
    "a global table and an operator": (
        lambda b: (b.global_table("in2", store="x", name="everywhere"), count(b, name="counting")),
        "store 'x' belongs to 'everywhere', so 'counting' cannot",
    ),
}


@pytest.mark.parametrize(("define", "message"), TWO_OWNERS.values(), ids=TWO_OWNERS.keys())
def test_a_store_belongs_to_one_operator(define: Callable[[ms.StreamsBuilder], object], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        define(ms.StreamsBuilder())


def test_a_rejected_operator_does_not_change_the_owner_of_a_store() -> None:
    builder = ms.StreamsBuilder()
    count(builder).to_stream().to("out", value=ms.serdes.int64)
    with pytest.raises(TopologyError):
        builder.table("in2", store="x")
    driver = ms.testing.TopologyTestDriver(builder.build())
    driver.pipe("in", "k", "v")
    assert driver.store("x").get("k").value == 1


def test_a_store_still_belongs_to_its_operator_after_the_build() -> None:
    builder = ms.StreamsBuilder()
    count(builder, name="counting")
    with pytest.raises(TopologyError, match="store 'x' belongs to 'counting'"):
        builder.build().add_state_store(COUNTS)


def test_a_processor_reads_the_store_of_an_operator() -> None:
    builder = ms.StreamsBuilder()
    count(builder).to_stream().process(Reading, stores=["x"]).to("out")
    driver = ms.testing.TopologyTestDriver(builder.build())
    for _ in range(2):
        driver.pipe("in", "k", "v")
    assert [record.value for record in driver.read("out")] == ["1", "2"]


def test_processors_share_a_store() -> None:
    builder = ms.StreamsBuilder().add_state_store(COUNTS).add_state_store(COUNTS)
    for topic in ("a", "b"):
        builder.stream(topic).process(Reading, stores=["x"]).to(f"{topic}-out")
    assert [*builder.build().stores] == ["x"]


def test_the_nodes_of_one_operator_share_its_stores() -> None:
    """A join of streams and a cogroup have several nodes, and a table may be used several times."""
    builder = ms.StreamsBuilder()
    join(builder, "a", "joined").to("out")
    table = builder.table("t", store="rows")
    builder.stream("left").join(table, lambda a, b: a + b).to("out")
    builder.stream("right").join(table, lambda a, b: a + b).to("out")
    first, second = (builder.stream(topic).group_by_key() for topic in ("g", "h"))
    first.cogroup(lambda k, v, a: a + v).cogroup(second, lambda k, v, a: a + v).aggregate(str, store="both")
    assert [*builder.build().stores] == ["x-left", "x-right", "rows", "both"]
