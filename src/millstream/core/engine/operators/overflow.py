"""Overflow: parked records behind many others, which lie in a store until their turn comes near.

A key is called one record at a time, so the records of a hot key pile up, however many of other keys are called beside it.
Reading them all at the beginning of each micro-batch would make it as slow as the pile is high. So a ledger has the first
few hundred records of a key at hand; those behind lie here, in their order, and are read when the first ones have retired.
Where the order of partitions is kept, records pile up behind the slowest one of their partition; then a ledger has the first
thousands of a partition at hand. In this module, a *group* is a key or a partition.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from millstream.core.engine.operators.ages import Ages
from millstream.core.engine.operators.offsets import Offsets
from millstream.core.engine.unfinished import Label
from millstream.core.model.ids import TopicPartition

_LENGTH: Final = struct.Struct(">I")
_NUMBER: Final = struct.Struct(">q")


class Overflow:
    """The overflow of one operator. Owned by its ledger.

    Args:
        rows: The store of the rows, by group and number.
        memory: What the operator remembers.
    """

    def __init__(self, rows: Any, memory: dict[str, Any]) -> None:
        self._rows = rows
        self._memory = memory
        if "overflow" not in memory:
            self._count_up()
        self._offsets = Offsets(memory["overflow"])
        self._ages = Ages(memory["overflow_ages"])
        self._counts: dict[bytes, int] = {bytes.fromhex(k): n for k, n in memory["overflow_keys"].items()}
        self._total = sum(self._counts.values())

    def __len__(self) -> int:
        return self._total

    def __contains__(self, group: bytes) -> bool:
        return group in self._counts

    @property
    def groups(self) -> list[bytes]:
        """The groups that have records here."""
        return list(self._counts)

    @property
    def longest(self) -> int:
        """How many records there are of the group that has most."""
        return max(self._counts.values(), default=0)

    @property
    def oldest(self) -> int | None:
        """When the oldest record came, about, ms since the epoch; None if there is none."""
        return self._ages.oldest

    def offsets(self) -> Iterator[tuple[TopicPartition, int, int]]:
        """Return the offsets of the stored records, with the number of records per offset."""
        return iter(self._offsets)

    def last_number(self) -> int:
        """Return the largest number of a stored record, -1 if there is none. Scans the store."""
        return max((_number(at) for at, _ in self._rows.all()), default=-1)

    def put(self, group: bytes, number: int, label: Label, row: Any) -> None:
        """Put a record behind all others of its group."""
        self._rows.put(_at(group) + _NUMBER.pack(number), (tuple(label), row))
        self._counts[group] = self._counts.get(group, 0) + 1
        self._total += 1
        self._note(label, 1)

    def take(self, group: bytes, most: int) -> list[tuple[int, Any]]:
        """Take the first records of a group out."""
        found = list(islice(self._rows.prefix_scan(_at(group)), most))
        for at, (label, _) in found:
            self._rows.put(at, None)
            self._note(Label(*label), -1)
        left = self._counts[group] - len(found)
        self._total -= len(found)
        if left:
            self._counts[group] = left
        else:
            del self._counts[group]
        return [(_number(at), row) for at, (_, row) in found]

    def save(self) -> None:
        """Write down what is here, if that has changed."""
        if self._offsets.changed:
            self._memory["overflow"] = self._offsets.runs()
            self._memory["overflow_ages"] = self._ages.spans()
            self._memory["overflow_keys"] = {group.hex(): count for group, count in self._counts.items()}

    def _count_up(self) -> None:
        """Find out what is here if that was not known: memories go by the operator's name, which an edit may change."""
        offsets, ages, counts = Offsets(), Ages(), Counter[str]()
        for at, (label, _) in self._rows.all():
            place, came_ms, _ = label
            offsets.count(place, 1)
            ages.count(came_ms, 1)
            counts[at[_LENGTH.size : -_NUMBER.size].hex()] += 1
        self._memory["overflow"] = offsets.runs()
        self._memory["overflow_ages"] = ages.spans()
        self._memory["overflow_keys"] = dict(counts)

    def _note(self, label: Label, change: int) -> None:
        self._offsets.count(label.place, change)
        self._ages.count(label.came_ms, change)


def _number(at: bytes) -> int:
    number: int = _NUMBER.unpack_from(at, len(at) - _NUMBER.size)[0]
    return number


def _at(group: bytes) -> bytes:
    """Return what the places of a group begin with, and those of no other."""
    return _LENGTH.pack(len(group)) + group
