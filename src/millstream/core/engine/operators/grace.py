"""Grace: a buffer in which records wait before a join with a versioned table, so that rows of the table can arrive.

The *time of the buffer* is the largest timestamp of its records so far. A record waits until the time of the buffer is at least its own
timestamp plus the grace period. Records leave in the order of timestamps, then keys, then arrival. Only records advance the time, so the
last records wait until newer ones arrive. A record that is too late to wait is forwarded at once, as is a record without a key or a
value, for which the join needs no lookup.

The buffer is a key-value store of the task, so waiting records survive a restart:

    key:   time (8) | closed key | arrival number (8)
    value: partition (4) | offset (8) | topic | value | headers ...

In the value, topic, value and the parts of headers are prefixed with their lengths. A record that leaves the buffer becomes the current
record, for the metadata, errors and dead letters downstream.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from millstream.core.engine.compile import Call, Compiled, DueResults, compile_node
from millstream.core.engine.failures import RawRecord
from millstream.core.engine.punctuate import NEVER
from millstream.core.engine.runtime import Runtime
from millstream.core.model.ids import TopicPartition
from millstream.core.model.record import Headers, RecordMetadata, Times
from millstream.core.model.serdes import never_null
from millstream.core.state.keys import entry_prefix, pack_time, split, time_at
from millstream.core.topology import join_nodes as j

_ORIGIN: Final = struct.Struct(">iq")
_LENGTH: Final = struct.Struct(">i")
_NOWHERE: Final = RecordMetadata("", -1, -1)
_NUMBER: Final = 8


@compile_node.register
def _compile_grace_buffer(node: j.GraceBuffer, compiled: Compiled) -> Call:
    runtime, name, child = compiled.runtime, node.name, compiled.children(node)
    buffer, grace, memory = _GraceBuffer(node, runtime), node.grace, runtime.memory(node.remembered_as)
    memory.setdefault("time", -1)

    def wait(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        time = memory["time"]
        if key is None or value is None or timestamp < time - grace:
            return child(key, value, timestamp, headers)
        try:
            buffer.put(key, value, timestamp, headers)
        except Exception as error:
            return runtime.on_error("process", name, error)
        if timestamp > time:
            memory["time"] = timestamp
        forward()
        return None

    def forward() -> None:
        current = runtime.override
        try:
            for key, value, record in buffer.take_until(memory["time"] - grace):
                runtime.override = record
                child(key, value, record.timestamp, record.headers)
        finally:
            runtime.override = current

    def keep_time(times: Times) -> None:
        if times.valued > memory["time"]:
            memory["time"] = times.valued
            forward()

    compiled.keep_time(node, keep_time)
    compiled.emit_when_due(DueResults(node.name, lambda: buffer.earliest + grace - 1, forward))
    return wait


class _BufferedRecord(NamedTuple):
    """A buffered record, as it was when it arrived.

    Attributes:
        origin: Topic, partition and offset; None if a punctuator forwarded the record.
    """

    origin: RecordMetadata | None
    key: bytes
    value: bytes
    timestamp: int
    headers: Headers

    @property
    def raw(self) -> RawRecord:
        partition, offset = None, -1
        if self.origin is not None:
            partition = TopicPartition(self.origin.topic, self.origin.partition)
            offset = self.origin.offset
        return partition, offset, self.key, self.value, self.timestamp, self.headers


class _GraceBuffer:
    """The waiting records. Owned by the task."""

    def __init__(self, node: j.GraceBuffer, runtime: Runtime) -> None:
        self._store = runtime.stores[node.store.name]
        self._memory = runtime.memory(node.remembered_as)
        self._key, self._value = never_null(node.key), never_null(node.value)
        self._origin = runtime.metadata

    def put(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        number = self._memory.get("arrived", 0)
        row_key = pack_time(timestamp) + entry_prefix(self._key.serialize(key)) + pack_time(number)
        self._store.put(row_key, _packed(self._origin() or _NOWHERE, self._value.serialize(value), headers))
        self._memory["arrived"] = number + 1
        self._memory["first"] = min(self._memory.get("first", NEVER), timestamp)

    @property
    def earliest(self) -> int:
        """A lower bound of the timestamps in the buffer; NEVER if it is empty."""
        first: int = self._memory.get("first", NEVER)
        return first

    def take_until(self, until: int) -> Iterator[tuple[Any, Any, _BufferedRecord]]:
        """Remove the records with timestamps up to ``until`` from the buffer, and return them in order."""
        first = self.earliest
        if first > until:
            return
        behind = pack_time(until + 1)
        for row_key, data in list(self._store.range(pack_time(first), behind)):
            self._store.put(row_key, None)
            record = _unpacked(row_key, data)
            yield self._key.deserialize(record.key), self._value.deserialize(record.value), record
        rest = next(iter(self._store.range(behind, None)), None)
        self._memory["first"] = NEVER if rest is None else time_at(rest[0], 0)


def _packed(origin: RecordMetadata, value: bytes, headers: Headers) -> bytes:
    parts: list[bytes | None] = [origin.topic.encode(), value]
    for name, content in headers:
        parts += [name.encode(), content]
    lengths = (_LENGTH.pack(-1 if part is None else len(part)) for part in parts)
    packed = b"".join(length + (part or b"") for length, part in zip(lengths, parts))
    return _ORIGIN.pack(origin.partition, origin.offset) + packed


def _unpacked(row_key: bytes, data: bytes) -> _BufferedRecord:
    key, _ = split(row_key[_NUMBER:], _NUMBER)
    topic, value, *rest = _unpacked_fields(data)
    names = [(name or b"").decode() for name in rest[::2]]
    origin = RecordMetadata((topic or b"").decode(), *_ORIGIN.unpack_from(data))
    headers = tuple(zip(names, rest[1::2]))
    return _BufferedRecord(
        None if origin == _NOWHERE else origin, key, value or b"", time_at(row_key, 0), headers
    )


def _unpacked_fields(data: bytes) -> Iterator[bytes | None]:
    start = _ORIGIN.size
    while start < len(data):
        (length,) = _LENGTH.unpack_from(data, start)
        start += _LENGTH.size
        yield None if length < 0 else data[start : start + length]
        start += max(length, 0)
