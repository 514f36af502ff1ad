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
_DELETED_AFTER_S: Final = 10.0
"""How long brokers must not list a log until it counts as deleted, in seconds. A broker that has just started may not know it yet."""


class FanOuts:
    """The split partitions that a query reads. Owned by the planner."""

    def __init__(self, spec: SourceSpec) -> None:
        self._spec = spec
        self.epoch_ends: Mapping[TopicPartition, int] = {}
        """How far logs can be read in the epochs that are being read. Logs that may grow are missing, those without an epoch end at 0."""
        self._histories: tuple[History, ...] = ()
        self._reported: tuple[EpochRead, ...] = ()
        """The epochs that the application knows."""
        self._asked_s: float | None = None
        self._missing_since_s = dict[TopicPartition, float]()
        """When brokers first did not list a log, in monotonic seconds."""

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
        read = list[EpochRead]()
        known, limited = flat(positions), {topic: dict(partitions) for topic, partitions in ends.items()}
        epoch_ends: dict[TopicPartition, int | None] = dict.fromkeys(self._fan_out_logs(), 0)
        for history in self._histories:
            epoch, offsets = self._current(history, known, records)
            read.append(EpochRead(history, epoch))
            of_logs = limits(history, epoch, offsets)
            epoch_ends |= of_logs
            for (topic, number), limit in of_logs.items():
                if limit is not None and number in limited.get(topic, {}):
                    limited[topic][number] = min(limited[topic][number], limit)
        self.epoch_ends = {log: end for log, end in epoch_ends.items() if end is not None}
        if tuple(read) != self._reported:
            self._reported = tuple(read)
            self._spec.control.ask("epochs", self._reported)
        return limited

    def with_fan_outs(self, topics: Collection[str]) -> frozenset[str]:
        """Return topics together with the fan-out topics of their partitions."""
        fan_outs = self._spec.topology.plan.fan_outs
        return frozenset(topics).union(topic for topic, split in fan_outs.items() if split.topic in topics)

    def _fan_out_logs(self) -> list[TopicPartition]:
        plan, layout = self._spec.topology.plan, self._spec.topology.layout
        return [
            TopicPartition(topic, number)
            for topic in plan.fan_outs
            for number in range(layout.partitions[topic])
        ]

    def _current(
        self, history: History, positions: Mapping[TopicPartition, int], records: BufferedRecords
    ) -> tuple[Epoch, Mapping[TopicPartition, int]]:
        """Return the epoch to read, and the positions. Deleted logs count as read."""
        while True:
            epoch = reading(history, positions, records.buffered)
            missing = {stretch.log for stretch in epoch.stretches if stretch.log not in positions}
            if not missing:
                return epoch, positions
            listed = self._listed(missing)
            if epoch is history.current or not self._are_deleted(missing - listed, listed):
                self._ask_for(listed)
                return epoch, positions
            positions = {**positions, **dict.fromkeys(missing, sys.maxsize)}

    def _listed(self, logs: Collection[TopicPartition]) -> set[TopicPartition]:
        counts = self._spec.broker.partition_counts({log.topic for log in logs})
        return {log for log in logs if log.partition < counts.get(log.topic, 0)}

    def _are_deleted(self, unlisted: Collection[TopicPartition], listed: Collection[TopicPartition]) -> bool:
        """Return whether all logs of an epoch have been deleted, given those that brokers do not list now."""
        now = time.monotonic()
        for log in listed:
            self._missing_since_s.pop(log, None)
        missing_since = [self._missing_since_s.setdefault(log, now) for log in unlisted]
        return not listed and now - max(missing_since) >= _DELETED_AFTER_S

    def _ask_for(self, logs: Collection[TopicPartition]) -> None:
        """Ask the application to read logs that it does not know yet; it restarts the query."""
        now = time.monotonic()
        if logs and (self._asked_s is None or now - self._asked_s >= _ASK_S):
            self._asked_s = now
            self._spec.control.ask("topics", tuple(sorted({log.topic for log in logs})))
