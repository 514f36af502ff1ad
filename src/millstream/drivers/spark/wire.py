"""The wire: the formats that cross between Python processes through Spark.

Records cross in *chunk rows*. One row contains thousands of records as Arrow IPC bytes, because one row per record would cost
more than all other work together. Errors cross as text that the other side can decode.
"""

from __future__ import annotations

import base64
import gc
import json
import re
import traceback
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

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

from millstream.core.model import errors
from millstream.core.model.errors import MillstreamError, SparkRuntimeError
from millstream.core.model.record import PartitionTimes, Records, Times, TimeSteps
from millstream.core.ports import BatchId
from millstream.drivers.spark.executor_id import where_it_runs

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
        times = PartitionTimes(before, keyed_before, valued_before, ends, _steps(metadata.get(_STEPS)))
    return Records(
        batch.column("key").to_pylist(),
        batch.column("value").to_pylist(),
        numbers("timestamp"),
        numbers("offset") if "offset" in names else [],
        headers_of(batch.column("headers")) if "headers" in names else None,
        numbers("partition") if "partition" in names else None,
        metadata.get(_WRITER, b"").decode(),
        times,
    )


def _steps(data: bytes | None) -> TimeSteps | None:
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


def arrow_rows(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = zip(*rows)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, CHUNK_ARROW)], schema=CHUNK_ARROW
    )


# Processes.


@contextmanager
def paused_gc() -> Iterator[None]:
    """Disable the cyclic garbage collector during a micro-batch.

    A micro-batch creates a few objects per record and no relevant cycles. The collector would scan them anyway, and take
    a third of the engine's time. Spark's worker collects between tasks.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


# Errors.

_MAX_TRACEBACK: Final = 20_000
_ERROR = re.compile(r"millstream-error:([A-Za-z0-9+/=]+):")


class WorkerTraceback(Exception):  # noqa: N818 - the text of a traceback, not an error
    """The traceback of an error in another process, for display as its cause."""


@contextmanager
def crossing() -> Iterator[None]:
    """Encode an error of this package, so that :func:`find_error` finds it after the JVM, which keeps only text."""
    try:
        yield
    except MillstreamError as error:
        message = f"{error.message}{where_it_runs()}"
        described = json.dumps([type(error).__name__, message, _traceback_of(error)]).encode()
        encoded = base64.b64encode(zlib.compress(described)).decode()
        raise SparkRuntimeError(f"millstream-error:{encoded}: {message}") from error


def find_error(text: str) -> MillstreamError | None:
    """Return the error that :func:`crossing` encoded in an exception's text, or None if there is none. Its cause is its traceback."""
    match = _ERROR.search(text)
    if match is None:
        return None
    name, message, trace = json.loads(zlib.decompress(base64.b64decode(match.group(1))))
    error: MillstreamError = getattr(errors, name, MillstreamError)(message)
    error.__cause__ = WorkerTraceback(f'\n"""\n{trace}"""')
    return error


def _traceback_of(error: BaseException) -> str:
    """Return the traceback of an error and its causes; if it is long, without its middle."""
    text = "".join(traceback.format_exception(error))
    half = _MAX_TRACEBACK // 2
    return text if len(text) <= _MAX_TRACEBACK else f"{text[:half]}\n...\n{text[-half:]}"
