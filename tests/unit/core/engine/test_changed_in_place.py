"""Functions may change their arguments in place; other results and stores do not change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import millstream as ms
from millstream.testing import TopologyTestDriver

JSON = ms.serdes.json


def written(
    topology: ms.Topology, records: list[tuple[str, str, Any, int]], topic: str, **driver: Any
) -> list[Any]:
    """Return the values that a topology writes to a topic."""
    with TopologyTestDriver(topology, **driver) as driven:
        for source, key, value, timestamp in records:
            driven.pipe(source, key, value, timestamp)
        driven.commit()
        return [record.value for record in driven.read(topic)]


def counted(key: str, value: str, aggregate: dict[str, int]) -> dict[str, int]:
    aggregate["n"] = aggregate.get("n", 0) + 1
    return aggregate


Aggregated = Callable[[Any], Any]

AGGREGATIONS: dict[str, Aggregated] = {
    "stream": lambda grouped: grouped.aggregate(dict, counted, value=JSON),
    "tumbling": lambda grouped: grouped.windowed_by(ms.TumblingWindows(100, grace=0)).aggregate(
        dict, counted, value=JSON
    ),
    "sliding": lambda grouped: grouped.windowed_by(ms.SlidingWindows(100, grace=0)).aggregate(
        dict, counted, value=JSON
    ),
    "session": lambda grouped: grouped.windowed_by(ms.SessionWindows(100, grace=0)).aggregate(
        dict, counted, lambda key, one, two: two, value=JSON
    ),
}


@pytest.mark.parametrize("cache", [0, 1 << 20])
@pytest.mark.parametrize("aggregated", AGGREGATIONS.values(), ids=AGGREGATIONS)
def test_a_filter_sees_the_aggregate_before_a_record(aggregated: Aggregated, cache: int) -> None:
    builder = ms.StreamsBuilder()
    table = aggregated(builder.stream("in").group_by_key())
    first = table.filter(lambda key, value: value["n"] < 2)
    first.to_stream(lambda key, value: "k").to("out", value=JSON)
    records = [("in", "k", "v", 200)] * 3
    assert written(builder.build(), records, "out", statestore_cache_max_bytes=cache) == [{"n": 1}, None]


def test_a_table_is_regrouped_by_the_value_before_a_change() -> None:
    builder = ms.StreamsBuilder()
    groups = builder.table("in").group_by(lambda key, value: (value[0], value))

    def removed(key: str, value: str, aggregate: list[str]) -> list[str]:
        aggregate.remove(value)
        return aggregate

    def added(key: str, value: str, aggregate: list[str]) -> list[str]:
        aggregate.append(value)
        return aggregate

    table = groups.aggregate(list, added, removed, value=JSON)
    table.filter(lambda key, value: len(value) < 2).to_stream().to("out", value=JSON)
    records = [("in", "1", "a1", 0), ("in", "2", "a2", 0), ("in", "1", "a1", 0)]
    results = written(builder.build(), records, "out")
    assert results[:2] == [["a1"], None]


def test_sliding_windows_do_not_share_an_aggregate() -> None:
    builder = ms.StreamsBuilder()

    def appended(key: str, value: str, aggregate: list[str]) -> list[str]:
        aggregate.append(value)
        return aggregate

    windows = builder.stream("in").group_by_key().windowed_by(ms.SlidingWindows(1_000, grace=5_000))
    windows.aggregate(list, appended, value=JSON, store="windows")
    with TopologyTestDriver(builder.build()) as driver:
        for value, timestamp in (("a", 2_000), ("b", 2_600), ("c", 2_300)):
            driver.pipe("in", "k", value, timestamp)
        stored = {window.start: row.value for window, row in driver.store("windows").all()}
    assert stored[2_301] == ["b"]
    assert stored[2_001] == ["b", "c"]


@pytest.mark.parametrize("commit_every", [1, 20])
def test_each_record_of_a_join_receives_its_own_row(commit_every: int) -> None:
    builder = ms.StreamsBuilder()

    def joined(order: str, row: dict[str, Any]) -> dict[str, Any]:
        row["orders"] = [*row.get("orders", []), order]
        return row

    builder.stream("in").join(builder.table("rows", value=JSON), joined).to("out", value=JSON)
    with TopologyTestDriver(builder.build(), commit_every=commit_every) as driver:
        driver.pipe("rows", "k", {}, 0)
        driver.commit()
        for number in range(20):
            driver.pipe("in", "k", str(number), number)
        driver.commit()
        results = [record.value["orders"] for record in driver.read("out")]
    assert results == [[str(number)] for number in range(20)]


def test_a_join_of_tables_has_separate_old_and_new_results() -> None:
    builder = ms.StreamsBuilder()

    def joined(left: dict[str, int], right: dict[str, int]) -> dict[str, int]:
        right.update(left)
        return right

    left, right = (builder.table(topic, value=JSON) for topic in ("left", "right"))
    left.join(right, joined).filter(lambda key, value: value["x"] < 2).to_stream().to("out", value=JSON)
    records = [("right", "k", {}, 0), ("left", "k", {"x": 1}, 0), ("left", "k", {"x": 2}, 0)]
    assert written(builder.build(), records, "out") == [{"x": 1}, None]


def test_each_pair_of_a_join_of_streams_has_its_own_result() -> None:
    builder = ms.StreamsBuilder()

    def joined(left: dict[str, str], right: dict[str, str]) -> dict[str, str]:
        left["partner"] = right["name"]
        return left

    left, right = (builder.stream(topic, value=JSON) for topic in ("left", "right"))
    left.join(right, joined, windows=ms.JoinWindows(100, 100, grace=0), value=JSON, other_value=JSON).to(
        "out", value=JSON
    )
    records = [("right", "k", {"name": name}, 0) for name in "ab"] + [("left", "k", {}, 0)]
    with TopologyTestDriver(builder.build()) as driver:
        for record in records:
            driver.pipe(*record)
        assert [result.value["partner"] for result in driver.read("out")] == ["a", "b"]
        stored = [value for name in driver.stores() for _, value in driver.store(name).all()]
    assert {} in stored


def minute(grouped: ms.KGroupedStream[Any, Any]) -> Any:
    return grouped.windowed_by(ms.TumblingWindows(60_000, grace=0))


TABLES: dict[str, Callable[[ms.KStream[Any, Any]], ms.KTable[Any, Any]]] = {
    "table": lambda stream: stream.to_table(value=JSON),
    "derived": lambda stream: stream.to_table(value=JSON).map_values(
        lambda value: value, value=JSON, store="derived"
    ),
    "reduce": lambda stream: stream.group_by_key(value=JSON).reduce(lambda first, second: second),
    "aggregate": lambda stream: stream.group_by_key(value=JSON).aggregate(dict, newest, value=JSON),
    "windows": lambda stream: minute(stream.group_by_key(value=JSON)).aggregate(dict, newest, value=JSON),
    "sliding": lambda stream: (
        stream.group_by_key(value=JSON)
        .windowed_by(ms.SlidingWindows(1, grace=0))
        .aggregate(dict, newest, value=JSON)
    ),
    "session": lambda stream: (
        stream.group_by_key(value=JSON)
        .windowed_by(ms.SessionWindows(1, grace=0))
        .reduce(lambda first, second: second)
    ),
}


def newest(key: str, value: Any, aggregate: Any) -> Any:
    return value


@pytest.mark.parametrize("commit_every", [1, 2, 10])
@pytest.mark.parametrize("cache", [0, 300, 1 << 20])
@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_a_cached_row_is_not_changed_by_other_functions(
    table: Callable[[ms.KStream[Any, Any]], ms.KTable[Any, Any]], cache: int, commit_every: int
) -> None:
    builder = ms.StreamsBuilder()
    stream: ms.KStream[str, Any] = builder.stream("in", value=JSON)
    table(stream).to_stream().to("out", value=JSON)

    def touched(value: dict[str, Any]) -> dict[str, Any]:
        value["names"].append("touched")
        return value

    stream.map_values(touched).to("touched", value=JSON)
    records = [("in", key, {"names": [key]}, 0) for key in "abcd"]
    options = {"statestore_cache_max_bytes": cache, "commit_every": commit_every}
    results = written(builder.build(), records, "out", **options)
    assert results == [{"names": [key]} for key in "abcd"]


async def answered(value: Any) -> Any:
    return value


async def performed(record: ms.Record[Any, Any], context: Any) -> None:
    context.forward(record)


CALLED: dict[str, Callable[[ms.KStream[Any, Any]], ms.KStream[Any, Any]]] = {
    "map_values_async": lambda stream: stream.map_values_async(answered),
    "process_async": lambda stream: stream.process_async(performed),
}


@pytest.mark.parametrize("commit_every", [1, 10])
@pytest.mark.parametrize("called", CALLED.values(), ids=CALLED)
def test_the_argument_of_a_call_is_not_changed_before_the_call_begins(
    called: Callable[[ms.KStream[Any, Any]], ms.KStream[Any, Any]], commit_every: int
) -> None:
    builder = ms.StreamsBuilder()
    stream: ms.KStream[str, Any] = builder.stream("in", value=JSON)
    called(stream).to("out", value=JSON)

    def touched(value: dict[str, Any]) -> dict[str, Any]:
        value["names"].append("touched")
        return value

    stream.map_values(touched).to("touched", value=JSON)
    records = [("in", key, {"names": [key]}, 0) for key in "abcd"]
    results = written(builder.build(), records, "out", commit_every=commit_every)
    assert results == [{"names": [key]} for key in "abcd"]


@pytest.mark.parametrize("cache", [0, 1 << 20])
def test_a_join_does_not_change_the_old_value_of_a_cached_row(cache: int) -> None:
    """The right row is cached while the left row changes twice; its old value is looked up and forwarded later."""
    builder = ms.StreamsBuilder()

    def joined(left: str, right: list[str]) -> list[str]:
        right.append(left)
        return right

    options = {name: ms.stores.options(name, cache=cached) for name, cached in (("l", False), ("r", True))}
    left = builder.table("left", store=options["l"])
    right = builder.table("right", value=JSON, store=options["r"])
    added: list[Any] = []
    removed: list[Any] = []

    def add(key: str, value: Any, aggregate: int) -> int:
        added.append(value)
        return aggregate + 1

    def remove(key: str, value: Any, aggregate: int) -> int:
        removed.append(value)
        return aggregate - 1

    groups = left.join(right, joined, value=JSON).group_by(lambda key, value: (key, value), value=JSON)
    groups.aggregate(lambda: 0, add, remove, value=JSON)
    with TopologyTestDriver(builder.build(), commit_every=10, statestore_cache_max_bytes=cache) as driver:
        driver.pipe("left", "k", "x")
        driver.pipe("right", "k", ["old"])
        driver.commit()
        for time, (topic, value) in enumerate((("right", ["new"]), ("left", "y"), ("left", "z"))):
            driver.pipe(topic, "k", value, time)
        driver.commit()
    assert (removed, added[0], added[-1]) == (added[:-1], ["old", "x"], ["new", "z"])


def test_headers_that_change_after_a_record_was_forwarded_are_not_sent() -> None:
    builder = ms.StreamsBuilder()

    class Forwarding(ms.Processor[Any, Any, Any, Any]):
        def process(self, record: ms.Record[Any, Any]) -> None:
            headers: Any = []
            for name in ("one", "two"):
                headers.append((name, b""))
                self.context.forward(ms.Record(record.key, record.value, record.timestamp, headers))

    builder.stream("in").process(Forwarding).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        driver.pipe("in", "k", "v", 0)
        sent = [[name for name, _ in record.headers] for record in driver.read("out")]
    assert sent == [["one"], ["one", "two"]]
