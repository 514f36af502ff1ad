"""Which topics feed a sub-topology through Spark's shuffle, and the source offsets of such records, which commits need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import millstream as ms
from millstream.core.runtime.origins import (
    Begun,
    batch_of,
    begun_after,
    begun_from_json,
    begun_to_json,
    committable,
    first_offset,
    offsets_from,
    origins,
    topics_committed_later,
    topics_finished_later,
    topics_in_front,
    topics_read_whole,
)
from unit.helpers import Quiet


def test_only_topics_that_feed_late_finishing_operators_through_the_shuffle_are_committed_later() -> None:
    builder = ms.StreamsBuilder()
    builder.stream(["a", "b"]).repartition(name="again").map_values_async(str.upper).to("out")
    builder.stream("c").repartition(name="once-more").process(Quiet, acknowledges=True)
    builder.stream("straight").map_values_async(str.upper).to("out")
    builder.stream("counted").repartition(name="to-count").group_by_key().count()
    behind_a_topic = builder.stream("d").group_by_key().count().to_stream().repartition(name="last")
    behind_a_topic.map_values_async(str).to("out")
    plan = builder.build().plan("app")
    assert origins(plan) == {"app-again-repartition": {"a", "b"}, "app-once-more-repartition": {"c"}}
    assert topics_committed_later(plan) == {"a", "b", "c"}


def test_offsets_identify_the_micro_batch_for_any_number_of_records() -> None:
    for lane in (0, 1, 1023, 1024, 1 << 40):
        for start in (0, 5, (1 << 30) - 2, 1 << 45):
            offsets = offsets_from(first_offset(9, lane), start, 5)
            assert {batch_of(offset) for offset in offsets} == {9}
            assert len(set(offsets)) == 5


@pytest.mark.parametrize("start", [0, 1 << 20, (1 << 20) - 5, (1 << 40) - 5])
def test_records_of_different_partitions_have_different_offsets(start: int) -> None:
    behind = offsets_from(first_offset(9, 4), start, 10)
    ahead = offsets_from(first_offset(9, 5), 0, 10)
    assert len({*behind, *ahead}) == 20


def test_unfinished_records_of_an_unknown_micro_batch_commit_nothing() -> None:
    begun = [Begun(6, {"in": {0: 40}}), Begun(8, {"in": {0: 70}})]
    read = {"in": {0: 90}}
    assert committable(read, begun, {}) == read
    assert committable(read, begun, {"in": 7}) == {"in": {0: 40}}
    assert committable(read, begun, {"in": 5}) == committable(read, begun, {"in": 9}) == {}
    assert committable(read, [], {"in": 5}) == {}


def test_a_topic_that_became_shorter_is_committed_no_further_than_it_is_read() -> None:
    begun = [Begun(6, {"in": {0: 40, 1: 3}})]
    assert committable({"in": {0: 5, 1: 4, 2: 9}}, begun, {"in": 6}) == {"in": {0: 5, 1: 3}}


def test_beginnings_of_micro_batches_are_kept_while_they_may_be_needed() -> None:
    begun: tuple[Begun, ...] = ()
    for batch in range(5):
        begun = begun_after(begun, Begun(batch, {"in": {0: batch * 10}}), {"in": 2} if batch > 2 else {})
    assert [each.batch for each in begun] == [2, 3, 4]
    assert begun_after(begun, Begun(5, {"in": {0: 50}}), None)[:3] == begun
    assert begun_from_json(begun_to_json(begun)) == begun


def test_beginnings_of_micro_batches_that_read_nothing_are_not_kept() -> None:
    begun: tuple[Begun, ...] = ()
    for batch in range(100):
        begun = begun_after(begun, Begun(batch, {"in": {0: min(batch, 3)}}), {"in": 0})
    assert [each.batch for each in begun] == [0, 1, 2, 99]


def test_the_topic_with_the_oldest_unfinished_record_decides_which_beginnings_are_kept() -> None:
    begun = [Begun(number, {"a": {0: number}, "b": {0: number}}) for number in range(4)]
    now = Begun(4, {"a": {0: 4}, "b": {0: 4}})
    assert begun_after(begun, now, {"a": 3, "b": 1}) == (*begun[1:], now)


def test_only_every_second_of_too_many_beginnings_is_kept() -> None:
    begun: tuple[Begun, ...] = ()
    for batch in range(64):
        begun = begun_after(begun, Begun(batch, {"in": {0: batch}}), {"in": 0})
    assert [each.batch for each in begun] == list(range(64))
    begun = begun_after(begun, Begun(64, {"in": {0: 64}}), {"in": 0})
    assert [each.batch for each in begun] == [*range(0, 64, 2), 64]


def test_all_topics_in_front_of_the_shuffle_bring_records() -> None:
    builder = ms.StreamsBuilder()
    builder.stream(["a", "b"]).repartition(name="again").map_values_async(str.upper).to("out")
    builder.stream("other").map_values_async(str.upper).to("out")
    assert topics_in_front(builder.build().plan("app")) == {1: {"a", "b"}}


def test_two_repartitions_of_one_sub_topology_bring_records_of_both_topics() -> None:
    builder = ms.StreamsBuilder()
    first, second = (builder.stream(topic).repartition(name=f"again-{topic}") for topic in "ab")
    first.merge(second).map_values_async(str.upper).to("out")
    assert list(topics_in_front(builder.build().plan("app")).values()) == [{"a", "b"}]


def test_topics_in_front_of_an_intermediate_kafka_topic_are_not_included() -> None:
    builder = ms.StreamsBuilder()
    counted = builder.stream("a").group_by_key().count().to_stream()
    counted.repartition(name="again").map_values_async(str).to("out")
    assert topics_in_front(builder.build().plan("app")) == {}


def test_topics_in_front_of_calls_and_of_acknowledgements_are_found() -> None:
    builder = ms.StreamsBuilder()
    builder.stream("a").repartition(name="again").map_values_async(str.upper).to("out")
    builder.stream("b").map_values_async(str.upper).to("out")
    builder.stream("d").process(Quiet, acknowledges=True)
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
def test_a_topic_whose_records_a_function_sees_before_the_shuffle_is_read_whole(
    build: Callable[[ms.StreamsBuilder], object],
) -> None:
    builder = ms.StreamsBuilder()
    build(builder)
    assert "in" in topics_read_whole(builder.build().plan("app"))


@pytest.mark.parametrize("build", FREE.values(), ids=FREE)
def test_a_topic_whose_records_no_function_sees_before_the_shuffle_may_be_cut(
    build: Callable[[ms.StreamsBuilder], object],
) -> None:
    builder = ms.StreamsBuilder()
    build(builder)
    assert topics_read_whole(builder.build().plan("app")) == frozenset()
