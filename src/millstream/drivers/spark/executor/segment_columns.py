"""Changes of a store as columns, for restores and divisions: a table with the keys and the values, null for a deletion.

A restore reads, divides, merges and sorts millions of changes, and a division among key ranges reads, divides and writes them. Arrow does
this for a whole column at once, over the bytes of the segments, at a quarter of the time of a list of byte strings. A restore creates the
byte strings last, in key order and a few thousand at a time, so that they are still in the processor's cache when the local copy takes
them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.core.ports import StoreChange
from millstream.core.state.segments import segment

_TAKEN_AT_ONCE: Final = 4096
SCHEMA: Final = pa.schema([pa.field("key", pa.large_binary()), pa.field("value", pa.large_binary())])


def columns_of(data: bytes, where: str) -> pa.Table:
    """Verify a segment and return its changes, in key order. ``where`` names it in errors.

    The table refers to ``data``, which stays in memory as long as the table or a slice of it.
    """
    layout = segment.layout(data, where)
    values_start = layout.start + sum(layout.key_sizes)
    buffer = pa.py_buffer(data)
    keys = _column(layout.key_sizes, buffer.slice(layout.start))
    return pa.Table.from_arrays(
        [keys, _column(layout.value_sizes, buffer.slice(values_start))], schema=SCHEMA
    )


def _column(sizes: array[int], data: pa.Buffer) -> pa.Array:
    lengths = np.frombuffer(sizes, np.int32)
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(np.maximum(lengths, 0), out=offsets[1:])
    present = lengths >= 0
    valid = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))
    return pa.Array.from_buffers(pa.large_binary(), len(lengths), [valid, pa.py_buffer(offsets), data])


def segment_of(changes: pa.Table) -> bytes:
    """Encode changes in key order as a segment."""
    keys, values = (changes[name].combine_chunks() for name in SCHEMA.names)
    return segment.assembled(_sizes(keys), _sizes(values), map(_bytes_of, (keys, values)))


def _sizes(column: pa.Array) -> array[int]:
    lengths = pc.fill_null(pc.binary_length(column), -1)
    return array("i", lengths.cast(pa.int32()).to_numpy().tobytes())


def _bytes_of(column: pa.Array) -> memoryview:
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int64)[[column.offset, column.offset + len(column)]]
    return memoryview(data)[slice(*ends)] if data else memoryview(b"")


def divided_at(changes: pa.Table, bounds: Sequence[bytes]) -> list[pa.Table]:
    """Divide changes in key order into key ranges. The first range ends at the first bound."""
    if not bounds:
        return [changes]
    keys = changes["key"].to_pylist()
    starts = [0, *(bisect_left(keys, bound) for bound in bounds), len(keys)]
    return [changes.slice(start, end - start) for start, end in pairwise(starts)]


def bounds_of(sample: pa.Table, parts: int) -> list[bytes]:
    """Return the keys that divide a store into parts of similar size."""
    return [sample["key"][len(sample) * n // parts].as_py() for n in range(1, parts)]


def newest(runs: Sequence[pa.Table]) -> Iterator[list[StoreChange]]:
    """Yield the newest change of each key in key order, a few thousand at a time.

    Args:
        runs: Changes, oldest first.
    """
    keys, values = (_concatenated(run[name] for run in runs) for name in SCHEMA.names)
    del runs  # only the joined columns are still needed
    order = pc.sort_indices(keys)  # stable
    keys = keys.take(order)
    repeated = pc.equal(keys[:-1], keys[1:])
    if repeated.true_count:
        last = pa.concat_arrays([pc.invert(repeated), pa.array([True])])
        order, keys = order.filter(last), keys.filter(last)
    values = values.take(order)
    for start in range(0, len(keys), _TAKEN_AT_ONCE):
        some = slice(start, start + _TAKEN_AT_ONCE)
        yield list(zip(keys[some].to_pylist(), values[some].to_pylist()))


def _concatenated(columns: Iterable[pa.ChunkedArray]) -> pa.Array:
    chunks = [chunk for column in columns for chunk in column.chunks]
    return pa.concat_arrays(chunks) if chunks else pa.array([], pa.large_binary())
