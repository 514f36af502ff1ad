"""Bounds: the end of a bounded run, that is, how far it reads the external topics."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.core.model.ids import TopicPartition
from millstream.core.model.positions import Offsets


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
    begins = {(t, p): positions.get(t, {}).get(p, 0) for t, partitions in ends.items() for p in partitions}
    available = {TopicPartition(t, p): max(0, ends[t][p] - begin) for (t, p), begin in begins.items()}
    taken = dict.fromkeys(available, 0)
    left = sum(available.values()) if records is None else records
    for done, partition in enumerate(
        sorted(available, key=lambda partition: (available[partition], partition))
    ):
        share, more = divmod(left, len(available) - done)
        taken[partition] = min(available[partition], share + bool(more))
        left -= taken[partition]
    return {t: {p: begins[t, p] + taken[TopicPartition(t, p)] for p in of} for t, of in ends.items()}
