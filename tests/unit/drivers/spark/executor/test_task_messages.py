"""Which tasks receive the names of the tapped nodes."""

from __future__ import annotations

import pyarrow as pa

import millstream as ms
from millstream.core.model.ids import TaskId
from millstream.core.topology.layout import lay_out
from millstream.drivers.spark import wire
from millstream.drivers.spark.driver.placement import grouping_keys
from millstream.drivers.spark.executor.task_messages import decode_taps, with_taps
from millstream.drivers.spark.spec import TopologySpec


def spec() -> TopologySpec:
    """Sub-topology 0 runs before the shuffle, sub-topology 1 counts behind it."""
    builder = ms.StreamsBuilder()
    builder.stream("in", name="read").group_by(lambda key, value: value).count(name="counted")
    plan = builder.build().plan("app")
    layout = lay_out(plan, {"in": 2})
    return TopologySpec(plan, layout, grouping_keys(layout.tasks), ms.ErrorPolicies(), {})


def kinds(*taps: str) -> list[tuple[str, int]]:
    known = spec()
    rows = [
        wire.arrow_rows(
            [(known.groups[task], wire.RECORDS, str(task), "in", 0, "", 0, 1, "c:7:r", 9, 0, b"")]
        )
        for task in (TaskId(0, 0), TaskId(1, 0), TaskId(1, 0), TaskId(1, 1))
    ]
    found = pa.Table.from_batches(with_taps(rows, known, taps)).to_pylist()
    assert {decode_taps(row["payload"]) for row in found if row["kind"] == wire.TAPS} <= {("counted",)}
    return [(row["task"], row["kind"]) for row in found]


def test_a_tapped_task_receives_one_row_of_taps_before_its_other_rows() -> None:
    assert kinds("read", "counted", "gone") == [
        ("0_0", wire.RECORDS),
        ("1_0", wire.TAPS),
        ("1_0", wire.RECORDS),
        ("1_0", wire.RECORDS),
        ("1_1", wire.TAPS),
        ("1_1", wire.RECORDS),
    ]


def test_tasks_without_taps_receive_no_row_of_taps() -> None:
    assert {kind for _, kind in kinds("read", "gone")} == {wire.RECORDS}
