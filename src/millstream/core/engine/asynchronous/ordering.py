"""Ordering: which in-flight records of an operator wait for each other, by the options of its calls."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal

from millstream.core.engine.asynchronous.in_flight_record import InFlightRecord
from millstream.core.model.calls import Calls


@dataclass(frozen=True, slots=True)
class Ordering:
    """The order of one operator.

    Attributes:
        by_key: Whether the effects of a key are applied in the order of its records.
        by_partition: Whether the effects of a partition are applied in the order of its records. Then records that wait hold up
            others, and stay in memory.
        queues_by_key: Whether the calls of a key are limited, so that its records queue.
        spills_by: What records have in common that are moved to the spill queue; None if none are.
    """

    by_key: bool
    by_partition: bool
    queues_by_key: bool
    spills_by: Literal["key", "partition"] | None

    @classmethod
    def of(cls, calls: Calls) -> Ordering:
        by_key, by_partition = calls.order == "key", calls.order == "partition"
        queues = by_key or calls.max_in_flight_per_key is not None
        return cls(by_key, by_partition, queues, "partition" if by_partition else "key" if queues else None)

    def queue_key(self, record: InFlightRecord) -> Hashable:
        """Return the key whose limit of calls applies to a record; None if there is none."""
        return record.key_id if self.queues_by_key else None

    def reorder_group(self, record: InFlightRecord) -> Hashable:
        """Return the key or partition whose effects are applied in order; None if there is no order."""
        if self.by_key:
            return record.key_id
        return record.partition if self.by_partition else None

    def spill_group(self, record: InFlightRecord) -> Hashable:
        """Return the key or partition by which a record is spilled; None if it never is."""
        if self.spills_by == "key":
            return record.key_id
        return record.partition if self.spills_by == "partition" else None
