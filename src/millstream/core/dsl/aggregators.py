"""Aggregations as functions of key, value and aggregate, for streams and tables alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millstream.core.model import means
from millstream.core.model.means import Sums


def minus_one(key: object, value: object, count: int) -> int:
    """Count one less."""
    return count - 1


def without_one(key: object, value: object, sums: Sums) -> Sums | None:
    """Take a number out of sums."""
    return means.without_one(sums, value)


def merging(combine: Callable[[Any, Any], Any]) -> Callable[[Any, Any, Any], Any]:
    """Make a merger of a function of two results."""

    def merge(key: Any, one: Any, other: Any) -> Any:
        return combine(one, other)

    return merge


def combining(combine: Callable[[Any, Any], Any]) -> Callable[[Any, Any, Any], Any]:
    """Make an aggregator of a function of the result so far and the next value."""

    def aggregate(key: Any, value: Any, so_far: Any) -> Any:
        return combine(so_far, value)

    return aggregate


def kind_of(initializer: Callable[[], Any] | None) -> str:
    """Give what Kafka Streams calls the nodes of an aggregation of a stream, by whether it begins with a value of its own."""
    return "KSTREAM-REDUCE" if initializer is None else "KSTREAM-AGGREGATE"
