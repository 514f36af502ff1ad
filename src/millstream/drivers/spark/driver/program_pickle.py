"""The pickle of a program: what Spark's workers receive. If it cannot be made, the error names the node, the function and the variable.

A function of the main program, a lambda and a nested function are pickled with the objects that they use, and a lock, a connection or a
client among them cannot be pickled. The exception of pickle says only which type that is. Only then are the parts of the program pickled
one by one, and within a part its members, down to the innermost that cannot be.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping
from types import FunctionType, MethodType
from typing import Final, NamedTuple

from pyspark import cloudpickle

from millstream.core.model.errors import MillstreamError, SettingsError, TopologyError
from millstream.drivers.spark.spec import TopologySpec

_DEPTH: Final = 10
"""How far members of members are searched."""


class _Member(NamedTuple):
    name: str
    value: object


def pickled_program(parts: object, topology: TopologySpec) -> bytes:
    """Return the parts of a query that workers receive, as a pickle.

    Args:
        parts: Contains the topology, and what workers know besides. If the topology can be pickled, and they cannot, pickle's own error is
            raised.

    Raises:
        TopologyError: If a node cannot be pickled.
        SettingsError: If an error handler or a value of ``app_config`` cannot be pickled.
    """
    try:
        pickle: bytes = cloudpickle.dumps(parts)
    except Exception as error:
        explained = _explained(topology)
        if explained is None:
            raise
        raise explained from error
    return pickle


def _explained(topology: TopologySpec) -> MillstreamError | None:
    """Return the error for the first node or setting that cannot be pickled; None if there is none."""
    plan = topology.plan
    for part in (*plan.subtopologies, *plan.global_parts):
        for node in part.nodes.values():
            if (failure := _failure(node)) is not None:
                return TopologyError(f"node {node.name!r} {_reason(node, failure)}")
    settings = {f"app_config[{name!r}]": value for name, value in topology.app_config.items()}
    for name, value in {**settings, "an error policy": topology.policies}.items():
        if (failure := _failure(value)) is not None:
            return SettingsError(f"{name} {_reason(value, failure)}")
    return None


def _failure(value: object) -> Exception | None:
    try:
        cloudpickle.dumps(value)
    except Exception as error:
        return error
    return None


def _reason(whole: object, failure: Exception) -> str:
    path = _path(_Member("it", whole))
    functions = [each.value for each in path if isinstance(each.value, FunctionType | type)]
    place = f"in {_place(functions[-1])}, " if functions else ""
    name, value = path[-1]
    return (
        f"cannot be sent to Spark's workers: {place}{name} is of the type {_type_of(value)}, which cannot be pickled "
        f"({type(failure).__name__}: {failure}). Create such an object where it is used: in init() of a processor, or at the top of "
        "a module that the program imports"
    )


def _path(member: _Member) -> list[_Member]:
    """Return the members that contain each other, from the given one down to the innermost that cannot be pickled."""
    path = [member]
    while len(path) < _DEPTH:
        inner = next((each for each in _members(path[-1].value) if _failure(each.value) is not None), None)
        if inner is None:
            break
        path.append(inner)
    return path


def _members(value: object) -> Iterator[_Member]:
    """Yield the objects that are pickled with an object by value."""
    if isinstance(value, FunctionType):
        used = inspect.getclosurevars(value)
        yield from (_Member(f"its variable {name!r}", each) for name, each in used.nonlocals.items())
        yield from (_Member(f"its global variable {name!r}", each) for name, each in used.globals.items())
        yield from (_Member("a default value", each) for each in value.__defaults__ or ())
        yield from (
            _Member(f"the default value of {n!r}", v) for n, v in (value.__kwdefaults__ or {}).items()
        )
    elif isinstance(value, MethodType):
        yield from (_Member("its object", value.__self__), _Member("its function", value.__func__))
    elif isinstance(value, functools.partial):
        given = [*enumerate(value.args), *value.keywords.items()]
        yield _Member("its function", value.func)
        yield from (_Member(f"the argument {name!r} of functools.partial", each) for name, each in given)
    elif isinstance(value, Mapping):
        yield from (_Member(f"the entry {name!r}", each) for name, each in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from (_Member(f"the item {number}", each) for number, each in enumerate(value))
    else:
        owner = value.__qualname__ if isinstance(value, type) else type(value).__qualname__
        attributes = getattr(value, "__dict__", {}).items()
        yield from (_Member(f"the attribute {name!r} of {owner}", each) for name, each in attributes)


def _type_of(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _place(function: object) -> str:
    name = getattr(function, "__qualname__", repr(function))
    code = getattr(function, "__code__", None)
    return name if code is None else f"{name} ({code.co_filename}, line {code.co_firstlineno})"
