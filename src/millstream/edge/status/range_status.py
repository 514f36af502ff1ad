"""The status of a key range."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class RangeStatus:
    """What a key range is doing.

    Attributes:
        number: Its number in its partition group, from 0.
        of: Into how many ranges the group is divided.
        first_hash: The first hash of its keys.
        end_hash: The first hash behind them.
        positions: By partition, as ``topic-partition``, the offset before which it has processed everything.
        lag: Records of these partitions, of all ranges, behind that.
        records_per_s: Records that it has processed per second, over the last ten seconds.
        busy: Share of the last ten seconds that its tasks took on executors.
        state_bytes: Bytes of the log of its stores.
        placed: Host and executor on which it ran last.
    """

    number: int
    of: int
    first_hash: int
    end_hash: int
    positions: Mapping[str, int]
    lag: int
    records_per_s: float
    busy: float
    state_bytes: int
    placed: str
