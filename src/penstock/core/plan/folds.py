"""Folds: aggregations that the engine knows, so that it need not call a function for each record.

An aggregation of the DSL is a function of the user, which can do anything. Some are ours: a count, a sum. Such a node names
its fold beside its function; both give the same, and the engine may take either (``penstock.core.engine.columns``).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final


class Fold(Enum):
    """What a known aggregation does with the aggregate so far and the next value."""

    COUNT = "count"
    SUM = "sum"
    MIN = "min"
    MAX = "max"


STEPS: Final[Mapping[Fold, Callable[[Any, Any], Any]]] = {
    Fold.SUM: operator.add,
    Fold.MIN: min,
    Fold.MAX: max,
}
"""The result so far and the next value to the new result; the first value of a key is taken as it is."""
