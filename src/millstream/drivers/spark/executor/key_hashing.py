"""Murmur2 over a whole Arrow column, to find the partition of each key of a chunk.

Computes the same hash as ``millstream.core.model.partitioning.murmur2``, without a Python call per key. Tests compare the two.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from millstream.core.model.partitioning import HASH_BITS
from millstream.core.model.record import Times, TimeSteps
from millstream.drivers.spark import wire

_SEED = np.uint32(0x9747B28C)
_M = np.uint32(0x5BD1E995)


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


_Rows = TypeVar("_Rows", pa.RecordBatch, pa.Table)


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
    steps = _steps(running[1:], keyed[1:], valued[1:], valued_rows) if with_steps else None
    end = Times(int(running[-1]), int(keyed[-1]), int(valued[-1]))
    metadata = {**(batch.schema.metadata or {}), **wire.times_metadata(end, steps)}
    return by_number(batch.replace_schema_metadata(metadata), numbers, ranges)


def _running(timestamps: Any) -> Any:
    """Return the largest timestamp before each record, followed by the largest of all."""
    return np.maximum.accumulate(np.concatenate([np.array([-1], np.int64), timestamps]))


def _steps(time: Any, keyed: Any, valued: Any, complete: Any) -> TimeSteps:
    """Return the steps of a partition's time, from the times after each record."""
    last = np.flatnonzero(np.append(time[1:] != time[:-1], True))
    first = np.append(0, last[:-1] + 1)
    return TimeSteps(
        time[last].tolist(),
        keyed[last].tolist(),
        valued[last].tolist(),
        np.logical_or.reduceat(complete, first).tolist(),
    )
