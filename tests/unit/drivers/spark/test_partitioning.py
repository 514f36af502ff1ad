"""Murmur2 over a column, compared with the hash of a single key."""

from __future__ import annotations

import pyarrow as pa
import pytest

from millstream.core.model.partitioning import murmur2 as murmur2_of_one
from millstream.core.model.partitioning import partition_of, range_of
from millstream.core.model.record import Records
from millstream.drivers.spark.wire import murmur2, ranges_of, split_by_partition, to_arrow

KEYS = [
    b"",
    b"a",
    b"ab",
    b"abc",
    b"abcd",
    b"abcde",
    b"\xff" * 7,
    b"\x00\x80" * 100,
    b"x" * 1023,
    "ä💥".encode(),
]


def test_a_column_is_hashed_like_single_keys() -> None:
    assert murmur2(pa.array(KEYS, pa.binary())).tolist() == [murmur2_of_one(key) for key in KEYS]


@pytest.mark.parametrize("ranges", [1, 4, 16, 256])
@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()], ids=str)
def test_the_key_ranges_of_a_column_equal_those_of_single_keys(kind: pa.DataType, ranges: int) -> None:
    assert ranges_of(pa.array(KEYS, kind), ranges).tolist() == [range_of(key, ranges) for key in KEYS]


@pytest.mark.parametrize(("start", "length"), [(0, 3), (4, 3), (9, 1), (5, 0), (0, 10)])
def test_a_slice_of_a_column_is_hashed_like_single_keys(start: int, length: int) -> None:
    part = pa.array(KEYS, pa.binary()).slice(start, length)
    assert murmur2(part).tolist() == [murmur2_of_one(key) for key in KEYS[start : start + length]]


@pytest.mark.parametrize("keys", [[], [b""], [None], [None, b"", None]])
def test_nulls_are_hashed_like_empty_keys(keys: list[bytes | None]) -> None:
    assert murmur2(pa.array(keys, pa.binary())).tolist() == [murmur2_of_one(b"")] * len(keys)


@pytest.mark.parametrize("partitions", [1, 2, 7, 64])
def test_records_are_split_by_the_partition_that_java_chooses(partitions: int) -> None:
    records = Records(KEYS * 3, [b"%d" % n for n in range(30)], list(range(30)))
    parts = split_by_partition(to_arrow(records), partitions)
    assert [number for number, _ in parts] == sorted({partition_of(key, partitions) for key in KEYS})
    for number, part in parts:
        rows = part.to_pylist()
        assert {partition_of(row["key"], partitions) for row in rows} == {number}
        assert [row["timestamp"] for row in rows] == sorted(
            row["timestamp"] for row in rows
        )  # the order is kept
    assert sum(part.num_rows for _, part in parts) == 30


def test_null_keys_go_to_the_partition_of_the_empty_key() -> None:
    ((number, part),) = split_by_partition(to_arrow(Records([None, b""], [b"1", b"2"], [1, 2])), 9)
    assert (number, part.column("value").to_pylist()) == (partition_of(b"", 9), [b"1", b"2"])


def test_an_explicit_partition_takes_precedence_over_that_of_the_key() -> None:
    records = Records([b"a"] * 4, [b"1", b"2", b"3", b"4"], [1, 2, 3, 4])
    records.partitions = [2, 0, -1, 2]
    parts = {n: part.column("value").to_pylist() for n, part in split_by_partition(to_arrow(records), 3)}
    expected: dict[int, list[bytes]] = {2: [b"1", b"4"], 0: [b"2"]}
    expected[partition_of(b"a", 3)] = sorted([*expected.get(partition_of(b"a", 3), []), b"3"])
    assert parts == expected
    assert all("partition" not in part.schema.names for _, part in split_by_partition(to_arrow(records), 3))
