"""Which topics feed a sub-topology through Spark's shuffle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import millstream as ms
from millstream.core.runtime.intake import topics_finished_later, topics_in_front, topics_read_whole


def test_all_topics_in_front_of_the_shuffle_bring_records() -> None:
    builder = ms.StreamsBuilder()
    builder.stream(["a", "b"]).repartition(name="again").map_values_async(str.upper).to("out")
    builder.stream("other").map_values_async(str.upper).to("out")
    assert topics_in_front(builder.build().plan("app")) == {1: {"a", "b"}}


def test_two_repartitions_of_one_part_bring_records_of_both() -> None:
    builder = ms.StreamsBuilder()
    first, second = (builder.stream(topic).repartition(name=f"again-{topic}") for topic in "ab")
    first.merge(second).map_values_async(str.upper).to("out")
    assert list(topics_in_front(builder.build().plan("app")).values()) == [{"a", "b"}]


def test_a_topic_of_kafka_in_between_is_read_by_itself() -> None:
    builder = ms.StreamsBuilder()
    counted = builder.stream("a").group_by_key().count().to_stream()
    counted.repartition(name="again").map_values_async(str).to("out")
    assert topics_in_front(builder.build().plan("app")) == {}


def test_topics_in_front_of_calls_and_of_acknowledgements_are_found() -> None:
    builder = ms.StreamsBuilder()
    builder.stream("a").repartition(name="again").map_values_async(str.upper).to("out")
    builder.stream("b").map_values_async(str.upper).to("out")
    builder.stream("d").process(ms.Processor, acknowledges=True)
    builder.stream("c").repartition(name="once-more").group_by_key().count()
    topics = topics_finished_later(builder.build().plan("app"))
    assert topics.issuperset({"a", "b", "d"})
    assert "c" not in topics


def topic_of_the_record(key: Any, value: Any, context: Any) -> str:
    return "out"


CALLING: dict[str, Callable[[ms.StreamsBuilder], object]] = {
    "a mapper": lambda b: b.stream("in").map_values(str.upper).to("out"),
    "a filter": lambda b: b.stream("in").filter(lambda key, value: True).to("out"),
    "a peek": lambda b: b.stream("in").peek(print),
    "a foreach": lambda b: b.stream("in").foreach(print),
    "a branch": lambda b: b.stream("in").split().branch(lambda key, value: True).no_default(),
    "a chosen topic": lambda b: b.stream("in").to(topic_of_the_record),
    "a partitioner": lambda b: b.stream("in").to("out", partitioner=lambda *record: 0),
    "an extractor": lambda b: b.stream("in", timestamp=ms.timestamps.use_partition_time).to("out"),
    "a re-key": lambda b: b.stream("in").group_by(lambda key, value: value).count(),
    "a mapper beside a topic that only passes": lambda b: (
        b.stream("other").merge(b.stream("in").map_values(str.upper)).to("out")
    ),
}
FREE: dict[str, Callable[[ms.StreamsBuilder], object]] = {
    "passing on": lambda b: b.stream("in").to("out"),
    "an expression": lambda b: (
        b.stream("in", value=ms.serdes.json).filter(ms.col("n") > 1).to("out", value=ms.serdes.json)
    ),
    "a re-key by a column": lambda b: b.stream("in", value=ms.serdes.json).group_by(ms.col("n")).count(),
    "a repartition": lambda b: b.stream("in").repartition(partitions=2).map_values(str.upper).to("out"),
    "a task that is fed": lambda b: b.stream("in").map_values(str.upper).group_by_key().count(),
}


@pytest.mark.parametrize("build", CALLING.values(), ids=CALLING)
def test_what_functions_see_in_front_of_the_shuffle_is_read_whole(
    build: Callable[[ms.StreamsBuilder], object],
) -> None:
    builder = ms.StreamsBuilder()
    build(builder)
    assert "in" in topics_read_whole(builder.build().plan("app"))


@pytest.mark.parametrize("build", FREE.values(), ids=FREE)
def test_what_no_function_sees_in_front_of_the_shuffle_may_be_cut(
    build: Callable[[ms.StreamsBuilder], object],
) -> None:
    builder = ms.StreamsBuilder()
    build(builder)
    assert topics_read_whole(builder.build().plan("app")) == frozenset()
