"""SpillQueue: parked records of hot keys, kept in a store until their turn is near.

The calls of a key run one at a time, so the records of a hot key pile up. Reading all of them at the start of each
micro-batch would make it slower with every record. So a task loads only the first few hundred records of a key; the
others stay in the spill queue, in order, and are loaded when the first ones have retired. At order ``partition``, records pile
up behind the slowest one of their partition, and a task loads the first few thousand of a partition. In this module, a
*group* is a key or a partition.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from millstream.core.engine.asynchronous.in_flight_record import Label
from millstream.core.engine.asynchronous.stored_counts import AgeHistogram, OffsetRanges
from millstream.core.model.ids import TopicPartition
from millstream.core.state.contract import Memory

_LENGTH: Final = struct.Struct(">I")
_NUMBER: Final = struct.Struct(">q")


class SpillQueue:
    """The spill queue of one operator. Owned by its backlog.

    Args:
        rows: The store of the rows, by group and number.
    """

    def __init__(self, rows: Any, memory: Memory) -> None:
        self._rows = rows
        self._memory = memory
        if "overflow" not in memory:
            self._count_up()
        self._offsets = OffsetRanges(memory["overflow"])
        self._ages = AgeHistogram(memory["overflow_ages"])
        self._counts: dict[bytes, int] = {bytes.fromhex(k): n for k, n in memory["overflow_keys"].items()}
        self._total = sum(self._counts.values())

    def __len__(self) -> int:
        return self._total

    def __contains__(self, group: bytes) -> bool:
        return group in self._counts

    @property
    def groups(self) -> list[bytes]:
        return list(self._counts)

    @property
    def longest(self) -> int:
        return max(self._counts.values(), default=0)

    @property
    def oldest(self) -> int | None:
        """Approximate arrival time of the oldest record, ms since the epoch; None if there is none."""
        return self._ages.oldest

    def offsets(self) -> Iterator[tuple[TopicPartition, int, int]]:
        """Return the offsets of the stored records, with the number of records per offset."""
        return iter(self._offsets)

    def last_number(self) -> int:
        """Return the largest number of a stored record, -1 if there is none. Scans the store."""
        return max((_number(row_key) for row_key, _ in self._rows.all()), default=-1)

    def put(self, group: bytes, number: int, label: Label, row: Any) -> None:
        """Append a record to its group."""
        self._rows.put(_prefix(group) + _NUMBER.pack(number), (tuple(label), row))
        self._counts[group] = self._counts.get(group, 0) + 1
        self._total += 1
        self._note(label, 1)

    def take(self, group: bytes, most: int) -> list[tuple[int, Any]]:
        """Remove the first records of a group, and return their numbers and rows."""
        rows = list(islice(self._rows.prefix_scan(_prefix(group)), most))
        for row_key, (label, _) in rows:
            self._rows.put(row_key, None)
            self._note(Label(*label), -1)
        left = self._counts[group] - len(rows)
        self._total -= len(rows)
        if left:
            self._counts[group] = left
        else:
            del self._counts[group]
        return [(_number(row_key), row) for row_key, (_, row) in rows]

    def save(self) -> None:
        if self._offsets.changed:
            self._memory["overflow"] = self._offsets.runs()
            self._memory["overflow_ages"] = self._ages.spans()
            self._memory["overflow_keys"] = {group.hex(): count for group, count in self._counts.items()}

    def _count_up(self) -> None:
        """Rebuild the summary from the store: it is lost when an edit changes the operator's name."""
        offsets, ages, counts = OffsetRanges(), AgeHistogram(), Counter[str]()
        for row_key, (label, _) in self._rows.all():
            origin, came_ms, _ = label
            offsets.count(origin, 1)
            ages.count(came_ms, 1)
            counts[row_key[_LENGTH.size : -_NUMBER.size].hex()] += 1
        self._memory["overflow"] = offsets.runs()
        self._memory["overflow_ages"] = ages.spans()
        self._memory["overflow_keys"] = dict(counts)

    def _note(self, label: Label, change: int) -> None:
        self._offsets.count(label.origin, change)
        self._ages.count(label.came_ms, change)


def _number(row_key: bytes) -> int:
    number: int = _NUMBER.unpack_from(row_key, len(row_key) - _NUMBER.size)[0]
    return number


def _prefix(group: bytes) -> bytes:
    """Return the prefix of the store keys of a group; no other group shares it."""
    return _LENGTH.pack(len(group)) + group
