"""Where a run ends that ends by itself: how far it reads the topics from outside."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.core.model.ids import TopicPartition
from millstream.core.model.positions import Offsets


@dataclass(frozen=True)
class RunEnd:
    """The end of a run, within what is in the topics when it begins.

    Attributes:
        records: How many records it reads at most; None: all.
        before_ms: It reads up to the first record of a partition with this timestamp or a later one, ms since the epoch; None: all.
    """

    records: int | None = None
    before_ms: int | None = None


def first_records(positions: Offsets, ends: Offsets, records: int | None) -> Offsets:
    """Return the ends of a run that reads so many records, evenly from the partitions while they have any.

    Args:
        positions: Where the run begins.
        ends: How far the partitions can be read; those of other topics than these are not counted.
        records: How many records it reads at most; None: all.

    Returns:
        How far it reads, never before where it begins.

    Example:
        >>> first_records({"a": {0: 5, 1: 0}, "b": {0: 0}}, {"a": {0: 7, 1: 9}, "b": {0: 9}}, 9)
        {'a': {0: 7, 1: 4}, 'b': {0: 3}}
        >>> first_records({"a": {0: 5}}, {"a": {0: 3}}, None)
        {'a': {0: 5}}
    """
    begins = {(t, p): positions.get(t, {}).get(p, 0) for t, partitions in ends.items() for p in partitions}
    there = {TopicPartition(t, p): max(0, ends[t][p] - begin) for (t, p), begin in begins.items()}
    taken = dict.fromkeys(there, 0)
    left = sum(there.values()) if records is None else records
    for done, at in enumerate(sorted(there, key=lambda at: (there[at], at))):
        share, more = divmod(left, len(there) - done)
        taken[at] = min(there[at], share + bool(more))
        left -= taken[at]
    return {t: {p: begins[t, p] + taken[TopicPartition(t, p)] for p in of} for t, of in ends.items()}
