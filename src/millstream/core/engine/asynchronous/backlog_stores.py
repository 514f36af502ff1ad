"""Backlog stores: in-flight records that a task loads only shortly before their turn.

On Spark, a task reads its in-flight records at the start of each micro-batch. Records that cannot be called yet would slow down every
micro-batch, so they are in two other stores:

* The **delay queue**, ordered by due time, holds records that wait for a time and hold up no other record.
* The **spill queue**, ordered by group and number, holds records behind many others of their *group*: a key or, at order ``partition``, a
  partition. A task loads the first few records of a group, and more when these have retired.

A record keeps its number and its row. For each queue, the operator's memory has a *summary*: the offsets as runs, for the committable
offset, and counts.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final, TypeAlias

from millstream.core.engine.asynchronous.in_flight_record import InFlightRecord, Label
from millstream.core.engine.asynchronous.stored_counts import AgeHistogram, OffsetRanges
from millstream.core.engine.punctuate import NEVER
from millstream.core.engine.timeline import Timeline, timed_key
from millstream.core.model.ids import TopicPartition
from millstream.core.state.contract import Memory

_LENGTH: Final = struct.Struct(">I")
_NUMBER: Final = struct.Struct(">q")

StoredRecord: TypeAlias = tuple[int, tuple[Any, ...]]
"""Number and row of a record."""


class BacklogStore(ABC):
    """The records of a queue, and their summary. Owned by the backlog.

    Args:
        rows: The store. Its keys end with the number of the record; its entries end with label and row.
        summary: Prefix of the names of the summary's parts in the operator's memory.
        total: The number of records, according to the summary.
    """

    def __init__(self, rows: Any, memory: Memory, summary: str, total: int) -> None:
        self._total = total
        self._rows = rows
        self._memory = memory
        self._summary = summary
        self._offsets = OffsetRanges(memory.get(summary, ()))
        self._ages = AgeHistogram(memory.get(f"{summary}_ages", ()))
        self._changed = summary not in memory  # an edit that renames the operator loses the summary
        if self._changed:
            for row_key, entry in rows.all():
                self._count(row_key, entry, 1)

    def __len__(self) -> int:
        return self._total

    @property
    def oldest(self) -> int | None:
        """Approximate arrival time of the oldest record, ms since the epoch; None if there is none."""
        return self._ages.oldest

    def offsets(self) -> Iterator[tuple[TopicPartition, int, int]]:
        """Return partition, offset and number of records, for each offset of the stored records."""
        return iter(self._offsets)

    def last_number(self) -> int:
        return max((_number(row_key) for row_key, _ in self._rows.all()), default=-1)

    def save(self) -> None:
        if self._changed:
            self._changed = False
            self._memory[self._summary] = self._offsets.runs()
            self._memory[f"{self._summary}_ages"] = self._ages.spans()
            self._memory.update({f"{self._summary}_{part}": count for part, count in self._counts().items()})

    @abstractmethod
    def _counts(self) -> Memory:
        """Return the further counts of the summary, by the suffix of their names."""

    def _count(self, row_key: bytes, entry: Any, change: int) -> Label:
        """Update the summary for an added (1) or removed (-1) record. Return the record's label."""
        label: Label = entry[-2]
        origin, came_ms, _ = label
        self._changed = True
        self._total += change
        if origin is not None:
            self._offsets.count(origin, change)
        self._ages.count(came_ms, change)
        return label


class DelayQueue(BacklogStore):
    """The delay queue of one operator.

    If delayed records block their keys, a second store finds them by key. When another record of the key arrives, the delayed record
    returns to memory, and both are handled as if there were no delay queue.

    Args:
        rows: The store of the rows, by due time and number.
        keys: The store of the row keys, by record key.
    """

    def __init__(self, rows: Any, keys: Any, memory: Memory) -> None:
        self._timeline = Timeline(rows)
        self._keys = keys
        self._with_key: int = memory.get("shelved_with_key", 0)
        self.delayed: int = memory.get("shelved_delayed", 0)
        """How many of the records do not wait for a retry."""
        super().__init__(rows, memory, "shelved", memory.get("shelved_records", 0))

    @property
    def next(self) -> int:
        """When the first record is due, ms since the epoch; ``NEVER`` if there is none."""
        return self._timeline.next if self._total else NEVER

    def put(self, record: InFlightRecord, key: bytes | None) -> None:
        """Add a record that waits for a time.

        Args:
            key: The record's key if no other record of the key may overtake it, else None. The queue holds at most one record per such
                key.
        """
        assert record.due_ms is not None
        row_key = timed_key(record.due_ms, _NUMBER.pack(record.number))
        entry = key, record.label, record.row()
        self._timeline.put(row_key, entry, known=False)
        if key is not None:
            self._keys.put(key, row_key)
        self._count(row_key, entry, 1)

    def take(self) -> StoredRecord:
        """Remove the first record and return it. The queue must not be empty."""
        return self._taken(*self._timeline.take())

    def take_key(self, key: bytes) -> StoredRecord | None:
        row_key = self._keys.get(key) if self._with_key else None
        if row_key is None:
            return None
        entry = self._timeline.get(row_key)
        self._timeline.remove(row_key)
        return self._taken(row_key, entry)

    def _taken(self, row_key: bytes, entry: Any) -> StoredRecord:
        key, _, row = entry
        if key is not None:
            self._keys.put(key, None)
        self._count(row_key, entry, -1)
        return _number(row_key), row

    def _counts(self) -> Memory:
        return {"records": self._total, "with_key": self._with_key, "delayed": self.delayed}

    def _count(self, row_key: bytes, entry: Any, change: int) -> Label:
        label = super()._count(row_key, entry, change)
        self._with_key += change if entry[0] is not None else 0
        self.delayed += change if label[-1] != "retry" else 0
        return label


class SpillQueue(BacklogStore):
    def __init__(self, rows: Any, memory: Memory) -> None:
        self._by_group = Counter({bytes.fromhex(k): n for k, n in memory.get("overflow_keys", {}).items()})
        super().__init__(rows, memory, "overflow", self._by_group.total())

    def __contains__(self, group: bytes) -> bool:
        return group in self._by_group

    @property
    def groups(self) -> list[bytes]:
        return list(self._by_group)

    @property
    def longest(self) -> int:
        return max(self._by_group.values(), default=0)

    def put(self, record: InFlightRecord, group: bytes) -> None:
        row_key, entry = _prefix(group) + _NUMBER.pack(record.number), (record.label, record.row())
        self._rows.put(row_key, entry)
        self._count(row_key, entry, 1)

    def take(self, group: bytes, most: int) -> list[StoredRecord]:
        rows = list(islice(self._rows.prefix_scan(_prefix(group)), most))
        for row_key, entry in rows:
            self._rows.put(row_key, None)
            self._count(row_key, entry, -1)
        return [(_number(row_key), row) for row_key, (_, row) in rows]

    def _counts(self) -> Memory:
        return {"keys": {group.hex(): count for group, count in self._by_group.items()}}

    def _count(self, row_key: bytes, entry: Any, change: int) -> Label:
        group = row_key[_LENGTH.size : -_NUMBER.size]
        self._by_group[group] += change
        if not self._by_group[group]:
            del self._by_group[group]
        return super()._count(row_key, entry, change)


def _number(row_key: bytes) -> int:
    number: int = _NUMBER.unpack(row_key[-_NUMBER.size :])[0]
    return number


def _prefix(group: bytes) -> bytes:
    return _LENGTH.pack(len(group)) + group
