"""Fan-outs: limits how far the logs of split partitions are read, so that their epochs are processed one after the other."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Mapping
from typing import Final

from millstream.core.fanout.epochs import Epoch, History
from millstream.core.fanout.reading import EpochRead, limits, reading
from millstream.core.model.ids import TopicPartition
from millstream.core.model.positions import Offsets, flat
from millstream.core.runtime.messages import BufferedRecords
from millstream.drivers.spark.spec import SourceSpec

_ASK_S: Final = 1.0
"""How often the application is asked to read new logs, in seconds, until it does."""


class FanOuts:
    """The split partitions that a query reads. Owned by the planner."""

    def __init__(self, spec: SourceSpec) -> None:
        self._spec = spec
        self._histories: tuple[History, ...] = ()
        self._reported: tuple[EpochRead, ...] = ()
        """The epochs that the application knows."""
        self._asked_s: float | None = None

    def read_epochs(self) -> None:
        """Read the epochs that have begun. Called after the ends of the logs have been read.

        A producer writes to a log only after the epoch has been published, so all records before these ends are in known epochs.

        Raises:
            BrokerUnavailableError: If no broker answers in time.
        """
        if self._spec.epochs is not None:
            self._histories = self._spec.epochs.histories()

    def readable(self, positions: Offsets, ends: Offsets, records: BufferedRecords) -> Offsets:
        """Return how far topics may be read, without the records of later epochs than the one that is being processed.

        Tells the application which epochs are read, for its status.
        """
        if not self._histories:
            return ends
        read = list[EpochRead]()
        known, limited = flat(positions), {topic: dict(partitions) for topic, partitions in ends.items()}
        for history in self._histories:
            epoch, offsets = self._current(history, known, records)
            read.append(EpochRead(history, epoch))
            for (topic, number), limit in limits(history, epoch, offsets).items():
                if limit is not None and number in limited.get(topic, {}):
                    limited[topic][number] = min(limited[topic][number], limit)
        if tuple(read) != self._reported:
            self._reported = tuple(read)
            self._spec.control.ask("epochs", self._reported)
        return limited

    def with_fan_outs(self, topics: Collection[str]) -> frozenset[str]:
        """Return topics together with the fan-out topics of their partitions."""
        fan_outs = self._spec.topology.plan.fan_outs
        return frozenset(topics).union(topic for topic, split in fan_outs.items() if split.topic in topics)

    def _current(
        self, history: History, positions: Mapping[TopicPartition, int], records: BufferedRecords
    ) -> tuple[Epoch, Mapping[TopicPartition, int]]:
        """Return the epoch to read, and the positions. Deleted logs count as read."""
        while True:
            epoch = reading(history, positions, records.buffered)
            missing = {stretch.log for stretch in epoch.stretches if stretch.log not in positions}
            if not missing:
                return epoch, positions
            counts = self._spec.broker.partition_counts({log.topic for log in missing})
            deleted = {log for log in missing if log.partition >= counts.get(log.topic, 0)}
            if deleted != missing or epoch is history.current:
                self._ask_for(missing - deleted)
                return epoch, positions
            positions = {**positions, **dict.fromkeys(deleted, sys.maxsize)}

    def _ask_for(self, logs: Collection[TopicPartition]) -> None:
        """Ask the application to read logs that it does not know yet; it restarts the query."""
        now = time.monotonic()
        if logs and (self._asked_s is None or now - self._asked_s >= _ASK_S):
            self._asked_s = now
            self._spec.control.ask("topics", tuple(sorted({log.topic for log in logs})))
