"""The topics of the test driver: their partition counts, the partition of each record, withheld topics, and cycles.

A *cycle* is a topology that writes to topics that it reads, so that a micro-batch might never end. This is allowed, for example to try
records again, as long as it ends. The test driver therefore counts the records that the results of a micro-batch add to it, and stops only
if there are very many, and the topics form a cycle.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from millstream.core.model.errors import SettingsError, TopicNotFoundError, TopologyError
from millstream.core.model.ids import TopicPartition
from millstream.core.model.partitioning import partition_of
from millstream.core.model.record import Records
from millstream.core.topology.layout import Layout, default_grouper, lay_out, tasks_of_group
from millstream.core.topology.plan import Plan, SubTopology

MOST_DERIVED: Final = 100_000
"""Number of records that the results of a micro-batch may add to it, and the least one; more if the micro-batch began with many."""
_MOST_PER_RECORD: Final = 100
PerTopic = int | Mapping[str, int]
"""The partition count of all topics, or one count per topic. A topic without an entry has 1 partition."""


class TopicLogs:
    """The topics and offsets that a broker would store. Owned by the test driver.

    Args:
        partitions: Partition counts of external and sink topics. None gives every topic, including repartition topics, 1 partition.
    """

    def __init__(self, partitions: PerTopic | None, ends: Mapping[TopicPartition, int]) -> None:
        self._one_each = partitions is None
        partitions = 1 if partitions is None else partitions
        given = partitions.values() if isinstance(partitions, Mapping) else [partitions]
        for count in given:
            if not isinstance(count, int) or count < 1:
                raise SettingsError(
                    f"partitions={partitions!r}: a topic has a whole number of partitions, at least 1"
                )
        self._given = partitions
        self._internal: Mapping[str, int] = {}
        self._turns: dict[str, int] = defaultdict(int)
        self._withheld: dict[str, list[tuple[TopicPartition, Records]]] = {}
        self.ends: dict[TopicPartition, int] = defaultdict(int, ends)
        """The next offset of each partition."""

    def hold(self, topic: str) -> None:
        self._withheld.setdefault(topic, [])

    def is_withheld(self, topic: str) -> bool:
        return topic in self._withheld

    def keep(self, partition: TopicPartition, records: Records) -> None:
        self._withheld[partition.topic].append((partition, records))

    def release(self, topic: str) -> list[tuple[TopicPartition, Records]]:
        """Return the withheld records of a topic and stop withholding it."""
        return self._withheld.pop(topic, [])

    def withheld_records(self, partition: TopicPartition) -> int:
        return sum(
            len(records) for where, records in self._withheld.get(partition.topic, ()) if where == partition
        )

    def laid_out(self, plan: Plan, kept: Mapping[str, int] | None = None) -> Layout:
        """Lay out a plan over these topics and remember the partition counts of its repartition topics.

        Raises:
            SettingsError: If ``partitions`` names a topic that is neither read nor written.
            CoPartitioningError: If co-partitioned topics have different partition counts.
        """
        if self._one_each:
            return _one_each(plan)
        self._check_names(plan)
        external = {topic: self.partitions_of(topic) for topic in plan.external_topics}
        # The topics of a pattern are unknown, and may be the only source of a repartition's count.
        if plan.has_patterns:
            most = self._given if isinstance(self._given, int) else max(self._given.values(), default=1)
            kept = {**dict.fromkeys(plan.internal_topics, most), **(kept or {})}
        layout = lay_out(plan, external, previous=kept)
        self._internal = {topic: layout.partitions[topic] for topic in plan.internal_topics}
        return layout

    def _check_names(self, plan: Plan) -> None:
        nodes = (node for sub in plan.subtopologies for node in sub.nodes.values())
        if (
            isinstance(self._given, int)
            or plan.has_patterns
            or any(callable(getattr(n, "topic", None)) for n in nodes)
        ):
            return
        known = {*plan.external_topics, *plan.sink_topics, *plan.global_part_of}
        unknown = sorted(self._given.keys() - known)
        if unknown:
            raise SettingsError(
                f"partitions={dict(self._given)!r} names {', '.join(map(repr, unknown))}, which the topology neither reads nor writes; "
                f"it does: {', '.join(sorted(known))}. Repartitions have their own number, repartition(partitions=...)"
            )

    def checked(self, partition: TopicPartition) -> TopicPartition:
        """Return the partition if it exists."""
        count = self.partitions_of(partition.topic)
        if not isinstance(partition.partition, int) or not 0 <= partition.partition < count:
            raise TopicNotFoundError(
                f"topic {partition.topic!r} has no partition {partition.partition!r}; it has {count}, from 0 on (partitions= of the driver)"
            )
        return partition

    def partitions_of(self, topic: str) -> int:
        if topic in self._internal:
            return self._internal[topic]
        return self._given if isinstance(self._given, int) else self._given.get(topic, 1)

    def routed(self, topic: str, records: Records) -> Iterator[tuple[TopicPartition, Records]]:
        """Distribute records over the partitions of a topic like a Java producer, in order per partition.

        Records without a key go to the partitions in turn, or in internal topics to the partition of the empty key.
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
            yield TopicPartition(topic, partition), records.take(rows[partition])

    def _partition(self, topic: str, key: bytes | None, count: int) -> int:
        if key is None and topic not in self._internal:
            self._turns[topic] += 1
            return (self._turns[topic] - 1) % count
        return partition_of(key or b"", count)

    def appended(self, partition: TopicPartition, records: Records) -> int:
        """Assign offsets to records and return the new end offset of the partition."""
        start = self.ends[partition]
        self.ends[partition] = end = start + len(records)
        records.offsets = list(range(start, end))
        return end


def _one_each(plan: Plan) -> Layout:
    topics = {sub.id: dict.fromkeys(sub.source_topics, 1) for sub in plan.subtopologies}
    tasks = {
        task: group
        for sub in plan.subtopologies
        for group in default_grouper(topics[sub.id])
        for task in tasks_of_group(sub, 0)
    }
    return Layout({topic: 1 for own in topics.values() for topic in own}, tasks)


class DerivedRecords:
    """Counts the records that are added to a micro-batch by its results. Owned by the runner.

    Args:
        reader: Returns the sub-topology that reads a topic.
    """

    def __init__(self, reader: Callable[[str], SubTopology | None]) -> None:
        self._reader = reader
        self._written: dict[int, set[str]] = defaultdict(set)
        self._count = 0
        self._limit = MOST_DERIVED

    def begin(self, records: int) -> None:
        """Begin a micro-batch with a number of records."""
        self._count, self._limit = 0, max(MOST_DERIVED, records * _MOST_PER_RECORD)

    def sent(self, subtopology: int, topic: str) -> None:
        self._written[subtopology].add(topic)

    def add(self, topic: str, records: int) -> None:
        """Add records to a topic.

        Raises:
            TopologyError: If there are too many, and the topic is part of a cycle.
        """
        self._count += records
        if self._count < self._limit:
            return
        cycle = self._cycle(topic)
        if cycle:
            raise TopologyError(
                f"the topology writes to topics that it reads: {' -> '.join(map(repr, cycle))}. After {self._count:,} records that resulted from "
                "one micro-batch, the test driver has stopped. Let the cycle end, for example with a filter, or write to a topic that the "
                "topology does not read"
            )
        self._limit += MOST_DERIVED

    def _cycle(self, first: str) -> list[str]:
        """Return the topics on the shortest way from a topic to itself, which is the first and the last one; empty if there is none."""
        paths, seen = [[first]], set[str]()
        for path in paths:
            sub = self._reader(path[-1])
            for topic in sorted(self._written[sub.id] if sub is not None else ()):
                if topic == first:
                    return [*path, topic]
                if topic not in seen:
                    seen.add(topic)
                    paths.append([*path, topic])
        return []
