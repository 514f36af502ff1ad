"""Group offsets: the progress of an application, committed to Kafka for tools that show the lag of its group.

Under at least once, Spark's checkpoint determines where the application continues, and the group's offsets are committed just before the
checkpoint is written. After a crash between the two, the first micro-batch of the next query is a repetition. It may finish fewer records,
because it repeats calls whose results were lost with their async worker. The group's offsets do not go back then, because the results were
sent. An application that has lost its checkpoint continues at the group's offsets if it has no stores, or all have changelog topics;
otherwise it starts over, with new offsets.

The group has no members. A broker therefore deletes each offset ``offsets.retention.minutes`` after it was committed, by default a week,
even while other offsets of the group are committed. Without the offset of a quiet partition, an application without a checkpoint would
process the whole partition again, so all offsets are committed again from time to time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from millstream.core.model.errors import TopicNotFoundError
from millstream.core.model.ids import TopicPartition
from millstream.core.model.positions import Offsets
from millstream.core.ports import OffsetCommitter

log = logging.getLogger("millstream.application")

_RENEW_S: Final = 3_600.0


class GroupOffsets:
    """Commits the offsets of a group; safe to use from several threads."""

    def __init__(self, broker: OffsetCommitter) -> None:
        self._broker = broker
        self._lock = threading.Lock()
        self._uncommitted: dict[TopicPartition, int] = {}
        self._taken: dict[TopicPartition, int] = {}
        self._asked: set[TopicPartition] = set()
        self._ours: dict[TopicPartition, int] = {}
        """The last committed offsets."""
        self._before: dict[TopicPartition, int] = {}
        """Offsets that were committed before the query started and are ahead of the records finished since."""
        self._planned = False
        self._renew_at_s = 0.0

    def commit(
        self,
        offsets: Mapping[TopicPartition, int],
        taken: Mapping[TopicPartition, int] = MappingProxyType({}),
    ) -> None:
        """Commit offsets, and retry those of failed commits.

        Args:
            taken: Read positions of partitions whose committable offsets are lower because of in-flight records after Spark's shuffle.

        Raises:
            BrokerUnavailableError: If no broker answers in time; the next commit includes the offsets.
        """
        with self._lock:
            self._uncommitted.update(offsets)
            self._taken.update(taken)
            if not self._uncommitted:
                return
            if not self._planned:
                self._ask_for(self._uncommitted.keys() - self._asked)
            before = self._before
            committed = {
                partition: max(n, before.get(partition, n)) for partition, n in self._uncommitted.items()
            }
            try:
                self._broker.commit(committed, self._taken)
            except TopicNotFoundError as error:
                # A topic of a pattern may be deleted while its last records are processed. The offsets of other topics are committed.
                log.warning("some of the offsets could not be committed: %s", error)
            self._ours.update(committed)
            self._before = {
                partition: n for partition, n in before.items() if self._uncommitted.get(partition, -1) < n
            }
            self._uncommitted.clear()
            self._taken.clear()

    def query_starts(self) -> None:
        """Keep what is committed as a lower limit, because the query may repeat the last micro-batch and finish fewer records."""
        with self._lock:
            self._before.update(self._ours)

    def by_others(self) -> dict[TopicPartition, tuple[int, int]]:
        """Return the partitions that another process has committed, each with the last offset from here and the current offset.

        Each partition is returned once. None is returned while the outcome of a commit from here is unknown.
        """
        with self._lock:
            if self._uncommitted or not self._ours:
                return {}
            found = self._broker.committed_offsets(_counts(self._ours))
            current = {
                partition: found.get(partition.topic, {}).get(partition.partition, n)
                for partition, n in self._ours.items()
            }
            others = {
                partition: (n, current[partition])
                for partition, n in self._ours.items()
                if current[partition] != n
            }
            for partition in others:
                del self._ours[partition]
            return others

    def warn_of_others(self, group: str) -> None:
        """Log a warning if another process commits offsets of the group."""
        for partition, (ours, theirs) in self.by_others().items():
            log.warning(
                "another client commits offsets of group %r: %s was at %d and is now at %s. If this application also "
                "runs on another host or with another state_dir, both process every record and send every result: stop "
                "one of them",
                group,
                partition,
                ours,
                theirs,
            )

    def planned(self, positions: Offsets) -> None:
        """Record that a micro-batch is planned from these positions.

        Forgets offsets that were committed before this start and are ahead of the positions: another process committed them, or the
        topic was recreated. Keeps offsets that could not yet be committed, because they may belong to a repeated micro-batch.
        """
        with self._lock:
            self._planned = self._planned or not self._uncommitted
            self._before = {
                partition: n
                for partition, n in self._before.items()
                if n <= positions.get(partition.topic, {}).get(partition.partition, n)
            }

    def renew(self, positions: Offsets) -> None:
        """Commit the offsets of partitions again, at most once an hour.

        Called only while no micro-batch runs, because a transaction could commit a later offset in the meantime.

        Raises:
            MillstreamError: If a broker does not answer in time, or refuses.
        """
        with self._lock:
            now = time.monotonic()
            if now >= self._renew_at_s:
                self._renew_at_s = now + _RENEW_S
                self._broker.renew({topic: max(of) + 1 for topic, of in positions.items() if of})

    def _ask_for(self, partitions: set[TopicPartition]) -> None:
        if not partitions:
            return
        found = self._broker.committed_offsets(_counts(partitions))
        for partition in partitions:
            if (offset := found.get(partition.topic, {}).get(partition.partition)) is not None:
                self._before[partition] = offset
        self._asked |= partitions


def _counts(partitions: Iterable[TopicPartition]) -> dict[str, int]:
    """Return partition counts that include these partitions."""
    counts: dict[str, int] = {}
    for partition in partitions:
        counts[partition.topic] = max(counts.get(partition.topic, 0), partition.partition + 1)
    return counts
