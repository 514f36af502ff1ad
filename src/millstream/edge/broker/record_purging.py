"""Purging: deletes processed records from repartition topics, which would otherwise grow without limit.

A record is deleted only when two conditions hold. Spark has committed the micro-batch that read the record, so no restart reads it again.
The group's committed offset is after the record, so an application that is rebuilt from its changelog topics begins after it. The first
condition is known when the next micro-batch is planned, because Spark plans it only after the previous one is complete.

Source: ``StreamTask.purgeableOffsets``, ``TaskManager.maybePurgeCommittedRecords``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from millstream.core.model.errors import MillstreamError
from millstream.core.model.ids import TopicPartition
from millstream.core.model.positions import Offsets

if TYPE_CHECKING:
    from millstream.drivers.kafka.internal_topics import InternalTopics

log = logging.getLogger("millstream.application")


class Purge:
    """Deletes processed records. Thread-safe.

    Args:
        topics: Returns the application's own repartition topics; no other topic is purged.
    """

    def __init__(self, broker: InternalTopics, topics: Callable[[], Collection[str]]) -> None:
        self._broker = broker
        self._topics = topics
        self._lock = threading.Lock()
        self._committed: dict[TopicPartition, int] = {}
        self._complete: dict[TopicPartition, int] = {}
        self._purged: dict[TopicPartition, int] = {}
        self._allowed = True

    def record_committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        topics = self._topics()
        with self._lock:
            self._committed.update(
                {partition: offset for partition, offset in offsets.items() if partition.topic in topics}
            )

    def planned(self, positions: Offsets) -> None:
        """Record that Spark has committed everything before these positions."""
        with self._lock:
            self._complete = {
                partition: min(offset, positions.get(partition.topic, {}).get(partition.partition, 0))
                for partition, offset in self._committed.items()
            }

    def purge(self) -> None:
        """Delete the records that both Spark and the group have committed. Errors are ignored, because records may stay longer."""
        with self._lock:
            wanted = {
                partition: offset
                for partition, offset in self._complete.items()
                if offset > self._purged.get(partition, 0)
            }
        if not wanted or not self._allowed:
            return
        try:
            self._allowed = self._broker.delete_records(wanted)
        except MillstreamError as error:
            log.debug("could not purge repartition topics, will retry: %s", error)
            return
        if self._allowed:
            self._purged.update(wanted)
        else:
            log.warning(
                "this user may not delete records (DELETE on %s), so these repartition topics grow without limit; grant the permission, "
                "or delete committed records with kafka-delete-records",
                ", ".join(sorted({partition.topic for partition in wanted})),
            )
