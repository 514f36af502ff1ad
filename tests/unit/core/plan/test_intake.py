"""Which topics bring records to a sub-topology through Spark's shuffle."""

from __future__ import annotations

import penstock as ps
from penstock.core.plan.intake import topics_finished_later, topics_in_front


def test_all_topics_in_front_of_the_shuffle_bring_records() -> None:
    builder = ps.StreamsBuilder()
    builder.stream(["a", "b"]).repartition(name="again").map_values_async(str.upper).to("out")
    builder.stream("other").map_values_async(str.upper).to("out")
    assert topics_in_front(builder.build().plan("app")) == {1: {"a", "b"}}


def test_two_repartitions_of_one_part_bring_records_of_both() -> None:
    builder = ps.StreamsBuilder()
    one, two = (builder.stream(topic).repartition(name=f"again-{topic}") for topic in "ab")
    one.merge(two).map_values_async(str.upper).to("out")
    assert list(topics_in_front(builder.build().plan("app")).values()) == [{"a", "b"}]


def test_a_topic_of_kafka_in_between_is_read_by_itself() -> None:
    builder = ps.StreamsBuilder()
    counted = builder.stream("a").group_by_key().count().to_stream()
    counted.repartition(name="again").map_values_async(str).to("out")
    assert topics_in_front(builder.build().plan("app")) == {}


def test_topics_in_front_of_calls_and_of_acknowledgements_are_found() -> None:
    builder = ps.StreamsBuilder()
    builder.stream("a").repartition(name="again").map_values_async(str.upper).to("out")
    builder.stream("b").map_values_async(str.upper).to("out")
    builder.stream("d").process(ps.Processor, acknowledges=True)
    builder.stream("c").repartition(name="once-more").group_by_key().count()
    topics = topics_finished_later(builder.build().plan("app"))
    assert topics.issuperset({"a", "b", "d"})
    assert "c" not in topics
