"""A topology as an operator on DataFrames: what it refuses before it uses Spark."""

from __future__ import annotations

import re
from typing import Any

import pytest

import millstream as ms
from millstream.core.model.errors import TopicNotFoundError, TopologyError


def operator(builder: ms.StreamsBuilder, *topics: str) -> Any:
    frames: Any = dict.fromkeys(topics)
    return ms.spark.transform(builder.build(), frames, name="operator")


def test_a_sink_with_a_partitioner_is_refused() -> None:
    builder = ms.StreamsBuilder()
    builder.stream("in").to("out", partitioner=lambda topic, key, value, partitions: 0, name="placed")
    with pytest.raises(TopologyError, match="sink 'placed' has a partitioner, but the result of transform"):
        operator(builder, "in")


def test_a_pattern_reads_the_dataframes_whose_names_it_matches() -> None:
    builder = ms.StreamsBuilder()
    builder.stream(re.compile("orders-.*")).to("out")
    with pytest.raises(
        TopicNotFoundError, match="reads orders-eu, but the DataFrames are for orders-eu, other"
    ):
        operator(builder, "orders-eu", "other")


def test_a_repartition_after_a_stateful_operator_needs_an_application() -> None:
    builder = ms.StreamsBuilder()
    counts = builder.stream("in").group_by_key().count(store="counts").to_stream()
    counts.group_by(lambda key, count: str(count)).count(store="again")
    with pytest.raises(TopologyError, match="re-keys after a stateful operator, which needs the Kafka topic"):
        operator(builder, "in")


def test_a_global_store_needs_an_application() -> None:
    builder = ms.StreamsBuilder()
    table = builder.global_table("products", store="goods")
    builder.stream("orders").join(table, lambda k, v: v, lambda v, row: row).to("out")
    with pytest.raises(TopologyError, match="'products' in the global store 'goods', whose offsets"):
        operator(builder)
