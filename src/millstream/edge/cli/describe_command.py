"""``millstream describe``: shows a topology as text or as a picture, without a broker, Spark or Java.

A target has the form ``module:attribute``, such as ``examples.wordcount:topology``. Modules are also found in the working directory. The
attribute may be a topology, a builder, a function without parameters that returns one of these, or an application, whose id then names
the internal topics.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, Final

from millstream.core.dsl.builder import StreamsBuilder
from millstream.core.model.errors import MillstreamError
from millstream.core.topology import describe, drawing
from millstream.core.topology.plan import Plan
from millstream.core.topology.topology import Topology

FORMATS: Mapping[str, Callable[[Plan], str]] = {
    "text": describe.text,
    "mermaid": drawing.mermaid,
    "dot": drawing.dot,
    "svg": drawing.svg,
    "plan": str,
}
"""The functions that show a plan, by format."""

_EXPECTED: Final = "it should be a Topology, a StreamsBuilder, an Application, or a function without parameters that returns one"


class TargetError(MillstreamError):
    """The target does not exist or is not a topology."""


def described(target: str, form: str) -> str:
    """Describe a target.

    Raises:
        TargetError: If the module, the attribute or the format does not exist, or the attribute is not a topology.
    """
    if form not in FORMATS:
        raise TargetError(f"there is no format {form!r}; the formats are {', '.join(FORMATS)}")
    return FORMATS[form](_plan_of(load(target), target))


def load(target: str) -> Any:
    """Import a module, and return one of its attributes.

    Args:
        target: ``module:attribute``; the attribute may contain dots.

    Raises:
        TargetError: If the module or the attribute does not exist.
    """
    module_name, colon, attribute = target.partition(":")
    if (
        not (module_name and colon and attribute)
        or module_name.startswith(".")
        or module_name.endswith(".py")
    ):
        raise TargetError(
            f"{target!r} does not name an object: write MODULE:ATTRIBUTE, such as examples.wordcount:topology"
        )
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module itself imports a missing module
        raise TargetError(
            f"there is no module {error.name!r}, neither installed nor in {Path.cwd()}; run this command in the directory of the module"
        ) from None
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise TargetError(f"{module_name} has no {attribute!r}{_suitable(found)}")
        found = getattr(found, name)
    return found


def topology_of(target: str) -> Topology:
    """Return the topology of a target.

    Args:
        target: ``module:attribute``: a topology, a builder, or a function without parameters that returns one.
    """
    found = load(target)
    while callable(found) and not isinstance(found, (type, Topology, StreamsBuilder)):
        found = called(found, target)
    if isinstance(found, StreamsBuilder):
        return found.build()
    if isinstance(found, Topology):
        return found
    raise TargetError(
        f"{target!r} is a {type(found).__name__}; it should be a Topology, a StreamsBuilder, or a function without parameters "
        "that returns one"
    )


def called(function: Callable[..., Any], target: str) -> Any:
    """Return the result of a function without parameters.

    Raises:
        TargetError: If it needs an argument.
    """
    kinds = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    for name, parameter in signature(function).parameters.items():
        if parameter.default is Parameter.empty and parameter.kind not in kinds:
            raise TargetError(f"{target!r} needs the argument {name!r}; {_EXPECTED}")
    return function()


def _plan_of(found: Any, target: str) -> Plan:
    if _is_application(found):
        plan: Plan = found.plan
        return plan
    if isinstance(found, StreamsBuilder):
        return found.build().plan()
    if isinstance(found, Topology):
        return found.plan()
    if callable(found) and not isinstance(found, type):
        return _plan_of(called(found, target), target)
    raise TargetError(f"{target!r} is a {type(found).__name__}; {_EXPECTED}")


def _is_application(found: Any) -> bool:
    """Return whether an object is an ``Application``, without importing the class, which would import Spark and a Kafka client."""
    return isinstance(getattr(found, "plan", None), Plan)


def _suitable(module: Any) -> str:
    kinds = (Topology, StreamsBuilder)
    names = [
        name for name, value in vars(module).items() if isinstance(value, kinds) or _is_application(value)
    ]
    return f"; did you mean {' or '.join(names)}?" if names else ""
