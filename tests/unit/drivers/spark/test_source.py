"""The rows that a reader sends to tasks."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import millstream as ms
from millstream.core.ports import OffsetRange
from millstream.core.runtime.batch_plan import Initialization, WallClock
from millstream.core.topology.layout import lay_out
from millstream.drivers.spark import wire
from millstream.drivers.spark.driver.placement import grouping_keys
from millstream.drivers.spark.source import _read
from millstream.drivers.spark.spec import PlannedRead, SourceSpec, TopologySpec
from unit.drivers.topics import FakeTopic


def test_a_task_learns_that_an_empty_partition_starts_again_at_offset_zero() -> None:
    builder = ms.StreamsBuilder()
    builder.stream("in").map_values_async(str.upper, name="call").to("out")
    plan, topic = builder.build().plan("app"), FakeTopic("in", 1)
    layout = lay_out(plan, {"in": 1})
    topology = TopologySpec(plan, layout, grouping_keys(layout.tasks), ms.ErrorPolicies(), {"out": 1})
    arguments: Any = (topology, topic, topic, None, 1_000, 1 << 20, 1, "earliest", Initialization())
    planned = PlannedRead("5f3a:4:c41d", WallClock(0), back=[OffsetRange("in", 0, 0, 0)])
    (row,) = pa.Table.from_batches(_read(SourceSpec(*arguments), planned)).to_pylist()
    assert (row["kind"], row["task"], row["topic"], row["partition"]) == (wire.RECORDS, "0_0", "in", 0)
    assert (row["end"], row["payload"]) == (0, b"")
    assert topic.fetched == []
