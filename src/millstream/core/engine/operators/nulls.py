"""Nulls: what aggregations do with records that have no key or no value.

Without windows, and in sliding windows, they are left out. In other windows and in sessions, as in Kafka Streams, only records
without a key are: a count counts a record without a value, a function of the user gets None. A sum, a minimum, a maximum and a
mean, which Kafka Streams does not have, have no use for None, so there too such a record is left out, as if it had not come.
"""

from __future__ import annotations

from typing import Any, Final

from millstream.core.engine.compile import Call
from millstream.core.engine.runtime import Runtime
from millstream.core.model.record import Headers
from millstream.core.topology.folds import Fold

INCOMPLETE: Final = "null key or value in an aggregation"
"""Why a record is left out that has no key or no value."""
NO_KEY: Final = "null key in a windowed aggregation"
"""Why a record is left out that has no key."""


def takes_null_values(fold: Fold | None) -> bool:
    """Tell whether an aggregation by window or session takes records without a value."""
    return fold is None or fold is Fold.COUNT


def without_null_values(runtime: Runtime, aggregate: Call) -> Call:
    """Give the function of an aggregation as one that leaves out records without a value."""

    def with_value(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if value is None and key is not None:
            return runtime.drop(INCOMPLETE)
        return aggregate(key, value, timestamp, headers)

    return with_value
