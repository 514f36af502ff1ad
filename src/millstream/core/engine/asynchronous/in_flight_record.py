"""In-flight record: an unfinished record of an asynchronous operator; and the store of these records.

On Spark, all in-flight records are read at the beginning of each micro-batch, and most finish within one or two micro-batches. They are
therefore pickled in *blocks* of a few hundred. The numbers of a block's finished records are written next to the block. When half of a
block has finished, the other half moves to a new block.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Hashable, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from operator import attrgetter
from typing import Any, Final, TypeAlias

from millstream.core.asynchronous.call import Failed, Settled
from millstream.core.engine.asynchronous.requests import Request
from millstream.core.engine.failures import RawRecord
from millstream.core.model.errors import ProcessingError, SerdeError
from millstream.core.model.ids import TopicPartition
from millstream.core.model.record import Headers, RecordMetadata
from millstream.core.model.serdes import Serde

_BLOCK: Final = 512
_BLOCK_BYTES: Final = 1 << 17
"""Approximate limit of the size of a block's values, because a block is one record of the changelog topic."""
_USUAL_BYTES: Final = 256
_UNCHANGEABLE: Final = frozenset((str, bytes, int, float, bool, type(None)))

Origin: TypeAlias = tuple[str, int, int]
"""Topic, partition and offset."""

_partition = lru_cache(1024)(TopicPartition)


Label: TypeAlias = tuple[Origin | None, int, str | None]
"""``origin``, ``came_ms`` and ``why`` of a record, which the backlog stores beside the record's row."""


def own(value: Any) -> Any:
    """Return a copy of an argument of a call: a function elsewhere may change the object before the call begins, at the end of the step."""
    if type(value) in _UNCHANGEABLE:
        return value
    try:
        return deepcopy(value)
    except Exception:  # then it cannot be sent to the async worker either, which is reported there
        return value


@dataclass(slots=True, init=False, eq=False, repr=False)
class InFlightRecord:
    """A record that has arrived and has not retired. Owned by its operator."""

    number: int
    origin: RecordMetadata | None
    partition: TopicPartition | None
    key: Any
    key_id: Hashable
    value: Any
    timestamp: int
    headers: Headers
    request: Request | None
    came_ms: int
    attempt: int
    begun_ms: int | None
    due_ms: int | None
    why: str | None
    """Reason for the wait: ``retry``, ``delay``, or ``until`` for a time that the function chose; None if the record does not wait."""
    turn: int
    """How often the record has been sent to an async worker."""
    epoch: str | None
    """The attempt at a micro-batch that sent the record last; None if the record is not in flight."""
    settled: Settled | None
    serdes: tuple[Serde[Any], Serde[Any]]

    def __init__(
        self,
        number: int,
        origin: RecordMetadata | None,
        key: Any,
        value: Any,
        timestamp: int,
        *,
        headers: Headers,
        request: Request | None,
        came_ms: int,
    ) -> None:
        self.number = number
        self.origin = origin
        self.partition = None if origin is None else _partition(origin.topic, origin.partition)
        self.key = key
        self.value = value
        self.timestamp = timestamp
        self.headers = headers
        self.request = request
        self.came_ms = came_ms
        self.attempt = 1
        self.turn = 0
        self.begun_ms = self.due_ms = self.why = self.epoch = self.settled = None

    @property
    def raw(self) -> RawRecord:
        key, value = in_bytes(self.serdes[0], self.key), in_bytes(self.serdes[1], self.value)
        offset = -1 if self.origin is None else self.origin.offset
        return self.partition, offset, key, value, self.timestamp, self.headers

    def row(self) -> tuple[Any, ...]:
        return (
            self.origin and tuple(self.origin),
            self.key,
            self.value,
            self.timestamp,
            self.headers,
            self.request and self.request.row(),
            self.came_ms,
            self.attempt,
            self.begun_ms,
            None if self.due_ms is None else (self.due_ms, self.why),
            self.turn,
            self.epoch,
            _without_error(self.settled),
        )

    @property
    def label(self) -> Label:
        origin = self.origin
        named = None if origin is None else (origin.topic, origin.partition, origin.offset)
        return named, self.came_ms, self.why

    @classmethod
    def from_row(cls, number: int, row: tuple[Any, ...]) -> InFlightRecord:
        record = cls.__new__(cls)
        record.number = number
        (
            origin,
            record.key,
            record.value,
            record.timestamp,
            record.headers,
            request,
            record.came_ms,
            record.attempt,
            record.begun_ms,
            due,
            record.turn,
            record.epoch,
            record.settled,
        ) = row
        record.due_ms, record.why = due or (None, None)
        record.origin = origin and RecordMetadata(*origin)
        record.partition = origin and _partition(origin[0], origin[1])
        record.request = request and Request.from_row(request)
        return record


class InFlightStore:
    """The store of an operator's in-flight records. Owned by the operator.

    Block ``n`` is at key ``2 * n``; the numbers of its finished records are at key ``2 * n + 1``.

    Args:
        store: A store with int64 keys.
    """

    def __init__(self, store: Any) -> None:
        self._store = store
        self._block_of: dict[int, int] = {}
        self._blocks: dict[int, tuple[int, ...]] = {}
        self._gone: dict[int, set[int]] = {}
        self._beside: set[int] = set()
        """The blocks with stored numbers of finished records."""
        self._next = 0

    def read(self) -> list[InFlightRecord]:
        """Return all records, in the order of their numbers."""
        entries = dict(self._store.all())
        self._gone = {key // 2: set(numbers) for key, numbers in entries.items() if key % 2}
        self._beside = set(self._gone)
        records: list[InFlightRecord] = []
        for key, rows in entries.items():
            if key % 2:
                continue
            block, gone = key // 2, self._gone.get(key // 2, ())
            self._blocks[block] = tuple(number for number, _ in rows)
            left = [InFlightRecord.from_row(number, row) for number, row in rows if number not in gone]
            self._block_of.update((record.number, block) for record in left)
            records += left
        self._next = 1 + max(self._blocks, default=-1)
        if any(record.number > following.number for record, following in pairwise(records)):
            records.sort(key=attrgetter("number"))
        return records

    def write(self, changed: Iterable[int], unfinished: Mapping[int, InFlightRecord]) -> None:
        """Write changed records, and delete finished ones."""
        fresh: list[InFlightRecord] = []
        touched: set[int] = set()
        for number in changed:
            block = self._block_of.pop(number, None)
            if block is not None:
                self._gone.setdefault(block, set()).add(number)
                touched.add(block)
            record = unfinished.get(number)
            if record is not None:
                fresh.append(record)
        for block in touched:
            numbers, gone = self._blocks[block], self._gone[block]
            if len(gone) * 2 < len(numbers):
                self._store.put(2 * block + 1, tuple(gone))
                self._beside.add(block)
            else:
                fresh += (unfinished[number] for number in numbers if number not in gone)
                self._delete(block)
        for records in _in_blocks(fresh):
            self._put(records)

    def _put(self, records: list[InFlightRecord]) -> None:
        block, self._next = self._next, self._next + 1
        try:
            self._store.put(2 * block, tuple((record.number, record.row()) for record in records))
        except SerdeError as error:
            raise _not_to_be_kept(records, error) from error
        self._blocks[block] = tuple(record.number for record in records)
        self._block_of.update(dict.fromkeys(self._blocks[block], block))

    def _delete(self, block: int) -> None:
        self._store.put(2 * block, None)
        if block in self._beside:
            self._store.put(2 * block + 1, None)
            self._beside.remove(block)
        del self._blocks[block], self._gone[block]


def in_bytes(serde: Serde[Any], part: Any) -> bytes | None:
    """Return a key or value as bytes for error texts and dead letters: serialised by its serde, else as JSON, else by ``repr``."""
    if part is None or isinstance(part, bytes):
        return part
    for serialize in (serde.serialize, _json):
        try:
            return serialize(part)
        except Exception:
            continue
    return repr(part).encode()


def _json(part: Any) -> bytes:
    return json.dumps(part, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def _in_blocks(records: list[InFlightRecord]) -> Iterator[list[InFlightRecord]]:
    block: list[InFlightRecord] = []
    size = 0
    for record in records:
        block.append(record)
        size += len(record.value) if isinstance(record.value, (str, bytes)) else _USUAL_BYTES
        if isinstance(record.settled, Failed):
            size += len(record.settled.trace)
        if len(block) == _BLOCK or size >= _BLOCK_BYTES:
            yield block
            block, size = [], 0
    if block:
        yield block


def _not_to_be_kept(records: Iterable[InFlightRecord], error: SerdeError) -> Exception:
    for record in records:
        try:
            pickle.dumps(record.row())
        except Exception as cause:
            partition, offset, *_ = record.raw
            return ProcessingError(
                f"the record of {partition} at offset {offset} is in flight and cannot be stored: {cause}. Keys, "
                "values and the arguments of issued calls must be picklable"
            )
    return error


def _without_error(settled: Settled | None) -> Settled | None:
    """Return the result without its exception, which may not be picklable. Its class and its traceback stay as texts."""
    if not isinstance(settled, Failed) or settled.error is None:
        return settled
    return replace(settled, error=None)
