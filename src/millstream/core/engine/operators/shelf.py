"""Shelf: unfinished records that wait for a time, out of the way.

A task on Spark begins each micro-batch by reading its ledgers. A hundred thousand delayed records would make each of them slow, though
none of them has anything to do. So a record that waits, and that no other record has to wait for, is put on the shelf: its
row lies in a store in the order of due times, and is read when its time has come.

What a task has to know of the shelf all the same is small. The offsets, for the frontier, are remembered as runs in the
operator's memory. Where a record that waits holds back its key, a second store finds it by its key: as soon as another record of
the key comes, the first one is taken down, and both are handled as if there were no shelf.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final

from millstream.core.engine.operators.ages import Ages
from millstream.core.engine.operators.offsets import Offsets
from millstream.core.engine.operators.timeline import Timeline, place_at
from millstream.core.engine.punctuate import NEVER
from millstream.core.engine.unfinished import Label
from millstream.core.model.ids import TopicPartition

_NUMBER: Final = struct.Struct(">q")


class Shelf:
    """The shelf of one operator. Owned by its ledger.

    Args:
        rows: The store of the rows, by due time and number.
        keys: The store of where the row of a key is.
        memory: What the operator remembers.
    """

    def __init__(self, rows: Any, keys: Any, memory: dict[str, Any]) -> None:
        self._store = rows
        self._rows = Timeline(rows)
        self._keys = keys
        self._memory = memory
        if "shelved" not in memory:
            self._count_up()
        self._count: int = memory["shelved_records"]
        self._with_key: int = memory["shelved_with_key"]
        self.delayed: int = memory["shelved_delayed"]
        """How many records were delayed, and do not wait for a retry."""
        self._offsets = Offsets(memory["shelved"])
        self._ages = Ages(memory["shelved_ages"])

    def __len__(self) -> int:
        return self._count

    @property
    def next(self) -> int:
        """When the first record is due, ms since the epoch; ``NEVER`` if there is none."""
        return self._rows.next if self._count else NEVER

    @property
    def oldest(self) -> int | None:
        """When the oldest record came, about, ms since the epoch; None if there is none."""
        return self._ages.oldest

    def offsets(self) -> Iterator[tuple[TopicPartition, int, int]]:
        """Return the offsets of the stored records, with the number of records per offset."""
        return iter(self._offsets)

    def last_number(self) -> int:
        """Return the largest number of a stored record, -1 if there is none. Scans the store."""
        return max((_number(place) for place, _ in self._store.all()), default=-1)

    def put(self, number: int, due_ms: int, key: bytes | None, label: Label, row: Any) -> None:
        """Put a record here.

        Args:
            number: The record.
            due_ms: When it is due, ms since the epoch.
            key: What finds it, if another record of its key must not overtake it; it is the only one here with that key.
            label: What it is known by.
            row: The record.
        """
        place = place_at(due_ms, _NUMBER.pack(number))
        self._rows.put(place, (key, tuple(label), row), known=False)
        if key is not None:
            self._keys.put(key, place)
        self._note(key, label, 1)

    def take(self) -> tuple[int, Any]:
        """Take the first record down; there is one, as :attr:`next` says."""
        place, (key, label, row) = self._rows.take()
        if key is not None:
            self._keys.put(key, None)
        self._note(key, Label(*label), -1)
        return _number(place), row

    def take_key(self, key: bytes) -> tuple[int, Any] | None:
        """Take the record of a key down, None if there is none."""
        place = self._keys.get(key) if self._with_key else None
        if place is None:
            return None
        _, label, row = self._rows.get(place)
        self._rows.remove(place)
        self._keys.put(key, None)
        self._note(key, Label(*label), -1)
        return _number(place), row

    def save(self) -> None:
        """Write down what is here, if that has changed."""
        if self._offsets.changed:
            self._memory["shelved_records"] = self._count
            self._memory["shelved_with_key"] = self._with_key
            self._memory["shelved_delayed"] = self.delayed
            self._memory["shelved"] = self._offsets.runs()
            self._memory["shelved_ages"] = self._ages.spans()

    def _count_up(self) -> None:
        """Find out what is here if that was not known: memories go by the operator's name, which an edit may change."""
        offsets, ages = Offsets(), Ages()
        found = [(key, Label(*label)) for _, (key, label, _) in self._store.all()]
        for _, label in found:
            offsets.count(label.place, 1)
            ages.count(label.came_ms, 1)
        self._memory["shelved_records"] = len(found)
        self._memory["shelved_with_key"] = sum(key is not None for key, _ in found)
        self._memory["shelved_delayed"] = sum(label.why != "retry" for _, label in found)
        self._memory["shelved"] = offsets.runs()
        self._memory["shelved_ages"] = ages.spans()

    def _note(self, key: bytes | None, label: Label, change: int) -> None:
        self._count += change
        self._with_key += change if key is not None else 0
        self.delayed += change if label.why != "retry" else 0
        self._offsets.count(label.place, change)
        self._ages.count(label.came_ms, change)


def _number(place: bytes) -> int:
    number: int = _NUMBER.unpack_from(place, 8)[0]
    return number
