"""Global stores at a start: an application takes them, their topics have to be there, an operator refuses them."""

from __future__ import annotations

import pytest

import millstream as ms
from millstream.core.model.errors import TopicNotFoundError, TopologyError
from millstream.edge.broker.topic_preparation import global_partitions


def topology() -> ms.Topology:
    builder = ms.StreamsBuilder()
    table = builder.global_table("products", store="goods")
    builder.stream("orders").join(table, lambda k, v: v, lambda v, row: row).to("out")
    return builder.build()


def test_an_application_gives_them_an_engine() -> None:
    application = ms.Application("app", topology(), bootstrap_servers="unused", store_engine="memory")
    assert application._program.copies.engines == {"goods": "memory"}


def test_a_topic_that_is_not_there_is_named() -> None:
    plan = topology().plan()
    assert global_partitions(plan, {"products": 3, "orders": 1}) == {"products": 3}
    with pytest.raises(TopicNotFoundError, match="do not exist on the broker: 'products'"):
        global_partitions(plan, {"orders": 1})


def test_an_operator_refuses_them() -> None:
    with pytest.raises(TopologyError, match="'products' in the global store 'goods', whose offsets"):
        ms.spark.transform(topology(), {}, name="enrich")
