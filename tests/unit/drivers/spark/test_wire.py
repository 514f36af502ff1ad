"""Records and rows as they are sent between processes."""

from __future__ import annotations

import pytest

from millstream.core.model.record import Records
from millstream.drivers.spark import wire

HEADERS = (("h", b"x"), ("h", None), ("", b""))


@pytest.mark.parametrize(
    "records",
    [
        Records(),
        Records([b"a", None, b""], [None, b"", b"v"], [0, -1, 1 << 62], [5, 7, 1 << 40]),
        Records([b"a"], [b"v"], [1]),
        Records([b"a", b"b"], [b"v", b"w"], [1, 2], [], [HEADERS, ()]),
        Records([b"a", None], [b"v", b"w"], [1, 2], [], None, [3, -1]),
        Records([b"a"], [b"v"], [1], writer="0_1"),
        Records([b"a"], [b"v"], [1], [9], [()], [0], "0_1"),
    ],
    ids=["none", "nulls", "no offsets", "headers", "partitions", "writer", "everything"],
)
def test_records_are_read_as_they_were_written(records: Records) -> None:
    read = wire.decode(wire.encode(records))
    assert read == records
    assert all(type(number) is int for number in (*read.timestamps, *read.offsets))


def test_columns_without_content_are_left_out() -> None:
    assert wire.to_arrow(Records([b"a"], [b"v"], [1])).schema.names == ["key", "value", "timestamp"]


def test_chunk_rows_have_one_schema_for_arrow_and_spark() -> None:
    assert wire.CHUNK_ARROW.names == wire.CHUNK_ROWS.names
    row = (7, wire.RECORDS, "0_1", "t", 2, "lane", 10, 12, "5f3a:4", 99, 7, b"payload")
    batch = wire.arrow_rows([row, row])
    assert [tuple(r.values()) for r in batch.to_pylist()] == [row, row]
