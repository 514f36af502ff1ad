"""Segments: encoded changes of a store, for the log and for parked changes.

A segment contains changes of one store and key group, in key order, at most one per key. Format, little endian:

    crc32 of the rest (4) | format (1) | number of changes n (4) | n key lengths (4 each) | n value lengths (4 each, -1
    for a deletion) | keys | values

Segments are compressed when they are written to Spark's state, not here.

In memory, the changes are columns: a table with the keys and the values, null for a deletion. A restore reads, divides, merges and sorts
millions of changes, and a division among key ranges reads, divides and writes them. Arrow does this for a whole column at once, over the
bytes of the segments, at a quarter of the time of a list of byte strings. A restore creates the byte strings last, in key order and a few
thousand at a time, so that they are still in the processor's cache when the local copy takes them.
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.core.model.errors import StoreError
from millstream.core.ports import StoreChange
from millstream.core.state.segments.compaction import are_few
from millstream.core.state.segments.key_groups import KEY_GROUPS, WHOLE_STORE, key_group, lower_group

_FORMAT: Final = 1
_HEAD: Final = struct.Struct("<IBI")
_TAKEN_AT_ONCE: Final = 4096
SCHEMA: Final = pa.schema([pa.field("key", pa.large_binary()), pa.field("value", pa.large_binary())])


def encode(changes: Sequence[StoreChange]) -> bytes:
    """Encode changes, at most one per key, as a segment."""
    keys, values = _columns(changes)
    order = pc.sort_indices(keys)
    return _segment(_Pieces(keys.take(order)), _Pieces(values.take(order)), 0, len(changes))


def decode(data: bytes, where: str) -> list[StoreChange]:
    """Verify a segment and return its changes, in key order. ``where`` names it in errors."""
    return _listed(columns_of(data, where))


def columns_of(data: bytes, where: str) -> pa.Table:
    """Verify a segment and return its changes, in key order. ``where`` names it in errors.

    The table refers to ``data``, which stays in memory as long as the table or a slice of it.
    """
    if len(data) < _HEAD.size or zlib.crc32(memoryview(data)[4:]) != _HEAD.unpack_from(data)[0]:
        raise StoreError(
            f"the log is damaged: {where} of {len(data)} bytes does not match its checksum. Restore the checkpoint from a "
            "backup, or start over with another checkpoint_location"
        )
    _, version, count = _HEAD.unpack_from(data)
    if version != _FORMAT:
        raise StoreError(
            f"the log was written by a newer Millstream: {where} has format {version}, and this version reads format "
            f"{_FORMAT}; upgrade this installation"
        )
    start = _HEAD.size + 8 * count
    lengths = np.frombuffer(data[_HEAD.size : start], "<i4")
    buffer = pa.py_buffer(data)
    keys = _column(lengths[:count], buffer.slice(start))
    values_start = start + int(lengths[:count].sum(dtype=np.int64))
    return pa.Table.from_arrays([keys, _column(lengths[count:], buffer.slice(values_start))], schema=SCHEMA)


def _column(lengths: np.ndarray, data: pa.Buffer) -> pa.Array:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(np.maximum(lengths, 0), out=offsets[1:])
    present = lengths >= 0
    valid = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))
    return pa.Array.from_buffers(pa.large_binary(), len(lengths), [valid, pa.py_buffer(offsets), data])


def segment_of(changes: pa.Table) -> bytes:
    """Encode changes in key order as a segment."""
    keys, values = (_Pieces(changes[name].combine_chunks()) for name in SCHEMA.names)
    return _segment(keys, values, 0, len(changes))


def segments_of(changes: Sequence[StoreChange]) -> Iterator[tuple[int, int, bytes]]:
    """Encode changes, at most one per key, as one segment if they are few, otherwise as one per key group below the whole store.

    Yields:
        The number of the key group, the number of changes, and the segment.
    """
    keys, values = _columns(changes)
    order = pc.sort_indices(keys).to_numpy()
    ends = {WHOLE_STORE: len(changes)}
    if not are_few(keys.nbytes + values.nbytes, len(changes)):
        groups = np.fromiter((key_group(key) for key, _ in changes), np.uint8, len(changes))
        order = order[np.argsort(groups[order], kind="stable")]
        ends = dict(enumerate(np.cumsum(np.bincount(groups, minlength=KEY_GROUPS)).tolist()))
    keys, values = _Pieces(keys.take(order)), _Pieces(values.take(order))
    for number, (start, end) in zip(ends, pairwise([0, *ends.values()])):
        if start < end:
            yield number, end - start, _segment(keys, values, start, end)


class _Pieces:
    """The keys or values of a column: their lengths, -1 for a deletion, and their bytes."""

    def __init__(self, column: pa.Array) -> None:
        _, offsets, data = column.buffers()
        self._ends = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
        self._data = memoryview(data or b"")
        self._lengths = np.diff(self._ends).astype("<i4")
        if column.null_count:
            self._lengths[column.is_null().to_numpy(zero_copy_only=False)] = -1

    def lengths(self, start: int, end: int) -> bytes:
        return self._lengths[start:end].tobytes()

    def between(self, start: int, end: int) -> memoryview:
        return self._data[self._ends[start] : self._ends[end]]


def _columns(changes: Sequence[StoreChange]) -> Iterator[pa.Array]:
    return (pa.array([change[side] for change in changes], pa.large_binary()) for side in (0, 1))


def _segment(keys: _Pieces, values: _Pieces, start: int, end: int) -> bytes:
    parts: list[bytes | memoryview] = [
        _HEAD.pack(0, _FORMAT, end - start)[4:],
        *(pieces.lengths(start, end) for pieces in (keys, values)),
        *(pieces.between(start, end) for pieces in (keys, values)),
    ]
    rest = b"".join(parts)
    return struct.pack("<I", zlib.crc32(rest)) + rest


def _listed(changes: pa.Table) -> list[StoreChange]:
    return list(zip(changes["key"].to_pylist(), changes["value"].to_pylist()))


class SortedChanges:
    """Changes of one byte store in key order, at most one per key. Values become Python objects when they are asked for."""

    def __init__(self, changes: pa.Table) -> None:
        self._changes = changes
        self._keys: list[bytes] = changes["key"].to_pylist()
        self._values = changes["value"].combine_chunks()

    def find(self, key: bytes) -> StoreChange | None:
        """Return the change of a key, or None if it has not changed."""
        position = bisect_left(self._keys, key)
        if position < len(self._keys) and self._keys[position] == key:
            return key, self._values[position].as_py()
        return None

    def scan(self, low: bytes | None, high: bytes | None, *, reverse: bool = False) -> Iterator[StoreChange]:
        """Iterate in key order over ``low <= key < high``; None means unbounded."""
        start = 0 if low is None else bisect_left(self._keys, low)
        end = len(self._keys) if high is None else bisect_left(self._keys, high)
        pieces = range(start, end, _TAKEN_AT_ONCE)
        for first in reversed(pieces) if reverse else pieces:
            piece = _listed(self._changes.slice(first, min(_TAKEN_AT_ONCE, end - first)))
            yield from reversed(piece) if reverse else piece


def divided_at(changes: pa.Table, bounds: Sequence[bytes]) -> list[pa.Table]:
    """Divide changes in key order into key ranges. The first range ends at the first bound."""
    if not bounds:
        return [changes]
    keys = changes["key"].to_pylist()
    starts = [0, *(bisect_left(keys, bound) for bound in bounds), len(keys)]
    return [changes.slice(start, end - start) for start, end in pairwise(starts)]


def by_lower_group(number: int, changes: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """Divide changes of a key group among the key groups below it."""
    groups = np.array([lower_group(number, key) for key in changes["key"].to_pylist()], np.int64)
    for lower in np.unique(groups).tolist():
        yield lower, changes.filter(pa.array(groups == lower))


def bounds_of(sample: pa.Table, parts: int) -> list[bytes]:
    """Return the keys that divide a store into parts of similar size."""
    return [sample["key"][len(sample) * n // parts].as_py() for n in range(1, parts)]


def newest(runs: list[pa.Table]) -> Iterator[list[StoreChange]]:
    """Yield the newest change of each key in key order, a few thousand at a time.

    Args:
        runs: Changes, oldest first. The list is emptied, as by :func:`merged`.
    """
    changes = merged(runs)
    for start in range(0, len(changes), _TAKEN_AT_ONCE):
        yield _listed(changes.slice(start, _TAKEN_AT_ONCE))


def merged(runs: list[pa.Table]) -> pa.Table:
    """Return the newest change of each key in key order.

    Args:
        runs: Changes, oldest first. The list is emptied, so that they are not in memory while the joined columns are sorted.
    """
    keys, values = (_concatenated(run[name] for run in runs) for name in SCHEMA.names)
    runs.clear()
    order = pc.sort_indices(keys)  # stable
    keys = keys.take(order)
    repeated = pc.equal(keys[:-1], keys[1:])
    if repeated.true_count:
        last = pa.concat_arrays([pc.invert(repeated), pa.array([True])])
        order, keys = order.filter(last), keys.filter(last)
    return pa.Table.from_arrays([keys, values.take(order)], schema=SCHEMA)


def _concatenated(columns: Iterable[pa.ChunkedArray]) -> pa.Array:
    chunks = [chunk for column in columns for chunk in column.chunks]
    return pa.concat_arrays(chunks) if chunks else pa.array([], pa.large_binary())
