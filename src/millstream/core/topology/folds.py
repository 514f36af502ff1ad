"""Folds: built-in aggregations that the engine can compute without a function call per record.

The node of a built-in aggregation, such as count or sum, names its fold in addition to its function. Both have the same result, and the
engine may use either (``millstream.core.engine.operators.aggregations``). A fold is defined once, by its *recipe*.
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
    """The built-in aggregations."""

    COUNT = "count"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    MEAN = "mean"


@dataclass(frozen=True)
class Recipe:
    """Functions that compute a fold.

    Attributes:
        step: Maps the current aggregate and the next value to the new aggregate.
        aggregator: The step as a function of key, value and aggregate.
        join: Maps the aggregates of two sets of records to the aggregate of both.
        combine: Maps the values of two records to a value that stands for both; None if values make no difference.
        step_of_several: As ``step``, for the value of several records and their number; None if the number makes no difference.
        zero: The aggregate of no records. None if there is none; the aggregate of one record is then its value.
    """

    step: Callable[[Any, Any], Any]
    aggregator: Callable[[Any, Any, Any], Any]
    join: Callable[[Any, Any], Any]
    combine: Callable[[Any, Any], Any] | None
    step_of_several: Callable[[Any, tuple[Any, int]], Any] | None = None
    zero: Any = None

    @property
    def initializer(self) -> Callable[[], Any] | None:
        """Creates the first aggregate of a key; None if the first value of the key is the first aggregate."""
        return None if self.zero is None else partial(_initial, self.zero)

    @property
    def merger(self) -> Callable[[Any, Any, Any], Any]:
        """The join as a function of a key and two aggregates."""
        return partial(_merged, self.join)


def plus_one(key: object, value: object, count: int) -> int:
    return count + 1


def _one_more(count: int, value: object) -> int:
    return count + 1


def _several_more(count: int, several: tuple[object, int]) -> int:
    return count + several[1]


def _initial(zero: Any) -> Any:
    return zero


def _aggregated(step: Callable[[Any, Any], Any], key: object, value: Any, aggregate: Any) -> Any:
    return step(aggregate, value)


def _merged(join: Callable[[Any, Any], Any], key: object, aggregate: Any, other: Any) -> Any:
    return join(aggregate, other)


RECIPES: Final[Mapping[Fold, Recipe]] = {
    Fold.COUNT: Recipe(_one_more, plus_one, operator.add, None, _several_more, 0),
    Fold.SUM: Recipe(operator.add, partial(_aggregated, operator.add), operator.add, operator.add),
    Fold.MIN: Recipe(min, partial(_aggregated, min), min, min),
    Fold.MAX: Recipe(max, partial(_aggregated, max), max, max),
    Fold.MEAN: Recipe(
        means.with_one,
        partial(_aggregated, means.with_one),
        means.combined_sums,
        operator.add,
        means.with_several,
        means.NONE,
    ),
}


def aggregate_serde(fold: Fold, value: Serde[Any]) -> Serde[Any]:
    own: Mapping[Fold, Serde[Any]] = {Fold.COUNT: serdes.int64, Fold.MEAN: means.serde}
    return own.get(fold, value)
