"""Folds: aggregations that the engine knows, so that it need not call a function for each record.

An aggregation of the DSL is a function of the user, which can do anything. Some are ours: a count, a sum. Such a node names
its fold beside its function; both give the same, and the engine may take either (``millstream.core.engine.folding``).

What a fold does is written down once, as its *recipe*: the functions of records are made of it, and the engine's own way
takes its step.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Final

from millstream.core.model import means, serdes
from millstream.core.model.serdes import Serde


class Fold(Enum):
    """What a known aggregation does with the aggregate so far and the next value."""

    COUNT = "count"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    MEAN = "mean"


@dataclass(frozen=True)
class Recipe:
    """How a fold is computed.

    Attributes:
        step: The aggregate so far and the next value to the new aggregate.
        aggregator: The same as a function of key, value and aggregate.
        join: The aggregates of two sets of records to that of both.
        zero: The aggregate of no records; None if there is none: then that of one record is its value.
    """

    step: Callable[[Any, Any], Any]
    aggregator: Callable[[Any, Any, Any], Any]
    join: Callable[[Any, Any], Any]
    zero: Any = None

    @property
    def initializer(self) -> Callable[[], Any] | None:
        """What makes the first aggregate of a key, None if its first value does."""
        return None if self.zero is None else partial(_given, self.zero)

    @property
    def merger(self) -> Callable[[Any, Any, Any], Any]:
        """The join as a function of key and two aggregates."""
        return partial(_merged, self.join)


def plus_one(key: object, value: object, count: int) -> int:
    """Count one more."""
    return count + 1


def _one_more(count: int, value: object) -> int:
    return count + 1


def _given(zero: Any) -> Any:
    return zero


def _aggregated(step: Callable[[Any, Any], Any], key: object, value: Any, so_far: Any) -> Any:
    return step(so_far, value)


def _merged(join: Callable[[Any, Any], Any], key: object, one: Any, other: Any) -> Any:
    return join(one, other)


RECIPES: Final[Mapping[Fold, Recipe]] = {
    Fold.COUNT: Recipe(_one_more, plus_one, operator.add, 0),
    Fold.SUM: Recipe(operator.add, partial(_aggregated, operator.add), operator.add),
    Fold.MIN: Recipe(min, partial(_aggregated, min), min),
    Fold.MAX: Recipe(max, partial(_aggregated, max), max),
    Fold.MEAN: Recipe(means.with_one, partial(_aggregated, means.with_one), means.joined, means.NONE),
}


def kept_with(fold: Fold, value: Serde[Any]) -> Serde[Any]:
    """Return the serde of a fold's aggregates, of that of its values."""
    own: Mapping[Fold, Serde[Any]] = {Fold.COUNT: serdes.int64, Fold.MEAN: means.serde}
    return own.get(fold, value)


def fits_always(fold: Fold | None) -> bool:
    """Tell whether every aggregate fits its serde."""
    return fold in (Fold.COUNT, Fold.MEAN)
