"""Epochs of a partition: which log takes the records of a key, what a key range reads, and how offsets map to positions.

A partition that was never split has one epoch, whose only log is the partition itself, the *primary*. A *change* closes the epoch at the
current log ends, its *fence*, and begins a new epoch with as many logs as ranges: log ``i`` of ``n`` takes the keys of
``KeyRange(i, n)``. A single range uses the primary; several ranges use the partitions of a fan-out topic beside it.

A *position* numbers the records of a partition across its epochs. In an epoch, it is the offset relative to the start of the epoch in its
log, plus the base of the epoch. The base is larger than every position of earlier epochs, so the positions of a range only increase.

Source: the draft proposal "Parallel processing beyond the partition count", *Second part*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from millstream.core.model.ids import TopicPartition
from millstream.core.model.partitioning import KeyRange, range_of

_SUFFIX: Final = "-fanout"


@dataclass(frozen=True, slots=True)
class Stretch:
    """The part of a log that belongs to an epoch.

    Attributes:
        log: The log: a partition of the primary topic or of the fan-out topic.
        start: The first offset of the epoch in this log.
        end: The first offset after it; None for the current epoch.
        base: The position of ``start``.

    Example:
        >>> Stretch(TopicPartition("orders-fanout-0", 1), KeyRange(1, 4), start=5, end=9, base=100).position(6)
        101
    """

    log: TopicPartition
    keys: KeyRange
    start: int
    end: int | None
    base: int

    def position(self, offset: int) -> int:
        return self.base + offset - self.start

    def overlaps(self, keys: KeyRange) -> bool:
        (first, behind), (low, high) = self.keys.bounds, keys.bounds
        return first < high and low < behind


@dataclass(frozen=True, slots=True)
class Epoch:
    """A period in which the routing of a partition's keys does not change.

    Attributes:
        base: The position at which it begins.
        stretches: One stretch per log, in order of the key ranges.
    """

    number: int
    base: int
    stretches: tuple[Stretch, ...]

    @property
    def ranges(self) -> int:
        return len(self.stretches)

    @property
    def position_after(self) -> int:
        """The first position after this epoch and its fence; only for a closed epoch."""
        return 1 + max(s.position(s.start if s.end is None else s.end) for s in self.stretches)

    def log_of(self, key: bytes | None) -> TopicPartition:
        """Return the log of a key; a null key counts as the empty key."""
        return self.stretches[0 if self.ranges == 1 else range_of(key, self.ranges)].log

    def read_position(self, keys: KeyRange, offsets: Mapping[TopicPartition, int]) -> int | None:
        """Return the position before which the reader of a key range has read every record; None if it has read the whole epoch.

        Args:
            offsets: The next offset of each log in which it has begun.
        """
        reading = (s for s in self.stretches if s.overlaps(keys) and _unfinished(s, offsets))
        return min((s.position(max(offsets.get(s.log, s.start), s.start)) for s in reading), default=None)


@dataclass(frozen=True, slots=True)
class History:
    """The epochs of a partition, oldest first. Immutable.

    Example:
        >>> history = History.new(TopicPartition("orders", 0))
        >>> first, second = history.logs(2)
        >>> split = history.changed(2, {history.primary: 100, first: 0, second: 0})
        >>> str(split.current.log_of(b"spark"))
        'orders-fanout-0-1'
    """

    primary: TopicPartition
    epochs: tuple[Epoch, ...]

    @classmethod
    def new(cls, primary: TopicPartition) -> History:
        return cls(primary, (Epoch(0, 0, (Stretch(primary, KeyRange(0, 1), 0, None, 0),)),))

    @property
    def current(self) -> Epoch:
        return self.epochs[-1]

    @property
    def used_logs(self) -> frozenset[TopicPartition]:
        """The logs of all epochs."""
        return frozenset(stretch.log for epoch in self.epochs for stretch in epoch.stretches)

    def logs(self, ranges: int) -> tuple[TopicPartition, ...]:
        """Return the logs of an epoch with the given number of ranges, in order."""
        if ranges == 1:
            return (self.primary,)
        topic = fan_out_topic(self.primary)
        return tuple(TopicPartition(topic, number) for number in range(ranges))

    def changed(self, ranges: int, ends: Mapping[TopicPartition, int]) -> History:
        """Close the current epoch and begin an epoch with a different number of ranges.

        Args:
            ranges: Number of ranges; 1 merges the partition.
            ends: End offsets of the logs of both epochs, read while no producer can write.
        """
        now = self.current
        closed = replace(now, stretches=tuple(replace(s, end=ends[s.log]) for s in now.stretches))
        base = closed.position_after
        logs = enumerate(self.logs(ranges))
        opened = tuple(Stretch(log, KeyRange(n, ranges), ends[log], None, base) for n, log in logs)
        earlier = self.without_deleted(ends).epochs[:-1]
        return History(self.primary, (*earlier, closed, Epoch(now.number + 1, base, opened)))

    def without_deleted(self, ends: Mapping[TopicPartition, int]) -> History:
        """Return the history without the records of logs that were deleted with their topic, if it was created again.

        Such a log ends before the end of a closed stretch. Its closed stretches become empty, so that they count as read.
        """
        closed = [stretch for epoch in self.epochs[:-1] for stretch in epoch.stretches]
        recreated = {s.log for s in closed if s.end is not None and ends.get(s.log, s.end) < s.end}

        def emptied(stretch: Stretch) -> Stretch:
            end = ends[stretch.log]
            return replace(stretch, start=end, end=end)

        earlier = (
            replace(e, stretches=tuple(emptied(s) if s.log in recreated else s for s in e.stretches))
            for e in self.epochs[:-1]
        )
        return History(self.primary, (*earlier, self.current))

    def to_json(self) -> list[Any]:
        return [
            {"base": e.base, "logs": [[s.log.topic, s.log.partition, s.start, s.end] for s in e.stretches]}
            for e in self.epochs
        ]

    @classmethod
    def from_json(cls, primary: TopicPartition, epochs: Sequence[Mapping[str, Any]]) -> History:
        return cls(primary, tuple(_epoch(number, plain) for number, plain in enumerate(epochs)))


def fan_out_topic(primary: TopicPartition) -> str:
    """Return the name of the topic whose partitions take the records of a split partition."""
    return f"{control_topic(primary.topic)}-{primary.partition}"


def primary_of(topic: str) -> TopicPartition | None:
    """Return the partition that a fan-out topic belongs to, by their names; None if it is not the name of a fan-out topic.

    Example:
        >>> primary_of("orders-fanout-3"), primary_of("orders-3")
        (TopicPartition(topic='orders', partition=3), None)
    """
    control, _, number = topic.rpartition("-")
    primary = control.removesuffix(_SUFFIX)
    if primary in ("", control) or not number.isdecimal():
        return None
    return TopicPartition(primary, int(number))


def control_topic(topic: str) -> str:
    """Return the name of the compacted topic that contains the epochs of a topic's partitions."""
    return f"{topic}{_SUFFIX}"


def _epoch(number: int, plain: Mapping[str, Any]) -> Epoch:
    base, logs = plain["base"], plain["logs"]
    return Epoch(
        number,
        base,
        tuple(
            Stretch(TopicPartition(topic, partition), KeyRange(n, len(logs)), start, end, base)
            for n, (topic, partition, start, end) in enumerate(logs)
        ),
    )


def _unfinished(stretch: Stretch, offsets: Mapping[TopicPartition, int]) -> bool:
    return stretch.end is None or offsets.get(stretch.log, stretch.start) < stretch.end
