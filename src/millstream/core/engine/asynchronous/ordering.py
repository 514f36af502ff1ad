"""Ordering: derives from an operator's options which of its in-flight records wait for each other."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from millstream.core.engine.asynchronous.in_flight_record import InFlightRecord
from millstream.core.model.calls import Calls


@dataclass(frozen=True, slots=True)
class Ordering:
    """The order of one operator.

    Attributes:
        by_key: True if effects are applied in the order of the records of each key.
        by_partition: True if effects are applied in the order of the records of each partition. Waiting records then hold up others, and
            stay in memory.
        queues_by_key: True if the number of calls per key is limited, so that each key has a queue.
    """

    by_key: bool
    by_partition: bool
    queues_by_key: bool

    @classmethod
    def of(cls, calls: Calls) -> Ordering:
        by_key = calls.order == "key"
        return cls(by_key, calls.order == "partition", by_key or calls.max_in_flight_per_key is not None)

    def queue_key(self, record: InFlightRecord) -> Hashable:
        """Return the key whose limit of calls applies to a record; None if no limit applies."""
        return record.key_id if self.queues_by_key else None

    def reorder_group(self, record: InFlightRecord) -> Hashable:
        """Return the key or partition whose effects are applied in order; None if there is no order."""
        if self.by_key:
            return record.key_id
        return record.partition if self.by_partition else None

    def spill_group(self, record: InFlightRecord) -> Hashable:
        """Return the key or partition by which a record spills; None if it never spills."""
        return record.partition if self.by_partition else self.queue_key(record)

    @property
    def spills_by(self) -> str | None:
        """The kind of spill group, as the backlog remembers it; None if records never spill."""
        return "partition" if self.by_partition else "key" if self.queues_by_key else None
