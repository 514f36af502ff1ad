"""StreamsBuilder: sources, default serdes, names."""

from __future__ import annotations

import re
from typing import Any

import pytest

import millstream as ms
from millstream.core.model.errors import TopologyError
from millstream.core.topology.nodes import Source


def source(topology: ms.Topology) -> Source:
    (node,) = (node for node in topology.nodes.values() if isinstance(node, Source))
    return node


def test_the_default_serdes_are_string() -> None:
    builder = ms.StreamsBuilder()
    builder.stream("in")
    node = source(builder.build())
    assert (node.key, node.value) == (ms.serdes.string, ms.serdes.string)


def test_the_default_serdes_can_be_changed() -> None:
    builder = ms.StreamsBuilder(default_key_serde=ms.serdes.bytes, default_value_serde=ms.serdes.json)
    builder.stream("in")
    node = source(builder.build())
    assert (node.key, node.value) == (ms.serdes.bytes, ms.serdes.json)


def test_a_stream_of_several_topics_is_one_source() -> None:
    builder = ms.StreamsBuilder()
    builder.stream(["a", "b"], name="both", offset_reset="latest")
    node = source(builder.build())
    assert (node.name, node.topics, node.offset_reset) == ("both", ("a", "b"), "latest")


def test_generated_names_are_those_of_kafka_streams() -> None:
    builder = ms.StreamsBuilder()
    builder.stream("in").filter(lambda k, v: True).map_values(str, name="mine").select_key(lambda k, v: v).to(
        "out"
    )
    assert list(builder.build().nodes) == [
        "KSTREAM-SOURCE-0000000000",
        "KSTREAM-FILTER-0000000001",
        "mine",
        "KSTREAM-KEY-SELECT-0000000003",
        "KSTREAM-SINK-0000000004",
    ]


def test_the_store_of_a_table_is_named_after_its_topic_by_default() -> None:
    builder = ms.StreamsBuilder()
    builder.table("users", value=ms.serdes.json)
    builder.table("orders", store="all-orders")
    stores = builder.build().stores
    assert {name: store.fingerprint for name, store in stores.items()} == {
        "users-table": "timestamped-key-value string -> json",
        "all-orders": "timestamped-key-value string -> string",
    }


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("stream", "table"),
        ("table", "stream"),
        ("table", "table"),
        ("stream", "global_table"),
        ("global_table", "stream"),
    ],
)
def test_the_topic_of_a_table_cannot_have_another_source(first: str, second: str) -> None:
    builder = ms.StreamsBuilder()
    getattr(builder, first)("in")
    with pytest.raises(TopologyError, match="topic 'in' has two sources"):
        getattr(builder, second)("in")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("in", "in"),
        ("in", ["in"]),
        (["in", "other"], ["other", "in"]),
        (re.compile("i.*"), re.compile("i.*")),
    ],
)
def test_streams_of_the_same_topics_have_one_source(first: Any, second: Any) -> None:
    builder = ms.StreamsBuilder(names="numbered")
    first_stream, second_stream = builder.stream(first), builder.stream(second)
    second_stream.filter(lambda k, v: True).to("of-other")
    first_stream.map_values(str.upper).to("of-one")
    topology = builder.build()
    assert [name for name in topology.nodes if "SOURCE" in name] == ["KSTREAM-SOURCE-0000000000"]
    assert "KSTREAM-FILTER-0000000002" in topology.nodes
    with ms.testing.TopologyTestDriver(topology) as driver:
        driver.pipe("in", "k", "v")
        assert [[r.value for r in driver.read(topic)] for topic in ("of-one", "of-other")] == [["V"], ["v"]]


def test_a_stream_may_be_joined_with_another_stream_of_its_topic() -> None:
    builder = ms.StreamsBuilder()
    left, right = builder.stream("in"), builder.stream("in")
    left.join(right, lambda a, b: a + b, windows=ms.JoinWindows(10, 10, grace=0)).to("out")
    with ms.testing.TopologyTestDriver(builder.build()) as driver:
        driver.pipe("in", "k", "a", 0)
        driver.pipe("in", "k", "b", 1)
        assert [r.value for r in driver.read("out")] == ["aa", "ba", "ab", "bb"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"offset_reset": "earliest"}, {"offset_reset": "latest"}),
        ({"offset_reset": "earliest"}, {}),
        ({}, {"offset_reset": "latest"}),
        ({"value": ms.serdes.int64}, {}),
        ({"key": ms.serdes.int64}, {"key": ms.serdes.json}),
        ({}, {"timestamp": lambda record, time: 0}),
    ],
)
@pytest.mark.parametrize("topics", ["in", re.compile("i.*")])
def test_streams_of_the_same_topics_must_have_the_same_options(
    topics: Any, first: dict[str, Any], second: dict[str, Any]
) -> None:
    builder = ms.StreamsBuilder()
    builder.stream(topics, **first)
    [option] = (first | second).keys()
    with pytest.raises(
        TopologyError, match=f"is read twice, by .* with {option}=.* give both the same {option}"
    ):
        builder.stream(topics, **second)


def test_overlapping_lists_of_topics_are_rejected() -> None:
    builder = ms.StreamsBuilder()
    builder.stream(["in", "other"])
    with pytest.raises(TopologyError, match="topic 'in' has two sources"):
        builder.stream("in")


def test_a_new_topic_that_matches_two_patterns_is_rejected() -> None:
    builder = ms.StreamsBuilder()
    builder.stream(re.compile("i.*")).to("out")
    builder.stream(re.compile(".*n")).to("out")
    driver = ms.testing.TopologyTestDriver(builder.build())
    driver.pipe("ix", "k", "v")
    with pytest.raises(TopologyError, match=r"'in' would have two sources: 'KSTREAM-SOURCE-0000000000', and"):
        driver.pipe("in", "k", "v")


def test_through_and_a_stream_of_the_same_topic_read_each_record_once() -> None:
    builder = ms.StreamsBuilder()
    builder.stream("in").through("topic").to("one")
    builder.stream("topic").to("other")
    with ms.testing.TopologyTestDriver(builder.build()) as driver:
        driver.pipe("in", "k", "v")
        assert [len(driver.read(topic)) for topic in ("one", "other")] == [1, 1]


def test_a_builder_without_streams_cannot_build_a_topology() -> None:
    with pytest.raises(TopologyError, match="the topology has no source"):
        ms.StreamsBuilder().build()


def test_a_processor_can_use_an_added_store() -> None:
    class Quiet(ms.Processor):
        def process(self, record: ms.Record) -> None:
            pass

    builder = ms.StreamsBuilder().add_state_store(ms.stores.key_value("s", ms.serdes.string, ms.serdes.int64))
    builder.stream("in").process(Quiet, stores=["s"], name="quiet")
    assert builder.build().nodes["quiet"].store_names == ("s",)
