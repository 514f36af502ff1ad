"""Slices of topics in files: they preserve every record, and a driver replays them in timestamp order."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from millstream.core.model.errors import SettingsError
from millstream.testing.kafka import ConsumedRecord
from millstream.testing.slice_file import merged, read_slice, slice_line

BYTES = st.none() | st.binary(max_size=5) | st.text(max_size=5).map(str.encode)
RECORDS = st.builds(
    ConsumedRecord,
    st.sampled_from(["a", "b"]),
    st.integers(0, 1),
    st.integers(0, 9),
    st.integers(0, 9),
    BYTES,
    BYTES,
    st.lists(st.tuples(st.text(max_size=3), BYTES), max_size=2).map(tuple),
)


@given(st.lists(RECORDS, max_size=8))
def test_a_slice_file_preserves_every_record(
    tmp_path_factory: pytest.TempPathFactory, records: list[ConsumedRecord]
) -> None:
    file = tmp_path_factory.mktemp("slice") / "slice.jsonl"
    file.write_text("".join(slice_line(record) + "\n" for record in records), encoding="utf-8", newline="\n")
    read_back = read_slice(file)
    assert sorted(map(repr, read_back)) == sorted(map(repr, records))
    for partition in set(map(partition_of, records)):
        assert [record for record in read_back if partition_of(record) == partition] == [
            record for record in records if partition_of(record) == partition
        ]


def partition_of(record: ConsumedRecord) -> tuple[str, int]:
    return record.topic, record.partition


def test_records_are_merged_by_time_and_partitions_keep_their_order() -> None:
    times = [("a", 5), ("a", 1), ("b", 2), ("b", 6)]
    records = [
        ConsumedRecord(topic, 0, offset, time, None, None) for offset, (topic, time) in enumerate(times)
    ]
    assert [record.timestamp for record in merged(records)] == [2, 5, 1, 6]


def test_a_driver_replays_a_slice(tmp_path: Path) -> None:
    file = tmp_path / "slice.jsonl"
    file.write_text(
        '{"topic": "in", "partition": 1, "timestamp": 2, "key": "k", "value": "second", "headers": [["h", "x"]]}\n'
        '{"topic": "in", "partition": 7, "timestamp": 1, "key": "k", "value": {"base64": "Zmlyc3Q="}}\n'
    )
    builder = ms.StreamsBuilder()
    builder.stream("in").to("out")
    with ms.testing.TopologyTestDriver(builder.build(), partitions={"in": 2}) as driver:
        assert driver.replay(file) == 2
        first, second = driver.read("out")
        assert (first.value, second.value, second.headers) == ("first", "second", (("h", b"x"),))
        assert driver.committed_offset("in", partition=1) > 0


@pytest.mark.parametrize(
    "text",
    [
        "no json",
        "[]",
        "{}",
        '{"topic": "in", "key": 5}',
        '{"topic": "in", "value": {"base64": "!"}}',
        '{"topic": "in", "timestamp": Infinity}',
    ],
)
def test_a_file_that_is_not_a_slice_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "slice.jsonl"
    file.write_text(f'{{"topic": "in"}}\n{text}\n')
    with pytest.raises(SettingsError, match="line 2 of"):
        read_slice(file)
    with pytest.raises(SettingsError, match="cannot be read"):
        read_slice(tmp_path / "none.jsonl")
