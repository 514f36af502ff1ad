"""Delay queue: unfinished records that wait for a due time.

On Spark, a task reads its in-flight records at the start of each micro-batch. A hundred thousand delayed records would make every
micro-batch slow although none of them is due. So a record that waits, and that blocks no other record, moves to the delay
queue: a store ordered by due time, from which it is read when it is due.

The task keeps only a summary in the operator's memory: the offsets, as runs, for the committable offset, and the counts. Where
a delayed record blocks its key, a second store finds it by the key. As soon as another record of the key arrives, the delayed
one returns to memory, and both are handled as if there were no delay queue.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final

from millstream.core.engine.asynchronous.in_flight_record import Label
from millstream.core.engine.asynchronous.stored_counts import AgeHistogram, OffsetRanges
from millstream.core.engine.operators.timeline import Timeline, timed_key
from millstream.core.engine.punctuate import NEVER
from millstream.core.model.ids import TopicPartition
from millstream.core.state.contract import Memory

_NUMBER: Final = struct.Struct(">q")


class DelayQueue:
    """The delay queue of one operator. Owned by its backlog.

    Args:
        rows: The store of the rows, by due time and number.
        keys: The store of the row keys, by record key.
    """

    def __init__(self, rows: Any, keys: Any, memory: Memory) -> None:
        self._store = rows
        self._rows = Timeline(rows)
        self._keys = keys
        self._memory = memory
        if "shelved" not in memory:
            self._count_up()
        self._count: int = memory["shelved_records"]
        self._with_key: int = memory["shelved_with_key"]
        self.delayed: int = memory["shelved_delayed"]
        """How many records are delayed, not waiting for a retry."""
        self._offsets = OffsetRanges(memory["shelved"])
        self._ages = AgeHistogram(memory["shelved_ages"])

    def __len__(self) -> int:
        return self._count

    @property
    def next(self) -> int:
        """When the first record is due, ms since the epoch; ``NEVER`` if there is none."""
        return self._rows.next if self._count else NEVER

    @property
    def oldest(self) -> int | None:
        """Approximate arrival time of the oldest record, ms since the epoch; None if there is none."""
        return self._ages.oldest

    def offsets(self) -> Iterator[tuple[TopicPartition, int, int]]:
        """Return the offsets of the stored records, with the number of records per offset."""
        return iter(self._offsets)

    def last_number(self) -> int:
        """Return the largest number of a stored record, -1 if there is none. Scans the store."""
        return max((_number(row_key) for row_key, _ in self._store.all()), default=-1)

    def put(self, number: int, due_ms: int, key: bytes | None, label: Label, row: Any) -> None:
        """Add a record.

        Args:
            due_ms: When it is due, ms since the epoch.
            key: Its key, if no other record of the key may overtake it; at most one record per key is in the queue.
        """
        row_key = timed_key(due_ms, _NUMBER.pack(number))
        self._rows.put(row_key, (key, tuple(label), row), known=False)
        if key is not None:
            self._keys.put(key, row_key)
        self._note(key, label, 1)

    def take(self) -> tuple[int, Any]:
        """Remove the first record and return its number and row; the queue must not be empty."""
        row_key, (key, label, row) = self._rows.take()
        if key is not None:
            self._keys.put(key, None)
        self._note(key, Label(*label), -1)
        return _number(row_key), row

    def take_key(self, key: bytes) -> tuple[int, Any] | None:
        """Remove the record of a key and return its number and row; None if there is none."""
        row_key = self._keys.get(key) if self._with_key else None
        if row_key is None:
            return None
        _, label, row = self._rows.get(row_key)
        self._rows.remove(row_key)
        self._keys.put(key, None)
        self._note(key, Label(*label), -1)
        return _number(row_key), row

    def save(self) -> None:
        if self._offsets.changed:
            self._memory["shelved_records"] = self._count
            self._memory["shelved_with_key"] = self._with_key
            self._memory["shelved_delayed"] = self.delayed
            self._memory["shelved"] = self._offsets.runs()
            self._memory["shelved_ages"] = self._ages.spans()

    def _count_up(self) -> None:
        """Rebuild the summary from the store: it is lost when an edit changes the operator's name."""
        offsets, ages = OffsetRanges(), AgeHistogram()
        labels = [(key, Label(*label)) for _, (key, label, _) in self._store.all()]
        for _, label in labels:
            offsets.count(label.origin, 1)
            ages.count(label.came_ms, 1)
        self._memory["shelved_records"] = len(labels)
        self._memory["shelved_with_key"] = sum(key is not None for key, _ in labels)
        self._memory["shelved_delayed"] = sum(label.why != "retry" for _, label in labels)
        self._memory["shelved"] = offsets.runs()
        self._memory["shelved_ages"] = ages.spans()

    def _note(self, key: bytes | None, label: Label, change: int) -> None:
        self._count += change
        self._with_key += change if key is not None else 0
        self.delayed += change if label.why != "retry" else 0
        self._offsets.count(label.origin, change)
        self._ages.count(label.came_ms, change)


def _number(row_key: bytes) -> int:
    number: int = _NUMBER.unpack_from(row_key, 8)[0]
    return number
