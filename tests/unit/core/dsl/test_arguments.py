"""Methods that build a topology refuse None, and arguments that are not callable, at the call.

The cases are derived from the signatures, so they cover a new method, parameter or function of the public API automatically. Each
parameter whose annotation excludes None is passed None, and the message must name the parameter.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

import millstream as ms
from millstream.core import dsl
from millstream.core.model import serdes as core_serdes
from millstream.core.model.errors import ArgumentError, TopologyError

INTERNAL = ("Graph", "Names", "Printing", "change", "never_null")
"""Names in these modules that are not public."""


STORE = ms.stores.key_value("store", ms.serdes.string, ms.serdes.string)


class Case(NamedTuple):
    """A parameter that does not take None."""

    function: Callable[..., Any]
    owner: type | None
    parameter: str

    def __str__(self) -> str:
        return f"{self.function.__qualname__}-{self.parameter}"


def classes() -> Iterator[type]:
    """Yield the classes that topologies are built with."""
    for found in pkgutil.iter_modules(dsl.__path__):
        module = importlib.import_module(f"{dsl.__name__}.{found.name}")
        own = (
            cls
            for cls in vars(module).values()
            if isinstance(cls, type) and cls.__module__ == module.__name__
        )
        yield from (
            cls
            for cls in own
            if not (issubclass(cls, tuple) or cls.__name__ in INTERNAL or cls.__name__[0] == "_")
        )
    yield from (ms.Topology, ms.Suppressed, ms.EmitStrategy)


def functions() -> Iterator[tuple[Callable[..., Any], type | None]]:
    for cls in classes():
        for name, member in inspect.getmembers_static(cls):
            plain = member.__func__ if isinstance(member, (staticmethod, classmethod)) else member
            if inspect.isfunction(plain) and not name.startswith("_"):
                yield plain, None if isinstance(member, staticmethod) else cls
    own = (
        each
        for each in vars(ms.serdes).values()
        if inspect.isfunction(each) and each.__module__ in (ms.serdes.__name__, core_serdes.__name__)
    )
    for function in own:
        returns = str(inspect.signature(function).return_annotation)
        public = function.__name__[0] != "_" and function.__name__ not in INTERNAL
        if public and returns.startswith("Serde"):
            yield function, None
    for name in (
        "StreamsBuilder",
        "JoinWindows",
        "TumblingWindows",
        "HoppingWindows",
        "SessionWindows",
        "SlidingWindows",
        "UnlimitedWindows",
        "Serde",
    ):
        cls = getattr(ms, name)
        yield cls.__init__, cls
    for name in ("key_value", "lru", "window", "session", "versioned", "options"):
        cls = getattr(ms.stores, name)
        yield cls.__init__, cls


def members(annotation: str) -> list[str]:
    """Split a union at the bars outside of brackets."""
    parts, depth = [""], 0
    for letter in annotation:
        depth += (letter in "[(") - (letter in "])")
        if letter == "|" and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def admits_none(annotation: str) -> bool:
    return any(
        part in ("None", "Any", "object") or re.fullmatch("[A-Z][0-9]?", part) for part in members(annotation)
    )


def cases() -> Iterator[Case]:
    for function, owner in functions():
        for name, parameter in list(inspect.signature(function).parameters.items()):
            if name in ("self", "cls") or parameter.kind is inspect.Parameter.VAR_KEYWORD:
                continue
            if not admits_none(str(parameter.annotation)):
                yield Case(function, owner, name)


CASES = list(dict.fromkeys(cases()))


def valid_argument(annotation: str) -> object:
    """Return a valid value for a parameter with this annotation."""
    first = members(annotation)[0]
    examples = {
        "str": "x",
        "Serde": ms.serdes.string,
        "StoreSpec": STORE,
        "Callable": print,
        "int": 1,
        "bool": True,
    }
    for handle in (ms.KStream, ms.KTable, ms.KGroupedStream):
        examples[handle.__name__] = handle.__new__(handle)
    return next((each for start, each in examples.items() if first.startswith(start)), object())


def concrete(owner: type) -> type:
    """Return the class, or its first concrete subclass."""
    return concrete(owner.__subclasses__()[0]) if inspect.isabstract(owner) else owner


def call(case: Case, value: object) -> None:
    """Call with this value for the parameter, and with valid values for the other required parameters."""
    owner = None if case.owner is None else concrete(case.owner)
    args: list[object] = [] if owner is None else [owner.__new__(owner)]
    kwargs: dict[str, object] = {}
    for name, parameter in inspect.signature(case.function).parameters.items():
        if name in ("self", "cls") or parameter.kind is inspect.Parameter.VAR_KEYWORD:
            continue
        argument = value if name == case.parameter else valid_argument(str(parameter.annotation))
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            args.extend([argument] if name == case.parameter else [])
        elif parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            if name == case.parameter or parameter.default is inspect.Parameter.empty:
                kwargs[name] = argument
        elif name == case.parameter or parameter.default is inspect.Parameter.empty:
            args.append(argument)
        else:
            args.append(parameter.default)
    case.function(*args, **kwargs)


def test_the_cases_cover_every_kind_of_method() -> None:
    assert len(CASES) > 220
    assert {"filter", "aggregate", "add_sink", "of", "windowed_by", "cogroup"} <= {
        c.function.__name__ for c in CASES
    }


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_message_for_none_names_the_parameter(case: Case) -> None:
    with pytest.raises(ArgumentError, match=rf"{case.parameter} must .*None"):
        call(case, None)


FUNCTIONS = [
    case
    for case in CASES
    if all(
        member.startswith("Callable")
        for member in members(str(inspect.signature(case.function).parameters[case.parameter].annotation))
    )
]


@pytest.mark.parametrize("case", FUNCTIONS, ids=str)
def test_a_value_that_is_not_callable_is_rejected(case: Case) -> None:
    with pytest.raises(ArgumentError, match=rf"{case.parameter} must be callable, not 5"):
        call(case, 5)


USES: dict[str, Callable[[ms.KStream[str, str]], object]] = {
    "initializer": lambda s: s.group_by_key().aggregate(None, lambda k, v, a: a),  # type: ignore[arg-type]
    "predicates": lambda s: s.branch(lambda k, v: True, None),  # type: ignore[arg-type]
    "predicate": lambda s: s.split().branch(None),  # type: ignore[arg-type]
    "windows": lambda s: s.group_by_key().windowed_by(None),  # type: ignore[call-overload]
    "other": lambda s: s.merge("stream"),  # type: ignore[arg-type]
    "mapper": lambda s: s.map_values(None),  # type: ignore[arg-type, call-overload]
    "topic": lambda s: s.to(None),  # type: ignore[arg-type]
    "key": lambda s: s.to("out", key="string"),  # type: ignore[arg-type]
    "name": lambda s: s.filter(lambda k, v: True, name=5),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("parameter", USES)
def test_an_invalid_argument_is_rejected_by_the_call_that_passes_it(parameter: str) -> None:
    with pytest.raises(TopologyError, match=f"{parameter} must "):
        USES[parameter](ms.StreamsBuilder().stream("in"))


def test_a_missing_argument_raises_the_type_error_of_python() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'predicate'"):
        ms.StreamsBuilder().stream("in").filter()  # type: ignore[call-arg]


def identity(*args: Any) -> Any:
    return args[-1]


class Quiet(ms.Processor[Any, Any, Any, Any]):
    def process(self, record: ms.Record[Any, Any]) -> None: ...


def failing() -> Quiet:
    raise LookupError("no such thing")


WRONG: dict[str, tuple[Callable[[ms.StreamsBuilder], object], str]] = {
    "a topic": (lambda b: b.stream(5), "topic must be str or Pattern or a list of str, not 5"),  # type: ignore[call-overload]
    "topics": (lambda b: b.stream(["a", 5]), r"topic must be str or .*, not \['a', 5\]"),  # type: ignore[list-item]
    "a pattern": (
        lambda b: b.stream(re.compile(b"in.*")),  # type: ignore[call-overload]
        "the names of topics are str, but .* matches bytes",
    ),
    "partitions in text": (
        lambda b: b.stream("in").repartition(partitions="4"),  # type: ignore[arg-type]
        "KStream.repartition: partitions must be int or None, not '4'",
    ),
    "half a partition": (
        lambda b: b.stream("in").repartition(partitions=2.5),  # type: ignore[arg-type]
        "partitions must be int or None, not 2.5",
    ),
    "a table and a global table": (
        lambda b: b.table("in").join(b.global_table("all"), identity),  # type: ignore[call-overload]
        r"KTable.join: other must be KTable, not a GlobalKTable; .*join table.to_stream\(\) with it",
    ),
    "a stream and a grouped stream": (
        lambda b: b.stream("in").join(b.stream("a").group_by_key(), identity),  # type: ignore[call-overload]
        "KStream.join: other must be KTable or GlobalKTable or KStream, not a KGroupedStream; aggregate",
    ),
    "a table and a stream": (
        lambda b: b.table("in").join(b.stream("a"), identity),  # type: ignore[call-overload]
        r"KTable.join: other must be KTable, not a KStream; to_table\(\)",
    ),
    "a stream merged with a table": (
        lambda b: b.stream("in").merge(b.table("a")),  # type: ignore[arg-type]
        r"KStream.merge: other must be KStream, not a KTable; to_stream\(\)",
    ),
    "a stream in a cogroup": (
        lambda b: b.stream("in").group_by_key().cogroup(identity).cogroup(b.stream("a"), identity),  # type: ignore[arg-type]
        r"cogroup: grouped must be KGroupedStream, not a KStream; .*group_by_key\(\)",
    ),
    "a function in place of a supplier": (
        lambda b: b.stream("in").process(lambda record: None),  # type: ignore[arg-type, misc]
        r"supplier: '.*<lambda>' is called without arguments, but it takes \(record\)$",
    ),
    "a supplier that fails": (
        lambda b: b.stream("in").process(failing),
        "'in-process': its supplier, which is called without arguments, failed: LookupError: no such thing",
    ),
    "a specification for the result of an operator": (
        lambda b: b.stream("in").group_by_key().count(store=STORE),  # type: ignore[arg-type]
        r"KGroupedStream.count: store must be str or StoreOptions or None, not KeyValueSpec.*ms.stores.options\(name",
    ),
    "a specification for a processor": (
        lambda b: b.stream("in").process(Quiet, stores=[STORE]),  # type: ignore[list-item]
        r"KStream.process: stores must be a list of str, not \[KeyValueSpec.*; .*a processor the names of stores that add_state_store",
    ),
    "a name in place of names": (
        lambda b: b.stream("in").process(Quiet, stores="seen"),
        r"KStream.process: stores must be a list of str, not 'seen'; write \['seen'\]",
    ),
    "a name in place of names, for a transformer": (
        lambda b: b.table("in").transform_values(ms.ValueTransformer, stores="seen"),
        r"KTable.transform_values: stores must be a list of str, not 'seen'; write \['seen'\]",
    ),
    "text in place of bool": (
        lambda b: ms.stores.options("s", cache="no"),  # type: ignore[arg-type]
        "StoreOptions: cache must be bool, not 'no'",
    ),
}


@pytest.mark.parametrize(("build", "message"), WRONG.values(), ids=WRONG.keys())
def test_the_message_for_an_invalid_argument_says_what_to_do(
    build: Callable[[ms.StreamsBuilder], object], message: str
) -> None:
    with pytest.raises(TopologyError, match=message):
        build(ms.StreamsBuilder())


def test_store_names_may_be_any_iterable() -> None:
    for stores in (["store"], ("store",), {"store"}, {"store": 1}, iter(["store"])):
        builder = ms.StreamsBuilder().add_state_store(STORE)
        builder.stream("in").process(Quiet, stores=stores)
        builder.build()
