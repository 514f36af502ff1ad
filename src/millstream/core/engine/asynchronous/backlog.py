"""Backlog: decides which in-flight records of an operator are in the delay queue or the spill queue instead of memory."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Final

from millstream.core.asynchronous.in_flight_window import InFlightWindow
from millstream.core.asynchronous.reorder_buffer import ReorderBuffer
from millstream.core.engine.asynchronous.backlog_stores import DelayQueue, SpillQueue, StoredRecord
from millstream.core.engine.asynchronous.in_flight_record import InFlightRecord
from millstream.core.engine.asynchronous.ordering import Ordering
from millstream.core.engine.asynchronous.record_keys import group_bytes, group_from
from millstream.core.engine.punctuate import NEVER
from millstream.core.engine.runtime import Runtime
from millstream.core.model.durations import earliest
from millstream.core.topology.async_nodes import Asynchronous, IssuingProcess

_BLOCKED_KEY: Final = 32
"""How many records of a key stay in memory while one of them waits and blocks the others."""
_LONG_KEY: Final = 512
"""Minimum number of records of a key that stay in memory. For an ordered partition, the limit of the in-flight window applies."""


class Backlog:
    """The backlog of one operator. Owned by the operator's in-flight records.

    Args:
        window: The records in memory that wait for a call, a time or a result.
        reorder_buffer: The records in memory, in the order in which they retire.
    """

    def __init__(
        self,
        node: Asynchronous | IssuingProcess,
        runtime: Runtime,
        ordering: Ordering,
        window: InFlightWindow,
        reorder_buffer: ReorderBuffer,
    ) -> None:
        carried, stores = node.carried, runtime.stores
        self._memory = memory = runtime.memory(carried.store.name)
        self._order = node.calls.order
        rows, keys = stores[carried.delayed.name], stores[carried.delayed_keys.name]
        self.delayed = DelayQueue(rows, keys, memory)
        self.spilled = SpillQueue(stores[carried.parked.name], memory)
        self._ordering = ordering
        self._window = window
        self._reorder_buffer = reorder_buffer

    @property
    def oldest_ms(self) -> int | None:
        """Approximate arrival time of the oldest record, ms since the epoch; None if there is none."""
        return earliest(self.delayed.oldest, self.spilled.oldest)

    @property
    def next_due(self) -> int | None:
        """When the first delayed record is due, ms since the epoch; None if none is delayed."""
        return None if self.delayed.next == NEVER else self.delayed.next

    def last_number(self) -> int:
        """Return the largest record number; -1 if there are no records. Scans the stores."""
        return max(self.delayed.last_number(), self.spilled.last_number())

    def save(self) -> None:
        self._memory["parks_by"], self._memory["order"] = self._ordering.spills_by, self._order
        self.delayed.save()
        self.spilled.save()

    def take_misplaced(self) -> list[StoredRecord]:
        """Take the records that cannot be found after an edit has changed the order."""
        stored: list[StoredRecord] = []
        order, spills_by = self._order, self._ordering.spills_by
        if self._ordering.by_partition or self._memory.get("order", order) != order:
            stored += self.take_due(NEVER - 1)
        if self._memory.get("parks_by", spills_by) != spills_by:
            for group in self.spilled.groups:
                stored += self.spilled.take(group, len(self.spilled))
        return stored

    # Delay.

    def can_delay(self, record: InFlightRecord, now_ms: int) -> bool:
        """Return True if a record waits for a time and holds up no other record."""
        if record.due_ms is None or self._ordering.by_partition or record.due_ms <= now_ms:
            return False
        if len(self.spilled) and group_bytes(record.key_id) in self.spilled:
            return False
        return self._window.waits_alone(record.number) and self._reorder_buffer.is_alone(record.number)

    def delay(self, record: InFlightRecord) -> None:
        blocks = self._ordering.by_key and record.key is not None
        key = group_bytes(record.key_id) if blocks else None
        self.delayed.put(record, key)
        self._window.remove(record.number)
        self._reorder_buffer.remove(record.number)

    def take_due(self, until_ms: int) -> Iterator[StoredRecord]:
        while self.delayed.next <= until_ms:
            yield self.delayed.take()

    def take_blocking(self, record: InFlightRecord) -> StoredRecord | None:
        """Take the delayed record that a new record must not overtake; None if there is none."""
        if not self._ordering.by_key or record.key is None or not len(self.delayed):
            return None
        return self.delayed.take_key(group_bytes(record.key_id))

    # Spill.

    def spill(self, record: InFlightRecord) -> bool:
        """Spill a new record if too many records of its key or partition are ahead of it. Return True if it was spilled."""
        group = self._ordering.spill_group(record)
        if group is None:
            return False
        size = self._size_in_memory(group)
        is_full = size >= _BLOCKED_KEY and size >= self._max_in_memory(group)
        if not is_full and not len(self.spilled):  # for most records, spares the pickle of the key
            return False
        packed = group_bytes(group)
        if not is_full and packed not in self.spilled:
            return False
        self.spilled.put(record, packed)
        return True

    def refill(self) -> Iterator[StoredRecord]:
        """Take spilled records of each key or partition that has at most half of its limit in memory."""
        for packed in self.spilled.groups:
            group = group_from(packed)
            size, limit = self._size_in_memory(group), self._max_in_memory(group)
            if size <= limit // 2:
                yield from self.spilled.take(packed, limit - size)

    def _size_in_memory(self, group: Hashable) -> int:
        return self._reorder_buffer.size(group) if self._ordering.by_partition else self._window.size(group)

    def _max_in_memory(self, group: Hashable) -> int:
        if self._ordering.by_partition:
            return self._window.limit
        if self._window.is_blocked(group):
            return _BLOCKED_KEY
        return max(_LONG_KEY, 2 * self._window.raised_limit(group))
