"""StreamsBuilder: sources, default serdes, names."""

from __future__ import annotations

import pytest

import penstock as ps
from penstock.core.model.errors import TopologyError
from penstock.core.plan.nodes import Source


def source(topology: ps.Topology) -> Source:
    (node,) = (node for node in topology.nodes.values() if isinstance(node, Source))
    return node


def test_default_serdes_are_text() -> None:
    builder = ps.StreamsBuilder()
    builder.stream("in")
    node = source(builder.build())
    assert (node.key, node.value) == (ps.serdes.string, ps.serdes.string)


def test_default_serdes_can_be_others() -> None:
    builder = ps.StreamsBuilder(default_key_serde=ps.serdes.bytes, default_value_serde=ps.serdes.json)
    builder.stream("in")
    node = source(builder.build())
    assert (node.key, node.value) == (ps.serdes.bytes, ps.serdes.json)


def test_a_stream_of_several_topics_is_one_source() -> None:
    builder = ps.StreamsBuilder()
    builder.stream(["a", "b"], name="both", offset_reset="latest")
    node = source(builder.build())
    assert (node.name, node.topics, node.offset_reset) == ("both", ("a", "b"), "latest")


def test_generated_names_are_those_of_kafka_streams() -> None:
    builder = ps.StreamsBuilder()
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


def test_a_table_keeps_its_rows_in_a_store_named_by_its_topic() -> None:
    builder = ps.StreamsBuilder()
    builder.table("users", value=ps.serdes.json)
    builder.table("orders", store="all-orders")
    stores = builder.build().stores
    assert {name: store.fingerprint for name, store in stores.items()} == {
        "users-table": "timestamped-key-value string -> json",
        "all-orders": "timestamped-key-value string -> string",
    }


@pytest.mark.parametrize("second", ["stream", "table"])
def test_a_topic_is_read_once(second: str) -> None:
    builder = ps.StreamsBuilder()
    builder.stream("in")
    with pytest.raises(TopologyError, match="topic 'in' has two sources"):
        getattr(builder, second)("in")


def test_a_builder_without_streams_builds_nothing() -> None:
    with pytest.raises(TopologyError, match="the topology has no source"):
        ps.StreamsBuilder().build()


def test_a_store_is_added_for_processors() -> None:
    class Quiet(ps.Processor):
        def process(self, record: ps.Record) -> None:
            pass

    builder = ps.StreamsBuilder().add_state_store(ps.stores.key_value("s", ps.serdes.string, ps.serdes.int64))
    builder.stream("in").process(Quiet, stores=["s"], name="quiet")
    assert builder.build().nodes["quiet"].store_names == ("s",)
