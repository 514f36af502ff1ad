"""Reads the internal topics of an application. Implements ``ChangelogReader``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from millstream.core.model.record import Records
from millstream.core.ports import OffsetRange
from millstream.drivers.kafka.broker import Broker
from millstream.drivers.kafka.fetch import KafkaFetcher


@dataclass(frozen=True)
class KafkaChangelogs:
    """Reads partitions of internal topics from the beginning to the end. Picklable.

    Attributes:
        fetcher: Reads the records. Like ``broker``, it omits records of open and aborted transactions.
    """

    broker: Broker
    fetcher: KafkaFetcher

    def extent(self, topic: str, partition: int) -> OffsetRange:
        count = self.broker.partition_counts([topic]).get(topic, 0)
        if partition >= count:
            return OffsetRange(topic, partition, 0, 0)
        begin = self.broker.begin_offsets({topic: count})[topic][partition]
        end = self.broker.end_offsets({topic: count})[topic][partition]
        return OffsetRange(topic, partition, begin, end)

    def read(self, offsets: OffsetRange) -> Iterator[Records]:
        if offsets.end > offsets.start:
            yield from self.fetcher.fetch(offsets)
