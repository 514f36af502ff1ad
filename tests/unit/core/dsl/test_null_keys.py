"""Joins handle records without a key as in Kafka Streams 4.3 (KIP-962).

The expected results and drop counts come from its ``TopologyTestDriver``, for the same topologies and records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

import millstream as ms
from golden.micro_batches import MicroBatches, Row


class Inputs(NamedTuple):
    """Inputs of the cases: two streams with some null keys, a stream with the key of the input, and two tables."""

    stream: ms.KStream[Any, Any]
    other: ms.KStream[Any, Any]
    plain: ms.KStream[Any, Any]
    rows: ms.KTable[Any, Any]
    everywhere: ms.GlobalKTable[Any, Any]


Case = Callable[[Inputs], ms.KStream[Any, Any]]
WINDOWS = ms.JoinWindows(100, 100, grace=0, unmatched="early")


def both(left: Any, right: Any) -> str:
    return f"{left}+{right}"


def row_key(key: Any, _value: Any) -> Any:
    return key


CASES: dict[str, tuple[Case, list[str], int]] = {
    "left, table": (lambda i: i.stream.left_join(i.rows, both), ["None:-1+None", "a:a2+None", "z:z+None"], 0),
    "repartition, left, table": (
        lambda i: i.stream.repartition().left_join(i.rows, both),
        ["None:-1+None", "a:a2+None", "z:z+None"],
        0,
    ),
    "repartition, inner, table": (lambda i: i.stream.repartition().join(i.rows, both), [], 0),
    "repartition, left, global table": (
        lambda i: i.stream.repartition().left_join(i.everywhere, row_key, both),
        ["None:-1+None", "a:a2+None", "z:z+None"],
        0,
    ),
    "repartition, inner, global table": (
        lambda i: i.stream.repartition().join(i.everywhere, row_key, both),
        [],
        0,
    ),
    "repartition, left, stream": (
        lambda i: i.stream.repartition().left_join(i.other, both, windows=WINDOWS),
        ["None:-1+None", "a:a2+a4"],
        1,
    ),
    "left, stream": (
        lambda i: i.stream.left_join(i.other, both, windows=WINDOWS),
        ["None:-1+None", "a:a2+a4"],
        1,
    ),
    "repartition, outer, stream": (
        lambda i: i.stream.repartition().outer_join(i.other.repartition(), both, windows=WINDOWS),
        ["None:-1+None", "None:None+-3", "a:a2+a4"],
        0,
    ),
    "the right side of left": (
        lambda i: i.plain.left_join(i.other.repartition(), both, windows=WINDOWS),
        ["k:-1+None", "k:a2+None"],
        1,
    ),
    "inner, left": (
        lambda i: i.stream.join(i.plain, both, windows=WINDOWS).left_join(i.rows, both),
        [],
        1,
    ),
    "a function between": (
        lambda i: i.stream.repartition().map_values(lambda v: v + "!").left_join(i.rows, both),
        ["None:-1!+None", "a:a2!+None", "z:z!+None"],
        0,
    ),
    "repartition, repartition, left": (
        lambda i: i.stream.repartition().select_key(lambda _, v: v).repartition().left_join(i.rows, both),
        ["-1:-1+None", "a2:a2+None", "z:z+None"],
        0,
    ),
    "count, left": (
        lambda i: i.stream.group_by_key().count().to_stream().left_join(i.rows, both),
        ["a:1+None", "z:1+None"],
        1,
    ),
    "to_table, left": (
        lambda i: i.stream.to_table().to_stream().left_join(i.rows, both),
        ["a:a2+None", "z:z+None"],
        1,
    ),
    "beside left": (lambda i: beside_a_left_join(i), ["None:-1", "a:a2", "z:z"], 0),
}


def beside_a_left_join(inputs: Inputs) -> ms.KStream[Any, Any]:
    repartitioned = inputs.stream.repartition()
    repartitioned.left_join(inputs.rows, both).foreach(lambda k, v: None)
    return repartitioned


RECORDS = [("in", "-1", 0), ("in", "a2", 0), ("other", "-3", 0), ("other", "a4", 0), ("in", "z", 1000)]


def new_key(value: str) -> str | None:
    return None if value.startswith("-") else value[0]


def topology(case: Case, *, by_function: bool) -> ms.Topology:
    builder = ms.StreamsBuilder(null_keys="silent")
    plain, other = builder.stream("plain"), builder.stream("other")
    stream = builder.stream("in")
    if by_function:
        stream, other = (s.select_key(lambda _, v: new_key(v)) for s in (stream, other))
    case(Inputs(stream, other, plain, builder.table("rows"), builder.global_table("everywhere"))).to("out")
    return builder.build()


def rows(*, by_function: bool) -> list[tuple[str, Row]]:
    inputs_by_topic: list[tuple[str, Row]] = []
    for topic, value, timestamp in RECORDS:
        key = "k" if by_function else new_key(value)
        inputs_by_topic.append(
            (topic, (None if key is None else key.encode(), value.encode(), timestamp, ()))
        )
        if topic == "in":
            inputs_by_topic.append(("plain", (b"k", value.encode(), timestamp, ())))
    return inputs_by_topic


@pytest.mark.parametrize("together", [False, True], ids=["one by one", "together"])
@pytest.mark.parametrize("by_function", [True, False], ids=["new keys", "keys of the input"])
@pytest.mark.parametrize("case", CASES)
def test_joins_handle_null_keys_like_kafka_streams(case: str, by_function: bool, together: bool) -> None:
    define, expected, dropped = CASES[case]
    built = topology(define, by_function=by_function)
    runner = MicroBatches(built, "app", chunk=100, budget=None)
    source_topics = {*runner.plan.subtopology_of}
    for topic, row in rows(by_function=by_function):
        if topic in source_topics:
            runner.add(topic, [row])
            if not together:
                runner.settle()
    runner.settle()
    assert [f"{r.key}:{r.value}" for r in runner.sent["out"]] == expected
    assert runner.dropped == dropped
