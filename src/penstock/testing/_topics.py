"""The topics of the test driver: how many partitions they have, where records go, and which of them are held back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping

from penstock.core.model.errors import SettingsError
from penstock.core.model.ids import TopicPartition
from penstock.core.model.partitioning import partition_of
from penstock.core.model.record import Records

PerTopic = int | Mapping[str, int]
"""One number of partitions for all topics, or one per topic; a topic that is not named has 1."""


class Topics:
    """What a broker would have. Owned by the driver.

    Args:
        partitions: Numbers of partitions of topics from outside, and of those that are written.
    """

    def __init__(self, partitions: PerTopic) -> None:
        given = partitions.values() if isinstance(partitions, Mapping) else [partitions]
        for count in given:
            if not isinstance(count, int) or count < 1:
                raise SettingsError(
                    f"partitions={partitions!r}: a topic has a whole number of partitions, at least 1"
                )
        self._given = partitions
        self._internal: Mapping[str, int] = {}
        self._turns: dict[str, int] = defaultdict(int)
        self._held: dict[str, list[tuple[TopicPartition, Records]]] = {}
        self.ends: dict[TopicPartition, int] = defaultdict(int)
        """The next offset of each partition."""

    def hold(self, topic: str) -> None:
        """Hold records of a topic back from now on."""
        self._held.setdefault(topic, [])

    def is_held(self, topic: str) -> bool:
        """Return whether records of a topic are held back."""
        return topic in self._held

    def keep(self, at: TopicPartition, records: Records) -> None:
        """Keep records of a topic that is held back."""
        self._held[at.topic].append((at, records))

    def release(self, topic: str) -> list[tuple[TopicPartition, Records]]:
        """Return what was held back of a topic, and hold nothing back any more."""
        return self._held.pop(topic, [])

    def held_records(self, at: TopicPartition) -> int:
        """Return how many records of a partition are held back."""
        return sum(len(records) for where, records in self._held.get(at.topic, ()) if where == at)

    def lay_out(self, counts: Mapping[str, int], internal: Collection[str]) -> None:
        """Take the numbers of partitions of repartition topics."""
        self._internal = {topic: counts[topic] for topic in internal}

    def partitions_of(self, topic: str) -> int:
        """Return the number of partitions of a topic."""
        if topic in self._internal:
            return self._internal[topic]
        return self._given if isinstance(self._given, int) else self._given.get(topic, 1)

    def external(self, topics: Collection[str]) -> dict[str, int]:
        """Return the numbers of partitions of topics that exist before the application starts."""
        return {topic: self.partitions_of(topic) for topic in topics}

    def placed(self, topic: str, records: Records) -> Iterator[tuple[TopicPartition, Records]]:
        """Distribute records over the partitions of a topic, as Java producers do; each partition keeps their order.

        A record without a key goes to the partitions in turn, and within the application to that of the empty key.
        """
        count = self.partitions_of(topic)
        if count == 1:
            records.partitions = None
            yield TopicPartition(topic, 0), records
            return
        rows: dict[int, list[int]] = defaultdict(list)
        for row, key in enumerate(records.keys):
            chosen = -1 if records.partitions is None else records.partitions[row]
            rows[self._partition(topic, key, count) if chosen < 0 else chosen].append(row)
        for partition in sorted(rows):
            yield TopicPartition(topic, partition), _some(records, rows[partition])

    def _partition(self, topic: str, key: bytes | None, count: int) -> int:
        if key is None and topic not in self._internal:
            self._turns[topic] += 1
            return (self._turns[topic] - 1) % count
        return partition_of(key or b"", count)

    def appended(self, at: TopicPartition, records: Records) -> int:
        """Give records their offsets; return the end of the partition behind them."""
        start = self.ends[at]
        self.ends[at] = end = start + len(records)
        records.offsets = list(range(start, end))
        return end


def _some(records: Records, rows: list[int]) -> Records:
    return Records(
        [records.keys[row] for row in rows],
        [records.values[row] for row in rows],
        [records.timestamps[row] for row in rows],
        headers=None if records.headers is None else [records.headers[row] for row in rows],
    )
