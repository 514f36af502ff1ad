"""Admission: how far each partition may advance in one micro-batch, and in a run that ends."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from millstream.core.model.positions import Offsets
from millstream.core.ports import OffsetRange


def admit(start: Offsets, ends: Offsets, limit: int, first: Collection[str] = (), most: int = 0) -> Offsets:
    """Plan the end offsets of a micro-batch: each partition with records receives a fair share of the limit.

    Partitions that need less than their share leave the rest to the others.

    Args:
        start: Current position of each partition.
        ends: Offset up to which each partition could be read.
        limit: Records per micro-batch, at least one.
        first: Topics with priority. The other topics share what remains of the limit.
        most: Separate limit for the topics with priority, if it is larger than ``limit``.

    Returns:
        Planned end offsets, never before ``start``.

    Example:
        >>> admit({"t": {0: 0, 1: 0}}, {"t": {0: 10, 1: 1000}}, 100)
        {'t': {0: 10, 1: 90}}
        >>> admit({"t": {0: 0}, "own": {0: 0}}, {"t": {0: 99}, "own": {0: 120}}, 100, first={"own"}, most=200)
        {'t': {0: 0}, 'own': {0: 120}}
    """
    limit = max(limit, 1)
    if not first:
        return _fair(start, ends, limit)
    own = {topic: partitions for topic, partitions in ends.items() if topic in first}
    ahead = _fair(start, own, max(limit, most))
    taken = sum(
        ahead[topic][p] - offset for topic, partitions in start.items() for p, offset in partitions.items()
    )
    others = {topic: partitions for topic, partitions in ends.items() if topic not in first}
    return _fair(ahead, others, max(limit - taken, 0))


def _fair(start: Offsets, ends: Offsets, left: int) -> Offsets:
    available = sorted(
        (max(ends.get(topic, {}).get(partition, offset) - offset, 0), topic, partition)
        for topic, partitions in start.items()
        for partition, offset in partitions.items()
    )
    planned = {topic: dict(partitions) for topic, partitions in start.items()}
    for position, (count, topic, partition) in enumerate(available):
        share = -(-left // (len(available) - position))
        taken = min(count, share)
        planned[topic][partition] += taken
        left -= taken
    return planned


def ranges(start: Offsets, end: Offsets) -> list[OffsetRange]:
    """Return the planned ranges between two positions.

    Omits partitions that do not advance and partitions that are missing in ``start``, which begin at their ``end``.
    """
    return [
        OffsetRange(topic, partition, start[topic][partition], to)
        for topic, partitions in end.items()
        for partition, to in partitions.items()
        if to > start.get(topic, {}).get(partition, to)
    ]


def returned(start: Offsets, end: Offsets) -> list[OffsetRange]:
    """Return empty ranges for the partitions that go back, because their topic was recreated or has become shorter."""
    return [
        OffsetRange(topic, partition, to, to)
        for topic, partitions in end.items()
        for partition, to in partitions.items()
        if to < start.get(topic, {}).get(partition, to)
    ]


def packed(
    planned: Sequence[OffsetRange], bins: int, smallest: int = 5_000, whole: Collection[str] = ()
) -> list[list[OffsetRange]]:
    """Distribute ranges evenly over readers.

    A range that exceeds the share of a reader is cut, unless its records must be read in order. If all ranges together are small, one
    reader takes all of them, because a Spark task costs more than reading a few records.

    Args:
        bins: Maximum number of concurrent readers.
        smallest: Number of records below which an additional reader is not worthwhile.
        whole: Topics whose ranges are not cut: one reader reads all records of a partition in the micro-batch.

    Example:
        >>> packed([OffsetRange("t", 0, 0, 20_000)], bins=2)
        [[OffsetRange(topic='t', partition=0, start=0, end=10000)], [OffsetRange(topic='t', partition=0, start=10000, end=20000)]]
        >>> packed([OffsetRange("t", 0, 0, 20_000)], bins=2, whole={"t"})
        [[OffsetRange(topic='t', partition=0, start=0, end=20000)]]
    """
    total = sum(r.end - r.start for r in planned)
    wanted = max(1, min(bins, total // smallest))
    share = -(-total // wanted)
    readers: list[list[OffsetRange]] = [[] for _ in range(wanted)]
    loads = [0] * wanted
    # Assign the largest range first, each to the reader with the smallest load. Ranges that can be cut then fill up the readers.
    for r in sorted((r for r in planned if r.topic in whole), key=lambda r: r.start - r.end):
        least = loads.index(min(loads))
        readers[least].append(r)
        loads[least] += r.end - r.start
    _fill(readers, [share - load for load in loads], [r for r in planned if r.topic not in whole])
    return [reader for reader in readers if reader]


def _fill(readers: list[list[OffsetRange]], rooms: Sequence[int], planned: Iterable[OffsetRange]) -> None:
    """Cut ranges where a reader has no room left. The last reader takes the rest."""
    number, room = 0, rooms[0]
    for r in planned:
        start = r.start
        while start < r.end:
            while room <= 0 and number + 1 < len(rooms):
                number += 1
                room = rooms[number]
            end = min(r.end, start + room) if room > 0 else r.end
            readers[number].append(OffsetRange(r.topic, r.partition, start, end))
            room -= end - start
            start = end


@dataclass(frozen=True)
class RunEnd:
    """The end of a bounded run, within the records that the topics contain when it begins.

    Attributes:
        records: Maximum number of records; None for all.
        before_ms: Each partition is read up to its first record with this timestamp or a later one, ms since the epoch; None
            for all records.
    """

    records: int | None = None
    before_ms: int | None = None


def first_records(positions: Offsets, ends: Offsets, records: int | None) -> Offsets:
    """Return the ends of a run with a limited number of records, taken evenly from the partitions.

    Args:
        ends: Offset up to which each partition can be read. Partitions of other topics are not counted.

    Returns:
        Offset up to which each partition is read, never before its position.

    Example:
        >>> first_records({"a": {0: 5, 1: 0}, "b": {0: 0}}, {"a": {0: 7, 1: 9}, "b": {0: 9}}, 9)
        {'a': {0: 7, 1: 4}, 'b': {0: 3}}
        >>> first_records({"a": {0: 5}}, {"a": {0: 3}}, None)
        {'a': {0: 5}}
    """
    begins = {topic: {p: positions.get(topic, {}).get(p, 0) for p in of} for topic, of in ends.items()}
    return admit(begins, ends, sys.maxsize if records is None else records)
