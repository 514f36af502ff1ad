"""Aggregations of grouped streams and tables: the computation, and the records to which it applies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from millstream.core.dsl.graph import STREAM_PARTS, TABLE_PARTS, Graph
from millstream.core.model import means, serdes
from millstream.core.model.expressions import applied, col
from millstream.core.model.means import Sums
from millstream.core.model.serdes import Serde
from millstream.core.topology.folds import RECIPES, Fold, aggregate_serde

MEAN = applied(means.mean_of, col())
"""Computes the mean from its sums, as an expression."""


@dataclass(frozen=True)
class GroupedAggregation:
    """An aggregation of a grouped stream.

    Attributes:
        operation: The word for it in the name of its store.
        initializer: Creates the first aggregate of a key; None uses the first value (reduce).
        aggregator: Maps key, value and aggregate to the new aggregate.
        merger: Maps key and the aggregates of two sessions to the aggregate of both; only for sessions.
    """

    operation: str
    initializer: Callable[[], Any] | None
    aggregator: Callable[[Any, Any, Any], Any]
    value: Serde[Any]
    merger: Callable[[Any, Any, Any], Any] | None = None
    fold: Fold | None = None

    @property
    def kind(self) -> str:
        """The kind of the node in Kafka Streams."""
        return "KSTREAM-REDUCE" if self.initializer is None else "KSTREAM-AGGREGATE"

    @property
    def fits(self) -> bool:
        """Whether every aggregate fits the serde."""
        return self.fold in (Fold.COUNT, Fold.MEAN)


def folding(fold: Fold, value: Serde[Any]) -> GroupedAggregation:
    """Return a built-in aggregation of values with the given serde."""
    recipe = RECIPES[fold]
    return GroupedAggregation(
        fold.value, recipe.initializer, recipe.aggregator, aggregate_serde(fold, value), recipe.merger, fold
    )


def reducing(reducer: Callable[[Any, Any], Any], value: Serde[Any]) -> GroupedAggregation:
    """Return the aggregation that combines values with a function of two values."""

    def merge(key: Any, aggregate: Any, other: Any) -> Any:
        return reducer(aggregate, other)

    return GroupedAggregation("reduce", None, combining(reducer), value, merge)


def combining(combine: Callable[[Any, Any], Any]) -> Callable[[Any, Any, Any], Any]:
    """Return an aggregator that applies a function to the aggregate and the value."""

    def aggregate(key: Any, value: Any, so_far: Any) -> Any:
        return combine(so_far, value)

    return aggregate


def minus_one(key: object, value: object, count: int) -> int:
    """Decrement a count."""
    return count - 1


def without_number(key: object, value: object, sums: Sums) -> Sums | None:
    """Subtract a number from sums."""
    return means.without_one(sums, value)


class Grouping:
    """Grouped records, with the repartition before their aggregations. It is added once, for the first aggregation.

    Args:
        rekeyed: Whether the records must be repartitioned.
        changes: Whether the records are changes of a table.
    """

    def __init__(
        self,
        graph: Graph,
        node: str,
        serdes: tuple[Serde[Any], Serde[Any]],
        *,
        name: str | None,
        rekeyed: bool,
        changes: bool = False,
    ) -> None:
        self.graph = graph
        self.key, self.value = serdes
        self.path = name or graph.path(node, rekeyed=rekeyed)
        self._node = node
        self._name = name
        self._rekeyed = rekeyed
        self._changes = changes
        self._repartition: str | None = None

    @property
    def needs_name(self) -> bool:
        """Whether the next aggregation adds a repartition that has no name in the program."""
        return self._rekeyed and self._repartition is None and self._name is None

    def source(self, store: str) -> str:
        """Return the node to aggregate. A repartition without a name is named after the store."""
        if not self._rekeyed:
            return self._node
        parts = TABLE_PARTS if self._changes else STREAM_PARTS
        if self._repartition is not None:
            self.graph.count_repartition(parts)  # Kafka Streams adds one for each aggregation
            return self._repartition
        self._repartition = self.graph.repartition(
            self._node,
            self._name or store,
            self.key,
            serdes.change(self.value) if self._changes else self.value,
            drop_null_keys=not self._changes,
            kinds=parts,
        )
        return self._repartition
