"""The options of the methods that read topics. With them, each method has a signature for each combination of serdes that are given."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias, TypedDict

from millstream.core.topology.nodes import OffsetReset, TimestampExtractor
from millstream.core.topology.stores import StoreLike

Topics: TypeAlias = str | Sequence[str] | re.Pattern[str]


class _Reading(TypedDict, total=False):
    timestamp: TimestampExtractor | None
    name: str | None


class StreamReading(_Reading, total=False):
    """The options of ``StreamsBuilder.stream``."""

    offset_reset: OffsetReset | None
    fan_out: bool


class TableReading(StreamReading, total=False):
    """The options of ``StreamsBuilder.table``."""

    store: StoreLike | None


class GlobalTableReading(_Reading, total=False):
    """The options of ``StreamsBuilder.global_table``."""

    store: StoreLike | None
