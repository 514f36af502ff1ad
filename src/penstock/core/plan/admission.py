"""Admission: how far each partition may advance in one micro-batch."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.ports import OffsetRange, Offsets


def admit(start: Offsets, ends: Offsets, limit: int) -> Offsets:
    """Plan the end offsets of a batch: a fair share of the limit to every partition that has records.

    Partitions with less than their share leave the rest to the others.

    Args:
        start: Where each partition stands.
        ends: How far each partition could be read.
        limit: Records per batch, at least one.

    Returns:
        Planned end offsets, never before ``start``.

    Example:
        >>> admit({"t": {0: 0, 1: 0}}, {"t": {0: 10, 1: 1000}}, 100)
        {'t': {0: 10, 1: 90}}
    """
    available = sorted(
        (max(ends.get(topic, {}).get(partition, at) - at, 0), topic, partition)
        for topic, partitions in start.items()
        for partition, at in partitions.items()
    )
    planned = {topic: dict(partitions) for topic, partitions in start.items()}
    left = max(limit, 1)
    for position, (count, topic, partition) in enumerate(available):
        share = -(-left // (len(available) - position))
        taken = min(count, share)
        planned[topic][partition] += taken
        left -= taken
    return planned


def ranges(start: Offsets, end: Offsets) -> list[OffsetRange]:
    """Give the planned pieces between two positions.

    Partitions that do not advance are left out, and so are those that ``start`` does not know: they begin where ``end`` is.
    """
    return [
        OffsetRange(topic, partition, start[topic][partition], to)
        for topic, partitions in end.items()
        for partition, to in partitions.items()
        if to > start.get(topic, {}).get(partition, to)
    ]


def packed(planned: Sequence[OffsetRange], bins: int, smallest: int = 5_000) -> list[list[OffsetRange]]:
    """Spread ranges evenly over readers.

    A range that is larger than a reader's share is cut; when all ranges together are small, one reader takes them all,
    because a Spark task costs more than reading a few records.

    Args:
        planned: The ranges of a batch.
        bins: How many readers can work at once.
        smallest: Records below which a further reader is not worth it.

    Returns:
        Ranges per reader.
    """
    total = sum(r.end - r.start for r in planned)
    wanted = max(1, min(bins, total // smallest))
    share = -(-total // wanted)
    readers: list[list[OffsetRange]] = [[]]
    room = share
    for r in planned:
        start = r.start
        while start < r.end:
            if room == 0:
                readers.append([])
                room = share
            end = min(r.end, start + room)
            readers[-1].append(OffsetRange(r.topic, r.partition, start, end))
            room -= end - start
            start = end
    return readers if planned else []
