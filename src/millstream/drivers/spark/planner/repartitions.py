"""Reads repartition topics on the broker: each micro-batch reads everything that the previous one wrote.

All of it can then be merged by time (``millstream.core.engine.records.merging``). Repartition topics therefore have priority over external
topics, which receive the rest of the limits of a micro-batch. The limit in records depends on the record size, which is sampled until a
task reports it.
"""

from __future__ import annotations

import time
from typing import Final

from millstream.core.model.errors import BrokerUnavailableError
from millstream.core.model.positions import Offsets
from millstream.core.ports import Fetcher, OffsetRange
from millstream.core.runtime.admission import admit, ranges
from millstream.core.runtime.messages import BufferedRecords
from millstream.drivers.spark.spec import SourceSpec

RECORDS_OF_UNKNOWN_SIZE: Final = 100_000
"""Maximum number of records in a micro-batch while their size is unknown."""
_TOPICS: Final = 8


class RecordSizes:
    """Estimates the size of records. Owned by the planner."""

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher
        self._sampled: float | None = None
        self._has_sampled = False

    def per_record(self, reported: float | None, positions: Offsets, allowed: Offsets) -> float | None:
        """Return the average size of a record in bytes, or None if unknown.

        Before the first report, if the backlog exceeds a micro-batch of unknown size, the estimate reads a few records of each of the
        largest topics, once. It uses the topic with the largest records.

        Args:
            reported: The average that tasks have reported in this run. None before the first report.
        """
        if reported is not None:
            return reported
        waiting = ranges(positions, allowed)
        if not self._has_sampled and sum(map(_length, waiting)) > RECORDS_OF_UNKNOWN_SIZE:
            self._has_sampled = True
            self._sampled = self._sample(waiting)
        return self._sampled

    def _sample(self, waiting: list[OffsetRange]) -> float | None:
        largest: dict[str, OffsetRange] = {}
        for planned in sorted(waiting, key=_length):
            largest[planned.topic] = planned
        chosen = sorted(largest.values(), key=_length)[-_TOPICS:]
        sampled = [self._fetcher.sample_bytes(planned) for planned in chosen]
        known = [size for size in sampled if size is not None]
        return max(known) if len(known) == len(sampled) else None


def _length(planned: OffsetRange) -> int:
    return planned.end - planned.start


_SETTLE_S: Final = 5.0


class Repartitions:
    """Plans the repartition topics of one query. Owned by the planner."""

    def __init__(self, spec: SourceSpec) -> None:
        self._spec = spec
        topology = spec.topology
        self._counts = {
            topic: topology.layout.partitions[topic] for topic in topology.plan.repartition_topics
        }
        self._settling_since: float | None = None
        self._sizes = RecordSizes(spec.fetcher)

    def settling(self, ends: Offsets) -> bool:
        """Return whether to wait briefly until all records of the last micro-batch are readable.

        This takes milliseconds, unless a transaction hangs. The planner does not wait for hanging transactions.
        """
        try:
            if not self._counts or not self.incomplete(ends):
                self._settling_since = None
                return False
        except BrokerUnavailableError:
            return True  # the next request for the ends waits for the broker
        now = time.monotonic()
        if self._settling_since is None:
            self._settling_since = now
        return now - self._settling_since < _SETTLE_S

    def incomplete(self, ends: Offsets) -> bool:
        """Return whether some records cannot be read until a transaction is complete.

        A transaction is committed slightly before the brokers have confirmed this in every partition.
        """
        log_ends = self._spec.broker.log_end_offsets(self._counts)
        return any(ends[topic] != end for topic, end in log_ends.items())

    def without_full(self, positions: Offsets, ends: Offsets, records: BufferedRecords) -> Offsets:
        """Return how far topics may be read. The partitions of tasks with full buffers do not advance."""
        most = self._spec.waits.records
        limited = dict(ends)
        for (topic, partition), (count, *_) in records.buffered.items():
            if topic in self._counts and topic in limited and count >= most:
                limited[topic] = {**limited[topic], partition: positions[topic][partition]}
        return limited

    def admitted(self, positions: Offsets, allowed: Offsets, bytes_per_record: float | None) -> Offsets:
        """Return how far each partition is read in its share of the micro-batch.

        Repartition topics are read completely, unless they exceed the bytes of a micro-batch. The other topics share the rest.

        Args:
            bytes_per_record: Average size of a record. None if unknown.
        """
        spec, fits = self._spec, RECORDS_OF_UNKNOWN_SIZE
        size = self._sizes.per_record(bytes_per_record, positions, allowed)
        if size is not None:
            fits = int(spec.max_bytes / max(size, 1.0))
        limit = max(1, min(spec.max_records, fits))
        return admit(positions, allowed, limit, self._counts, max(fits, RECORDS_OF_UNKNOWN_SIZE))
