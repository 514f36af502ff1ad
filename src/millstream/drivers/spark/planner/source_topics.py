"""The topics that a query reads: how far they can be read, and how they have changed since the checkpoint."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from millstream.core.model.errors import BrokerUnavailableError, TopicNotFoundError, shorter_topic
from millstream.core.model.ids import TopicPartition
from millstream.core.model.positions import Offsets
from millstream.core.runtime.batch_plan import BatchPlan
from millstream.core.runtime.changes import recreated, recreated_error
from millstream.drivers.spark.planner.start_offsets import offsets_of_new, updated
from millstream.drivers.spark.spec import SourceSpec

log = logging.getLogger("millstream.source")


class InputTopics:
    """The topics of one query. Owned by the planner."""

    def __init__(self, spec: SourceSpec) -> None:
        self._spec = spec
        self._unavailable_since: float | None = None

    def counts(self) -> dict[str, int]:
        topology = self._spec.topology
        return {topic: topology.layout.partitions[topic] for topic in topology.plan.broker_topics}

    def ends(self, ask_more: Callable[[], None], *, bounded: bool) -> Offsets | None:
        """Ask how far the topics can be read.

        Args:
            ask_more: Sends further requests to the broker, after the request for the ends.
            bounded: Whether this is a run to the end, which cannot continue without a topic.

        Returns:
            The ends, or None while no broker answers.

        Raises:
            TopicNotFoundError: If a topic is missing and the application cannot continue without it.
        """
        try:
            ends = self._spec.broker.end_offsets(self.counts())
            ask_more()
        except BrokerUnavailableError as error:
            if self._unavailable_since is None:
                self._unavailable_since = time.monotonic()
                log.warning("waiting for the broker: %s", error)
            return None
        except TopicNotFoundError:
            if not self.continue_without_missing(bounded=bounded):
                raise
            return None
        if self._unavailable_since is not None:
            log.warning("the broker is back after %.1f s", time.monotonic() - self._unavailable_since)
            self._unavailable_since = None
        return ends

    def continue_without_missing(self, *, bounded: bool) -> bool:
        """Return whether the application restarts the query because topics were deleted or recreated, perhaps with fewer partitions.

        Raises:
            TopicRecreatedError: If a topic was recreated and may not be read.
        """
        return not bounded and (self._gone_from_patterns() or self.recreated_among(self._all_topics()))

    def without_recreated(self, start: BatchPlan) -> Offsets:
        """Reset topics that were recreated since the checkpoint to their beginning. The application allows this."""
        again = recreated(start.topology.topic_ids, self._spec.topology.lineage.topic_ids)
        counts = {topic: count for topic, count in self.counts().items() if topic in again}
        return {**start.positions, **self._spec.broker.begin_offsets(counts)}

    def with_new_partitions(self, positions: Offsets) -> Offsets:
        """Add the topics and partitions that are not in the checkpoint."""
        known = {topic: dict(partitions) for topic, partitions in positions.items()}
        missing = {
            topic: count
            for topic, count in self.counts().items()
            if any(partition not in known.get(topic, {}) for partition in range(count))
        }
        # A new partition, or a new topic of a pattern, may have records before it is noticed. They belong to the stream: no offset reset
        # skips them.
        noticed = known.keys() | self._spec.topology.lineage.appeared
        added = {topic: count for topic, count in missing.items() if topic in noticed}
        new = {topic: count for topic, count in missing.items() if topic not in noticed}
        begin = {**offsets_of_new(self._spec, new), **self._spec.broker.begin_offsets(added)}
        for topic, partitions in begin.items():
            known[topic] = {**partitions, **known.get(topic, {})}
        return known

    def without_lost(self, positions: Offsets, ends: Offsets) -> Offsets | None:
        """Reset partitions that have become shorter to their end.

        Args:
            positions: The offset up to which each partition was planned.

        Returns:
            The positions, or None if the topic was recreated and the application is about to restart the query.

        Raises:
            OffsetsLostError: If lost offsets may not be skipped.
            TopicRecreatedError: If a topic was recreated and may not be read.
        """
        beyond = {partition.topic for partition, _, _ in _beyond_the_end(positions, ends)}
        if not beyond:
            return positions
        # The positions are beyond the readable part, but not necessarily beyond the end of the log.
        counts = {topic: count for topic, count in self.counts().items() if topic in beyond}
        log_ends = {**ends, **self._spec.broker.log_end_offsets(counts)}
        lost = _beyond_the_end(positions, log_ends)
        if lost and self.recreated_among({partition.topic for partition, _, _ in lost}):
            return None
        for (topic, partition), position, end in lost:
            if not self._spec.skip_lost:
                raise shorter_topic(topic, partition, end, position)
            log.warning(
                "going back from offset %d to %d of %s-%d, where the topic now ends",
                position,
                end,
                topic,
                partition,
            )
        ending: Offsets = {}
        for (topic, partition), _, end in lost:
            ending.setdefault(topic, {})[partition] = end
        return updated(positions, ending)

    def recreated_among(self, topics: Iterable[str]) -> bool:
        """Return whether topics were recreated since the query started. If so, inform the application, which restarts the query.

        Raises:
            TopicRecreatedError: If such a topic may not be read. Topics of a pattern may always be read.
        """
        ids = {topic: facts.id for topic, facts in self._spec.broker.topic_facts(topics).items()}
        again = recreated(self._spec.topology.lineage.topic_ids, ids)
        named = tuple(topic for topic in again if topic not in self._spec.topology.plan.chosen_topics)
        if named and not self._spec.restart_recreated:
            raise recreated_error(named)
        if again:
            self._spec.control.ask("topics", again)
        return bool(again)

    def _gone_from_patterns(self) -> bool:
        """Return whether topics of patterns were deleted. If so, inform the application, which continues without them."""
        chosen = self._spec.topology.plan.chosen_topics
        gone = chosen - self._spec.broker.partition_counts(chosen).keys()
        if gone:
            self._spec.control.ask("topics", tuple(sorted(gone)))
        return bool(gone)

    def _all_topics(self) -> list[str]:
        topology = self._spec.topology
        return [*topology.plan.broker_topics, *topology.global_partitions]


def _beyond_the_end(positions: Offsets, ends: Offsets) -> list[tuple[TopicPartition, int, int]]:
    """Return position and end of the partitions that end before their position."""
    return [
        (TopicPartition(topic, partition), position, ends[topic][partition])
        for topic, partitions in positions.items()
        for partition, position in partitions.items()
        if position > ends.get(topic, {}).get(partition, position)
    ]
