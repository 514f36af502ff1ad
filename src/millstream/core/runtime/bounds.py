"""Bounds: the end of a bounded run, that is, how far it reads the external topics."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from millstream.core.model.positions import Offsets
from millstream.core.runtime.admission import admit


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
