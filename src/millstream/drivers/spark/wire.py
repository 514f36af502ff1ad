"""The wire: the formats that cross between Python processes through Spark.

Records cross in *chunk rows*. One row contains thousands of records as Arrow IPC bytes, because one row per record would cost
more than all other work together. The partitions and key ranges of their keys are found with murmur2 over whole columns. It is the same
hash as ``millstream.core.model.partitioning.murmur2``, without a Python call per key. Tests compare the two.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from itertools import accumulate
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from millstream.core.model.partitioning import HASH_BITS
from millstream.core.model.record import PartitionTimes, Records, Times, TimeSteps
from millstream.core.ports import BatchId

RECORDS: Final = 1
"""Records for a task's queues."""
SEND: Final = 2
"""Records to be sent."""
REPORT: Final = 3
"""A task's report about a micro-batch, as JSON."""
TICK: Final = 4
"""Starts or wakes a task, without records."""
INPUTS: Final = 5
"""The facts about a task's inputs, as JSON; see ``millstream.core.runtime.remaining_inputs``."""
GLOBAL: Final = 6
"""The offsets of the topics of global stores that the micro-batch sees. Accompanies other rows of a task."""
TIMES: Final = 7
"""The partition times that a reader has reached, as JSON; see ``millstream.core.runtime.partition_times``."""
TAPS: Final = 8
"""The nodes of a task whose records are sampled, as JSON. Accompanies other rows of the task."""

CHUNK_ROWS = StructType(
    [
        StructField("group", IntegerType(), nullable=False),
        StructField("kind", ByteType(), nullable=False),
        StructField("task", StringType(), nullable=False),
        StructField("topic", StringType(), nullable=False),
        StructField("partition", IntegerType(), nullable=False),
        StructField("lane", StringType(), nullable=False),
        StructField("start", LongType(), nullable=False),
        StructField("end", LongType(), nullable=False),
        StructField("batch", StringType(), nullable=False),
        StructField("now_ms", LongType(), nullable=False),
        StructField("ahead_ms", LongType(), nullable=False),
        StructField("payload", BinaryType(), nullable=False),
    ]
)
"""The input rows of the task host. ``group`` is the grouping key, which selects the Spark partition of a task. ``topic``, ``partition``
and ``lane`` identify the queue of the records, and ``start`` and ``end`` their offset range. ``batch`` is the micro-batch in the format of
:func:`batch_text`, ``now_ms`` its wall clock, and ``ahead_ms`` how far this clock was ahead of the host's clock. A repeated read of a range
returns the same rows, because Spark compares them."""

_IN_ARROW: Final[Mapping[type[DataType], pa.DataType]] = {
    BinaryType: pa.binary(),
    ByteType: pa.int8(),
    IntegerType: pa.int32(),
    LongType: pa.int64(),
    StringType: pa.string(),
}
CHUNK_ARROW: Final = pa.schema(
    [pa.field(field.name, _IN_ARROW[type(field.dataType)], nullable=False) for field in CHUNK_ROWS]
)

OUTPUT_ROWS = StructType(
    [
        StructField("kind", ByteType(), nullable=False),
        StructField("topic", StringType(), nullable=False),
        StructField("batch", StringType(), nullable=False),
        StructField("payload", BinaryType(), nullable=False),
    ]
)
"""The output rows of the task host: SEND and REPORT."""

_WRITER: Final = b"writer"
_TIMES: Final = b"times"
"""Metadata of a batch divided into key ranges: the partition's largest timestamp, and the largest among records with a key."""
_VALUED: Final = b"valued"
"""The largest timestamp among records with a key and a value, if it differs."""
_STEPS: Final = b"steps"
"""The steps of the partition time, if any."""
HEADERS: Final = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
"""The type of a record's headers in Spark."""
HEADERS_ARROW: Final = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))


_SEED = np.uint32(0x9747B28C)
_M = np.uint32(0x5BD1E995)
_Rows = TypeVar("_Rows", pa.RecordBatch, pa.Table)


def batch_text(batch: BatchId) -> str:
    """Return the id of a micro-batch in chunk-row format.

    Example:
        >>> batch_text(BatchId("5f3a", 12, "c41d"))
        '5f3a:12:c41d'
    """
    return f"{batch.checkpoint}:{batch.number}:{batch.run}"


def batch_of(text: str) -> BatchId:
    checkpoint, number, run = text.split(":")
    return BatchId(checkpoint, int(number), run)


def encode(records: Records) -> bytes:
    return encode_batch(to_arrow(records))


def to_arrow(records: Records) -> pa.RecordBatch:
    columns = {
        "key": pa.array(records.keys, pa.binary()),
        "value": pa.array(records.values, pa.binary()),
        "timestamp": pa.array(records.timestamps, pa.int64()),
    }
    if records.offsets:
        columns["offset"] = pa.array(records.offsets, pa.int64())
    if records.partitions is not None:
        columns["partition"] = pa.array(records.partitions, pa.int32())
    if records.weights is not None:
        columns["weight"] = pa.array(records.weights, pa.int64())
    if records.times is not None:
        columns["before"] = pa.array(records.times.before, pa.int64())
        columns["keyed_before"] = pa.array(records.times.keyed_before, pa.int64())
        if records.times.valued_before != records.times.keyed_before:
            columns["valued_before"] = pa.array(records.times.valued_before, pa.int64())
    if records.headers is not None:
        named = [[{"key": name, "value": value} for name, value in headers] for headers in records.headers]
        columns["headers"] = pa.array(named, HEADERS_ARROW)
    metadata = {_WRITER: records.writer.encode()} if records.writer else {}
    if records.times is not None:
        metadata |= times_metadata(records.times.end, records.times.steps)
    return pa.RecordBatch.from_pydict(columns, metadata=metadata or None)


def times_metadata(end: Times, steps: TimeSteps | None) -> dict[bytes, bytes]:
    """Return the metadata for records of a key range: the times after them, and the steps of the partition time."""
    metadata = {_TIMES: b"%d %d" % (end.all, end.keyed)}
    if end.valued != end.keyed:
        metadata[_VALUED] = b"%d" % end.valued
    if steps is not None:
        columns = np.array([steps.time, steps.keyed, steps.valued, steps.complete], np.int64)
        metadata[_STEPS] = zlib.compress(np.diff(columns, prepend=0).tobytes(), 1)
    return metadata


def encode_batch(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    payload: bytes = sink.getvalue().to_pybytes()
    return payload


def decode(payload: bytes) -> Records:
    batch = decode_batch(payload)
    names = batch.schema.names

    def numbers(name: str) -> list[int]:
        listed: list[int] = batch.column(name).to_numpy().tolist()
        return listed

    metadata = batch.schema.metadata or {}
    times = None
    if _TIMES in metadata:
        before = numbers("before")
        keyed_before = numbers("keyed_before") if "keyed_before" in names else before
        valued_before = numbers("valued_before") if "valued_before" in names else keyed_before
        end, keyed_end = map(int, metadata[_TIMES].split())
        ends = Times(end, keyed_end, int(metadata.get(_VALUED, keyed_end)))
        times = PartitionTimes(
            before, keyed_before, valued_before, ends, _decoded_steps(metadata.get(_STEPS))
        )
    return Records(
        batch.column("key").to_pylist(),
        batch.column("value").to_pylist(),
        numbers("timestamp"),
        numbers("offset") if "offset" in names else [],
        headers_of(batch.column("headers")) if "headers" in names else None,
        numbers("partition") if "partition" in names else None,
        metadata.get(_WRITER, b"").decode(),
        times,
        numbers("weight") if "weight" in names else None,
    )


def _decoded_steps(data: bytes | None) -> TimeSteps | None:
    if data is None:
        return None
    columns = np.frombuffer(zlib.decompress(data), np.int64).reshape(4, -1).cumsum(axis=1)
    time, keyed, valued, complete = columns.tolist()
    return TimeSteps(time, keyed, valued, [*map(bool, complete)])


def decode_batch(payload: Any) -> pa.RecordBatch:
    with pa.ipc.open_stream(payload) as reader:
        return reader.read_next_batch()


def headers_of(column: pa.Array) -> list[Any]:
    return [
        tuple((header["key"], header["value"]) for header in headers or ()) for headers in column.to_pylist()
    ]


def times_and_headers(batch: pa.RecordBatch) -> tuple[pa.Array, pa.Array]:
    """Return the timestamps and the headers of records from :func:`to_arrow`, as columns of rows in Spark."""
    times = batch.column("timestamp").cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))
    has_headers = "headers" in batch.schema.names
    return times, batch.column("headers") if has_headers else pa.nulls(batch.num_rows, HEADERS_ARROW)


def chunk_row(
    group: int,
    kind: int,
    task: object,
    payload: bytes,
    *,
    batch: str,
    clock: tuple[int, int],
    origin: tuple[str, int, str, int, int] = ("", 0, "", 0, 0),
) -> tuple[Any, ...]:
    """Return an input row of the task host, in the order of :data:`CHUNK_ROWS`.

    Args:
        origin: Topic, partition, lane, start and end of the records.
    """
    return (group, kind, str(task), *origin, batch, *clock, payload)


def arrow_rows(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = zip(*rows)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, CHUNK_ARROW)], schema=CHUNK_ARROW
    )


# Partitions and key ranges.


def murmur2(keys: pa.Array) -> Any:
    """Hash a column of the type binary or large_binary.

    Returns:
        A numpy array of unsigned 32-bit hashes.
    """
    _, offset_buffer, data_buffer = keys.buffers()
    width = np.int64 if pa.types.is_large_binary(keys.type) else np.int32
    offsets = np.frombuffer(offset_buffer, width)[keys.offset : keys.offset + len(keys) + 1].astype(np.int64)
    data = np.zeros((len(data_buffer) if data_buffer else 0) + 4, dtype=np.uint8)
    if data_buffer:
        data[:-4] = np.frombuffer(data_buffer, dtype=np.uint8)
    starts, lengths = offsets[:-1], np.diff(offsets)
    with np.errstate(over="ignore"):
        return _finished(*_body(data, starts, lengths))


def _word(data: Any, start: Any) -> Any:
    parts = [data[start + i].astype(np.uint32) << np.uint32(8 * i) for i in range(4)]
    return parts[0] | parts[1] | parts[2] | parts[3]


def _body(data: Any, starts: Any, lengths: Any) -> tuple[Any, Any, Any, Any]:
    h = _SEED ^ lengths.astype(np.uint32)
    words = lengths >> 2
    for i in range(int(words.max(initial=0))):
        rows = np.flatnonzero(words > i)
        k = _word(data, starts[rows] + 4 * i) * _M
        k = (k ^ (k >> np.uint32(24))) * _M
        h[rows] = (h[rows] * _M) ^ k
    return data, starts, lengths, h


def _finished(data: Any, starts: Any, lengths: Any, h: Any) -> Any:
    rest = lengths & 3
    rows = np.flatnonzero(rest)
    if len(rows):
        tail = _word(data, starts[rows] + (lengths[rows] & ~3))
        tail &= (np.uint32(1) << (8 * rest[rows]).astype(np.uint32)) - np.uint32(1)
        h[rows] = (h[rows] ^ tail) * _M
    h = (h ^ (h >> np.uint32(13))) * _M
    return h ^ (h >> np.uint32(15))


def ranges_of(keys: pa.Array, ranges: int) -> Any:
    """Return the numbers of the key ranges of a binary column, as :func:`millstream.core.model.partitioning.range_of` does."""
    return ((murmur2(keys).astype(np.uint64) * np.uint64(ranges)) >> np.uint64(HASH_BITS)).astype(np.int64)


def by_number(rows: _Rows, numbers: Any, count: int) -> list[_Rows]:
    """Divide rows by a number per row. The order of the rows with the same number is kept.

    Args:
        numbers: A numpy array of whole numbers below ``count``.

    Returns:
        The rows of each number from 0, possibly none.
    """
    small = numbers.astype(np.uint16) if count <= 1 << 16 else numbers  # numpy sorts them ten times as fast
    taken = rows.take(pa.array(np.argsort(small, kind="stable")))
    counts = np.bincount(numbers, minlength=count).tolist()
    return [taken.slice(end - size, size) for end, size in zip(accumulate(counts), counts)]


def split_by_partition(batch: pa.RecordBatch, partitions: int) -> list[tuple[int, pa.RecordBatch]]:
    """Split a batch by partition. The order within a partition is kept.

    Args:
        batch: Has a binary column ``key``, whose hash selects the partition. Null keys hash like the empty key. If a column
            ``partition`` exists, its values other than -1 override the hash, and the column is removed.

    Returns:
        Partition numbers and their records. Partitions without records are omitted.
    """
    numbers = (murmur2(batch.column("key")) & np.uint32(0x7FFFFFFF)) % np.uint32(partitions)
    if "partition" in batch.schema.names:
        chosen = batch.column("partition").to_numpy()
        numbers = np.where(chosen < 0, numbers, chosen)
        batch = batch.drop_columns(["partition"])
    return [(number, part) for number, part in enumerate(by_number(batch, numbers, partitions)) if len(part)]


def split_by_range(batch: pa.RecordBatch, ranges: int, *, with_steps: bool = False) -> list[pa.RecordBatch]:
    """Split the records of one partition by key range, like ``millstream.core.engine.records.dividing``.

    Args:
        batch: Has the columns ``key``, ``value`` and ``timestamp``, in offset order.

    Returns:
        The records of each range, possibly none. The columns ``before``, ``keyed_before`` (only if a key is null) and
        ``valued_before`` (only if a record with a key has a null value) contain the partition times before each record. The metadata
        contains the partition times after all records, and the steps.
    """
    keys, timestamps = batch.column("key"), batch.column("timestamp").to_numpy()
    numbers = ranges_of(keys, ranges)
    running = keyed = valued = _running(timestamps)
    batch = batch.append_column("before", pa.array(running[:-1]))
    keyed_rows = keys.is_valid().to_numpy(zero_copy_only=False)
    valued_rows = keyed_rows & batch.column("value").is_valid().to_numpy(zero_copy_only=False)
    if keys.null_count:
        keyed = valued = _running(np.where(keyed_rows, timestamps, -1))
        batch = batch.append_column("keyed_before", pa.array(keyed[:-1]))
    if not np.array_equal(keyed_rows, valued_rows):
        valued = _running(np.where(valued_rows, timestamps, -1))
        batch = batch.append_column("valued_before", pa.array(valued[:-1]))
    steps = _steps_after(running[1:], keyed[1:], valued[1:], valued_rows) if with_steps else None
    end = Times(int(running[-1]), int(keyed[-1]), int(valued[-1]))
    metadata = {**(batch.schema.metadata or {}), **times_metadata(end, steps)}
    return by_number(batch.replace_schema_metadata(metadata), numbers, ranges)


def _running(timestamps: Any) -> Any:
    """Return the largest timestamp before each record, followed by the largest of all."""
    return np.maximum.accumulate(np.concatenate([np.array([-1], np.int64), timestamps]))


def _steps_after(time: Any, keyed: Any, valued: Any, complete: Any) -> TimeSteps:
    """Return the steps of a partition's time, from the times after each record."""
    last = np.flatnonzero(np.append(time[1:] != time[:-1], True))
    first = np.append(0, last[:-1] + 1)
    return TimeSteps(
        time[last].tolist(),
        keyed[last].tolist(),
        valued[last].tolist(),
        np.logical_or.reduceat(complete, first).tolist(),
    )
