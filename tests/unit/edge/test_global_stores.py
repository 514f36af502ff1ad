"""Global stores do not run on Spark yet: such a topology is refused before anything connects."""

from __future__ import annotations

import pytest

import penstock as ps
from penstock.core.model.errors import TopologyError


def topology() -> ps.Topology:
    builder = ps.StreamsBuilder()
    table = builder.global_table("products", store="goods")
    builder.stream("orders").join(table, lambda k, v: v, lambda v, row: row).to("out")
    return builder.build()


def test_an_application_refuses_them() -> None:
    with pytest.raises(
        TopologyError, match="'products' in the global store 'goods', and global stores do not run on Spark"
    ):
        ps.Application("app", topology(), bootstrap_servers="unused")


def test_an_operator_refuses_them() -> None:
    with pytest.raises(TopologyError, match="global stores do not run on Spark yet"):
        ps.spark.transform(topology(), {}, name="enrich")
