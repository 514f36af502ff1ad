"""The topics of the test driver: how many partitions they have, where records go, and which of them are held back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from millstream.core.model.errors import SettingsError, TopicNotFoundError
from millstream.core.model.ids import TaskId, TopicPartition
from millstream.core.model.partitioning import partition_of
from millstream.core.model.record import Records
from millstream.core.topology.layout import Layout, default_grouper, lay_out
from millstream.core.topology.plan import Plan

PerTopic = int | Mapping[str, int]
"""One number of partitions for all topics, or one per topic; a topic that is not named has 1."""


class Topics:
    """What a broker would have. Owned by the driver.

    Args:
        partitions: Numbers of partitions of topics from outside, and of those that are written; None is 1 for all, those of
            repartitions included.
        ends: The next offset of each partition.
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
        self._held: dict[str, list[tuple[TopicPartition, Records]]] = {}
        self.ends: dict[TopicPartition, int] = defaultdict(int, ends)
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

    def laid_out(self, plan: Plan, kept: Mapping[str, int] | None = None) -> Layout:
        """Lay a plan out over these topics, and take over the numbers of its repartitions.

        Args:
            plan: The topology, split.
            kept: Numbers of partitions that repartitions had before.

        Raises:
            SettingsError: If a number is given for a topic that is neither read nor written.
            CoPartitioningError: If topics that meet in a store have different numbers of partitions.
        """
        if self._one_each:
            return _one_each(plan)
        self._check_names(plan)
        external = {topic: self.partitions_of(topic) for topic in plan.external_topics}
        if plan.has_patterns:  # whose topics may be all that a repartition could take its number from
            most = self._given if isinstance(self._given, int) else max(self._given.values(), default=1)
            kept = {**dict.fromkeys(plan.internal_topics, most), **(kept or {})}
        layout = lay_out(plan, external, kept=kept)
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

    def checked(self, at: TopicPartition) -> TopicPartition:
        """Return a partition.

        Raises:
            TopicNotFoundError: If the topic does not have it.
        """
        count = self.partitions_of(at.topic)
        if not isinstance(at.partition, int) or not 0 <= at.partition < count:
            raise TopicNotFoundError(
                f"topic {at.topic!r} has no partition {at.partition!r}; it has {count}, from 0 on (partitions= of the driver)"
            )
        return at

    def partitions_of(self, topic: str) -> int:
        """Return the number of partitions of a topic."""
        if topic in self._internal:
            return self._internal[topic]
        return self._given if isinstance(self._given, int) else self._given.get(topic, 1)

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
        """Assign offsets to records; return the end of the partition after them."""
        start = self.ends[at]
        self.ends[at] = end = start + len(records)
        records.offsets = list(range(start, end))
        return end


def _one_each(plan: Plan) -> Layout:
    """Lay a plan out with one partition of each topic."""
    topics = {sub.id: dict.fromkeys(sub.source_topics, 1) for sub in plan.subtopologies}
    tasks = {TaskId(number, 0): group for number, own in topics.items() for group in default_grouper(own)}
    return Layout({topic: 1 for own in topics.values() for topic in own}, tasks)


def _some(records: Records, rows: list[int]) -> Records:
    return Records(
        [records.keys[row] for row in rows],
        [records.values[row] for row in rows],
        [records.timestamps[row] for row in rows],
        headers=None if records.headers is None else [records.headers[row] for row in rows],
    )
