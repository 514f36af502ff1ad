"""Functions of users are checked when the topology is built: initializers, kinds of functions, numbers of parameters."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from decimal import Decimal
from typing import Any, TypeAlias

import pytest

import millstream as ms
from millstream.core.model.errors import ProcessingError, TopologyError

Initializing: TypeAlias = Callable[[ms.StreamsBuilder, Callable[[], Any]], object]
WINDOWS = ms.TumblingWindows(10, grace=0)
SESSIONS = ms.SessionWindows(10, grace=0)


class Sizes(enum.Enum):
    SMALL = 1


class Basket:
    """An object of a class without a comparison of its own."""


def grouped(builder: ms.StreamsBuilder) -> ms.KGroupedStream[Any, Any]:
    return builder.stream("in").group_by_key()


def cogrouped(builder: ms.StreamsBuilder) -> ms.CogroupedKStream[Any, Any]:
    return grouped(builder).cogroup(lambda k, v, a: a)


INITIALIZERS: dict[str, Initializing] = {
    "per key": lambda b, new: grouped(b).aggregate(new, lambda k, v, a: a),
    "per window": lambda b, new: grouped(b).windowed_by(WINDOWS).aggregate(new, lambda k, v, a: a),
    "per session": lambda b, new: (
        grouped(b).windowed_by(SESSIONS).aggregate(new, lambda k, v, a: a, lambda k, a, c: a)
    ),
    "of a table": lambda b, new: (
        b.table("in").group_by(lambda k, v: (k, v)).aggregate(new, lambda k, v, a: a, lambda k, v, a: a)
    ),
    "of a cogroup": lambda b, new: cogrouped(b).aggregate(new),
    "of a cogroup per window": lambda b, new: cogrouped(b).windowed_by(WINDOWS).aggregate(new),
    "of a cogroup per session": lambda b, new: (
        cogrouped(b).windowed_by(SESSIONS).aggregate(new, lambda k, a, c: a)
    ),
}


class TestInitializers:
    """An initializer is called twice when the topology is built, to check that keys do not share an aggregate."""

    @pytest.mark.parametrize("use", INITIALIZERS.values(), ids=INITIALIZERS.keys())
    def test_create_an_aggregate_for_each_key(self, use: Initializing) -> None:
        shared: list[str] = []
        with pytest.raises(TopologyError, match="the initializer returns the same list at each call"):
            use(ms.StreamsBuilder(default_value_serde=ms.serdes.json), lambda: shared)
        use(ms.StreamsBuilder(default_value_serde=ms.serdes.json), list)

    @pytest.mark.parametrize("constant", [0, "", (), None, frozenset(), True, 1.5, Decimal("1"), Sizes.SMALL])
    def test_may_return_one_object_that_cannot_change(self, constant: object) -> None:
        grouped(ms.StreamsBuilder()).aggregate(lambda: constant, lambda k, v, a: a, value=ms.serdes.pickle)

    @pytest.mark.parametrize("shared", [{}, ([],), bytearray(), Basket()])
    def test_may_not_return_one_object_that_can_change(self, shared: object) -> None:
        with pytest.raises(TopologyError, match="all keys would share one aggregate"):
            grouped(ms.StreamsBuilder()).aggregate(lambda: shared, lambda k, v, a: a, value=ms.serdes.pickle)

    def test_may_return_one_object_that_the_serde_calls_immutable(self) -> None:
        frozen = dataclasses.replace(ms.serdes.pickle, immutable=True)
        basket = Basket()
        grouped(ms.StreamsBuilder()).aggregate(lambda: basket, lambda k, v, a: a, value=frozen)

    def test_fail_with_the_record_that_needs_an_aggregate(self) -> None:
        builder = ms.StreamsBuilder()
        builder.stream("in").group_by_key().aggregate(
            lambda: {}["x"], lambda k, v, a: a, value=ms.serdes.json
        )
        driver = ms.testing.TopologyTestDriver(builder.build())
        with pytest.raises(ProcessingError, match="KeyError: 'x'"):
            driver.pipe("in", "k", "v")
