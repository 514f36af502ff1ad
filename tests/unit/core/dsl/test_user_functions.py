"""Functions of users are checked when the topology is built: initializers, kinds of functions, numbers of parameters."""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Callable
from decimal import Decimal
from typing import Any, TypeAlias

import pytest

import millstream as ms
from millstream.core.model.errors import ProcessingError, TopologyError

InitializerUse: TypeAlias = Callable[[ms.StreamsBuilder, Callable[[], Any]], object]
WINDOWS = ms.TumblingWindows(10, grace=0)
SESSIONS = ms.SessionWindows(10, grace=0)


async def coroutine(*args: Any) -> bool:
    return False


async def asynchronous_generator(*args: Any) -> Any:
    yield False


def generator(*args: Any) -> Any:
    yield False


class AsyncObject:
    async def __call__(self, *args: Any) -> bool:
        return False


class Sizes(enum.Enum):
    SMALL = 1


class Basket:
    """A class without its own comparison."""


def grouped(builder: ms.StreamsBuilder) -> ms.KGroupedStream[Any, Any]:
    return builder.stream("in").group_by_key()


def cogrouped(builder: ms.StreamsBuilder) -> ms.CogroupedKStream[Any, Any]:
    return grouped(builder).cogroup(lambda k, v, a: a)


INITIALIZERS: dict[str, InitializerUse] = {
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
    def test_must_create_an_aggregate_for_each_key(self, use: InitializerUse) -> None:
        shared: list[str] = []
        with pytest.raises(TopologyError, match="the initializer returns the same list at each call"):
            use(ms.StreamsBuilder(default_value_serde=ms.serdes.json), lambda: shared)
        use(ms.StreamsBuilder(default_value_serde=ms.serdes.json), list)

    @pytest.mark.parametrize("constant", [0, "", (), None, frozenset(), True, 1.5, Decimal("1"), Sizes.SMALL])
    def test_may_return_the_same_immutable_object(self, constant: object) -> None:
        grouped(ms.StreamsBuilder()).aggregate(lambda: constant, lambda k, v, a: a, value=ms.serdes.pickle)

    @pytest.mark.parametrize("shared", [{}, ([],), bytearray(), Basket()])
    def test_may_not_return_the_same_mutable_object(self, shared: object) -> None:
        with pytest.raises(TopologyError, match="all keys would share one aggregate"):
            grouped(ms.StreamsBuilder()).aggregate(lambda: shared, lambda k, v, a: a, value=ms.serdes.pickle)

    def test_may_return_the_same_object_if_the_serde_declares_it_immutable(self) -> None:
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


def table(builder: ms.StreamsBuilder) -> ms.KTable[Any, Any]:
    return builder.table("rows")


def last(*args: Any) -> Any:
    return args[-1]


FunctionUse: TypeAlias = Callable[[ms.StreamsBuilder, Any], object]
PLAIN: dict[str, FunctionUse] = {
    "filter": lambda b, f: b.stream("in").filter(f),
    "filter_not": lambda b, f: b.stream("in").filter_not(f),
    "branch": lambda b, f: b.stream("in").branch(f),
    "split": lambda b, f: b.stream("in").split().branch(f),
    "map": lambda b, f: b.stream("in").map(f),
    "map_values": lambda b, f: b.stream("in").map_values(f),
    "select_key": lambda b, f: b.stream("in").select_key(f),
    "peek": lambda b, f: b.stream("in").peek(f),
    "foreach": lambda b, f: b.stream("in").foreach(f),
    "print": lambda b, f: b.stream("in").print(text=f),
    "group_by": lambda b, f: b.stream("in").group_by(f),
    "topic": lambda b, f: b.stream("in").to(f),
    "timestamp": lambda b, f: b.stream("in", timestamp=f),
    "reducer": lambda b, f: grouped(b).reduce(f),
    "windowed reducer": lambda b, f: grouped(b).windowed_by(WINDOWS).reduce(f),
    "session reducer": lambda b, f: grouped(b).windowed_by(SESSIONS).reduce(f),
    "initializer": lambda b, f: grouped(b).aggregate(f, last),
    "aggregator": lambda b, f: grouped(b).aggregate(str, f),
    "merger": lambda b, f: grouped(b).windowed_by(SESSIONS).aggregate(str, last, f),
    "cogroup": lambda b, f: grouped(b).cogroup(f),
    "late": lambda b, f: grouped(b).windowed_by(WINDOWS, late=f),
    "joiner with a table": lambda b, f: b.stream("in").join(table(b), f),
    "joiner with a stream": lambda b, f: b.stream("in").join(
        b.stream("rows"), f, windows=ms.JoinWindows(1, 1, grace=0)
    ),
    "joiner with an earlier record": lambda b, f: b.stream("in").join_prior(
        b.stream("rows"), f, windows=ms.JoinWindows(1, 0, grace=0)
    ),
    "selector of a global table": lambda b, f: b.stream("in").join(b.global_table("rows"), f, last),
    "joiner with a global table": lambda b, f: b.stream("in").left_join(b.global_table("rows"), last, f),
    "joiner of tables": lambda b, f: table(b).outer_join(b.table("in"), f),
    "joiner by a foreign key": lambda b, f: table(b).join(b.table("in"), f, on=last),
    "foreign key": lambda b, f: table(b).left_join(b.table("in"), last, on=f),
    "filter of a table": lambda b, f: table(b).filter(f),
    "map_values of a table": lambda b, f: table(b).map_values(f),
    "group_by of a table": lambda b, f: table(b).group_by(f),
    "adder": lambda b, f: table(b).group_by(last).reduce(f, last),
    "subtractor": lambda b, f: table(b).group_by(last).reduce(last, f),
    "to_stream": lambda b, f: table(b).to_stream(f),
    "supplier": lambda b, f: b.stream("in").process(f),
}
ITERABLE: dict[str, FunctionUse] = {
    "flat_map": lambda b, f: b.stream("in").flat_map(f),
    "flat_map_values": lambda b, f: b.stream("in").flat_map_values(f),
    "partitioner": lambda b, f: b.stream("in").to("out", partitioner=f),
    "partitioner of a repartition": lambda b, f: b.stream("in").repartition(partitioner=f),
}
USES = {**PLAIN, **ITERABLE}


class TestKinds:
    """A call of a coroutine function or of a generator function returns no usable result."""

    @pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
    @pytest.mark.parametrize("function", [coroutine, functools.partial(coroutine), AsyncObject()])
    def test_coroutine_functions_are_refused(self, use: FunctionUse, function: Any) -> None:
        with pytest.raises(
            TopologyError, match="is a coroutine function, which this operator would not await"
        ):
            use(ms.StreamsBuilder(), function)

    @pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
    def test_asynchronous_generators_are_refused(self, use: FunctionUse) -> None:
        with pytest.raises(
            TopologyError, match="'asynchronous_generator' is an asynchronous generator function"
        ):
            use(ms.StreamsBuilder(), asynchronous_generator)

    @pytest.mark.parametrize("use", PLAIN.values(), ids=PLAIN.keys())
    def test_generator_functions_are_refused(self, use: FunctionUse) -> None:
        with pytest.raises(
            TopologyError, match="'generator' is a generator function, so a call returns a generator"
        ):
            use(ms.StreamsBuilder(), generator)

    @pytest.mark.parametrize("use", ITERABLE.values(), ids=ITERABLE.keys())
    def test_generator_functions_are_accepted_where_iterables_are_expected(self, use: FunctionUse) -> None:
        use(ms.StreamsBuilder(), generator)

    @pytest.mark.parametrize("operator", ["map_values_async", "foreach_async", "process_async"])
    @pytest.mark.parametrize("function", [generator, asynchronous_generator])
    def test_asynchronous_operators_accept_only_plain_functions_and_coroutine_functions(
        self, operator: str, function: Any
    ) -> None:
        use = getattr(ms.StreamsBuilder().stream("in"), operator)
        use(last, name="plain")
        use(coroutine, name="coroutine")
        with pytest.raises(TopologyError, match="generator function, so a call returns a generator"):
            use(function)

    def test_windows_for_may_be_a_generator_but_no_coroutine_function(self) -> None:
        class Plain(ms.Windows):
            def windows_for(self, timestamp: int) -> Any:
                yield (0, 10)

        class Asynchronous(ms.Windows):
            async def windows_for(self, timestamp: int) -> Any:  # type: ignore[override]
                return []

        grouped(ms.StreamsBuilder()).windowed_by(Plain(10, 0)).count()
        with pytest.raises(TopologyError, match="windows_for' is a coroutine function"):
            grouped(ms.StreamsBuilder()).windowed_by(Asynchronous(10, 0)).count()


class TestArguments:
    """The number of parameters is checked where the function is passed."""

    @pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
    def test_too_many_parameters_are_refused(self, use: FunctionUse) -> None:
        with pytest.raises(
            TopologyError, match=r"called (with \(.*\)|without arguments), but it takes \(a, b, c, d, e\)"
        ):
            use(ms.StreamsBuilder(), lambda a, b, c, d, e: a)

    @pytest.mark.parametrize("use", [use for name, use in USES.items() if name != "supplier"])
    @pytest.mark.parametrize("function", [last, min, print, dict])
    def test_functions_with_arbitrary_parameters_are_accepted(self, use: FunctionUse, function: Any) -> None:
        use(ms.StreamsBuilder(), function)

    @pytest.mark.parametrize(
        "use", [PLAIN["map_values"], PLAIN["map_values of a table"], ITERABLE["flat_map_values"]]
    )
    def test_a_key_parameter_requires_with_key(self, use: FunctionUse) -> None:
        with pytest.raises(
            TopologyError, match=r"called with \(value\), but it takes \(k, v\); set with_key=True"
        ):
            use(ms.StreamsBuilder(), lambda k, v: v)

    def test_with_key_requires_a_key_parameter(self) -> None:
        with pytest.raises(TopologyError, match=r"but it takes \(v\); leave with_key=True out"):
            ms.StreamsBuilder().stream("in").map_values(lambda v: v, with_key=True)  # type: ignore[call-overload]

    def test_the_message_names_the_method_and_the_parameter(self) -> None:
        with pytest.raises(
            TopologyError,
            match=r"^KStream.filter: predicate: '.*<lambda>' is called with \(key, value\), but it takes \(v\)$",
        ):
            ms.StreamsBuilder().stream("in").filter(lambda v: True)  # type: ignore[arg-type, misc]

    def test_a_class_with_parameters_is_refused_as_a_supplier(self) -> None:
        class Adding(ms.Processor[Any, Any, Any, Any]):
            def __init__(self, amount: int) -> None: ...

            def process(self, record: ms.Record[Any, Any]) -> None: ...

        with pytest.raises(
            TopologyError,
            match=r"called without arguments, but it takes \(amount\); pass `lambda: Adding\(...\)`",
        ):
            ms.StreamsBuilder().stream("in").process(Adding)
