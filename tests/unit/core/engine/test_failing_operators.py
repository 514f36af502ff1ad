"""Operators apply the error policy when a function raises or the serde of a store rejects a key; other records continue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import millstream as ms
from millstream.testing import TopologyTestDriver
from unit.helpers import Host

Build = Callable[[ms.StreamsBuilder], ms.KStream[Any, Any]]


def to_bytes(text: str) -> bytes:
    if text == "bad":
        raise LookupError("bad")
    return text.encode()


PICKY: ms.Serde[str] = ms.serdes.of(to_bytes, bytes.decode, name="picky", immutable=True)
"""Deserializes every key, but does not serialize the key ``bad``."""


def fails(value: Any, *others: Any) -> Any:
    if value == "bad":
        raise LookupError("bad")
    return value


class FailingWindows(ms.Windows):
    """Windows of ten milliseconds; windows_for fails at the timestamp BAD_MS."""

    def __init__(self) -> None:
        super().__init__(10, 0)

    def windows_for(self, timestamp: int) -> list[tuple[int, int]]:
        first = fails("bad" if timestamp == BAD_MS else timestamp) // 10 * 10
        return [(first, first + 10)]


BAD_MS = 2
VERSIONED = ms.stores.options("rows", history_retention=10)


def fail_foreign(builder: ms.StreamsBuilder) -> ms.KStream[Any, Any]:
    other = builder.table("other", store="other")
    return builder.table("in", store="rows").left_join(other, fails, on=lambda value: "x").to_stream()


def fail_with_grace(builder: ms.StreamsBuilder) -> ms.KStream[Any, Any]:
    table = builder.table("other", key=PICKY, store=VERSIONED)
    return builder.stream("in", key=PICKY).left_join(table, lambda value, row: value, grace=0)


FUNCTIONS: dict[str, Build] = {
    "map": lambda b: b.stream("in").map(lambda key, value: (key, fails(value))),
    "select_key": lambda b: b.stream("in").select_key(lambda key, value: fails(value)).map_values(str),
    "join by a foreign key": fail_foreign,
    "join of tables": lambda b: (
        b.table("in", store="rows").left_join(b.table("other", store="other"), fails).to_stream()
    ),
    "stored result": lambda b: b.table("in", store="rows").map_values(fails, store="mapped").to_stream(),
}
STORES: dict[str, Build] = {
    "table": lambda b: b.table("in", key=PICKY, store="rows").to_stream(),
    "versioned table": lambda b: b.table("in", key=PICKY, store=VERSIONED).to_stream(),
    "stream as a table": lambda b: b.stream("in", key=PICKY).to_table(store="rows").to_stream(),
    "grace of a join": fail_with_grace,
}


def run(build: Build, rows: list[tuple[str, str, int]], **serdes: Any) -> tuple[list[Any], Any]:
    builder = ms.StreamsBuilder()
    build(builder).to("out", **serdes)
    with TopologyTestDriver(builder.build(), policies=ms.ErrorPolicies(process="skip")) as driver:
        topic = driver.input_topic("in", key=ms.serdes.string, value=ms.serdes.string)
        for key, value, time in rows:
            topic.pipe(key, value, timestamp=time)
        return [record.value for record in driver.read("out")], driver.dropped()


@pytest.mark.parametrize("operator", FUNCTIONS)
def test_a_function_that_raises_fails_only_its_record(operator: str) -> None:
    rows = [("a", "1", 1), ("b", "bad", 2), ("c", "3", 3)]
    assert run(FUNCTIONS[operator], rows) == (["1", "3"], {"process error": 1})


@pytest.mark.parametrize("operator", STORES)
def test_a_key_that_a_store_rejects_fails_only_its_record(operator: str) -> None:
    rows = [("a", "1", 1), ("bad", "2", 2), ("c", "3", 3)]
    assert run(STORES[operator], rows, key=ms.serdes.string) == (["1", "3"], {"process error": 1})


def test_a_record_that_another_program_wrote_fails_in_a_grouped_table() -> None:
    builder = ms.StreamsBuilder()
    builder.table("in").group_by(lambda key, value: (key, value)).count(store="counts")
    host = Host(builder.build(), sub=1, policies=ms.ErrorPolicies(process="skip"))
    (topic,) = host.sub.source_topics
    outcome = host.run(topic, ("a", None, 1))
    assert outcome.metrics.dropped == {"process error": 1}
    assert "has no key or no change; only this application may write to that topic" in outcome.notices[0]


def test_a_windowed_value_that_does_not_fit_its_serde_fails_only_its_record() -> None:
    builder = ms.StreamsBuilder()
    counts = builder.stream("in").group_by_key().windowed_by(ms.TumblingWindows(10, grace=0)).count(store="c")
    words = counts.to_stream().map_values(lambda number: number).map_values(lambda n: "two" if n == 2 else n)
    words.to("out", value=ms.serdes.int64)
    host = Host(builder.build(), policies=ms.ErrorPolicies(produce="skip"), partitions={"out": 3})
    outcome = host.run("in", *[("a", "x", time) for time in (1, 2, 3)])
    ((_, records),) = outcome.sends
    assert (records.timestamps, outcome.metrics.dropped) == ([1, 3], {"produce error": 1})
    assert "the value does not fit its serde, sending to topic 'out'" in outcome.notices[0]
    assert len(set(records.partitions or ())) == 1


def test_windows_that_cannot_be_computed_fail_only_their_record() -> None:
    def count(builder: ms.StreamsBuilder) -> ms.KStream[Any, Any]:
        counts = builder.stream("in").group_by_key().windowed_by(FailingWindows()).count(store="counts")
        return counts.to_stream(lambda window, number: window.key)

    rows = [("a", "1", 1), ("a", "2", BAD_MS), ("a", "3", 3)]
    assert run(count, rows, value=ms.serdes.int64) == ([1, 2], {"process error": 1})
