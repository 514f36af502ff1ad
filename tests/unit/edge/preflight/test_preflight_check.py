"""What the preflight check reports about a checkpoint that it cannot read."""

from __future__ import annotations

from typing import Any

import pytest

import millstream as ms
from millstream.edge.preflight.preflight_check import preflight


class Clients:
    """A broker with the topics of the topology."""

    def check(self) -> None:
        pass

    def broker(self) -> Clients:
        return self

    def partition_counts(self) -> dict[str, int]:
        return {"in": 2, "out": 1}

    def disconnect(self) -> None:
        pass


def application(**settings: Any) -> ms.Application:
    builder = ms.StreamsBuilder()
    builder.stream("in").group_by_key().count(store="counts").to_stream().to("out", value=ms.serdes.int64)
    made = ms.Application("shop", builder.build(), bootstrap_servers="nowhere:1", **settings)
    made._clients = Clients()  # type: ignore[assignment]  # only what the check asks for
    return made


@pytest.mark.parametrize("location", ["s3a://bucket/shop", "hdfs://cluster/shop"])
def test_a_checkpoint_that_needs_spark_is_no_problem(location: str) -> None:
    report = preflight(application(checkpoint_location=location, processing_guarantee="exactly_once"))
    assert report.problems == ()
    (found,) = report.checkpoint
    assert found.startswith(f"{location} is not read, because it is not on a local disk")
    assert "counts" in "\n".join(report.plan)
    assert "shop-commits: one partition per Spark partition, compacted" in report.creates
    assert "Read on group shop-commits" in report.permissions


def test_a_local_checkpoint_is_checked(tmp_path: Any) -> None:
    assert preflight(application(state_dir=tmp_path)).checkpoint == ("none: this is the first start",)
