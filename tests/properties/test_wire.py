"""Records, errors and snapshots cross between processes unchanged."""

from __future__ import annotations

import json

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from millstream.core.engine.records.queue import QueueId
from millstream.core.engine.step_outcome import Snapshot
from millstream.core.model import errors
from millstream.core.model.ids import TopicPartition
from millstream.core.model.partitioning import murmur2 as murmur2_of_one
from millstream.core.model.partitioning import partition_of
from millstream.core.model.record import Records
from millstream.drivers.spark import wire
from millstream.drivers.spark.crossing import crossing, find_error
from millstream.drivers.spark.executor.snapshots import snapshot_from_json, snapshot_to_json

KEYS = st.none() | st.binary(max_size=20)
HEADERS = st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=3).map(tuple)
MILLIS = st.integers(-1, 1 << 50)


@st.composite
def batches(draw: st.DrawFn) -> Records:
    rows = draw(
        st.lists(
            st.tuples(KEYS, KEYS, MILLIS, HEADERS, st.integers(0, 1 << 50), st.integers(-1, 99)), max_size=8
        )
    )
    keys, values, timestamps, headers, offsets, partitions = (
        map(list, zip(*rows)) if rows else ([] for _ in range(6))
    )
    return Records(
        keys,
        values,
        timestamps,
        offsets if draw(st.booleans()) else [],
        headers if draw(st.booleans()) else None,
        partitions if draw(st.booleans()) else None,
    )


@given(batches())
def test_records_are_read_as_written(records: Records) -> None:
    assert wire.decode(wire.encode(records)) == records


@given(st.lists(KEYS, max_size=12), st.data())
def test_the_hashes_of_a_column_are_those_of_its_keys(keys: list[bytes | None], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(keys)))
    length = data.draw(st.integers(0, len(keys) - start))
    column = pa.array(keys, pa.binary()).slice(start, length)
    assert wire.murmur2(column).tolist() == [
        murmur2_of_one(key or b"") for key in keys[start : start + length]
    ]


@given(st.lists(KEYS, min_size=1, max_size=12), st.integers(1, 9))
def test_a_split_by_partition_keeps_all_records_in_order(keys: list[bytes | None], partitions: int) -> None:
    parts = wire.split_by_partition(wire.to_arrow(Records(keys, keys, list(range(len(keys))))), partitions)
    rows = {number: part.column("timestamp").to_pylist() for number, part in parts}
    assert rows == {
        number: [n for n, key in enumerate(keys) if partition_of(key or b"", partitions) == number]
        for number in rows
    }
    assert sum(map(len, rows.values())) == len(keys)


KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.MillstreamError)
]


@given(st.sampled_from(KINDS), st.text(), st.text(alphabet="ab: \n"))
def test_an_error_is_recovered_from_a_text_that_contains_it(
    kind: type[errors.MillstreamError], message: str, noise: str
) -> None:
    try:
        with crossing():
            raise kind(message)
    except errors.SparkRuntimeError as crossed:
        found = find_error(f"{noise}{crossed}{noise}")
    assert (type(found), found.message) == (kind, message)  # type: ignore[union-attr]


QUEUES = st.builds(
    QueueId,
    st.builds(TopicPartition, st.sampled_from(["a", "b"]), st.integers(0, 3)),
    st.sampled_from(["", "x-0"]),
)


@given(st.integers(-1, 99), st.dictionaries(QUEUES, MILLIS), st.dictionaries(QUEUES, batches(), max_size=3))
def test_a_snapshot_is_read_as_written(
    stream_time: int, times: dict[QueueId, int], buffered: dict[QueueId, Records]
) -> None:
    snapshot = Snapshot(
        stream_time, times, ({"node": "n", "due_ms": 5},), buffered, dict.fromkeys(buffered, 7)
    )
    assert snapshot_from_json(json.loads(json.dumps(snapshot_to_json(snapshot)))) == snapshot
