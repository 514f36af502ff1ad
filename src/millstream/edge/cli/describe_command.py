"""``millstream describe``: shows a topology as text or as a picture, without a broker, Spark or Java.

A target has the form ``module:attribute``, such as ``examples.wordcount:topology``. Modules are also found in the working directory. The
attribute may be a topology, a builder, a function without parameters that returns one of these, or an application, whose id then names
the internal topics.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from millstream.core.dsl.builder import StreamsBuilder
from millstream.core.model.errors import MillstreamError
from millstream.core.topology import describe, drawing
from millstream.core.topology.plan import Plan
from millstream.core.topology.topology import Topology
from millstream.edge.spark.required_packages import explained

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
        TopologyError: If the topology is not valid.
    """
    if form not in FORMATS:
        raise TargetError(f"there is no format {form!r}; the formats are {', '.join(FORMATS)}")
    return FORMATS[form](_plan_of(resolved(target), target))


def load(target: str) -> Any:
    """Import a module, and return one of its attributes.

    Args:
        target: ``module:attribute``; the attribute may contain dots.

    Raises:
        TargetError: If the module or the attribute does not exist, or the module cannot be imported.
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
    found: Any = _imported(module_name)
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise TargetError(f"{module_name} has no {attribute!r}{_suitable(found)}")
        found = getattr(found, name)
    return found


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise TargetError(
                f"there is no module {error.name!r}, neither installed nor in {Path.cwd()}; run this command in the directory of the module"
            ) from None
        if explained(error, "this command") is not error:
            raise  # of an extra
        raise _failed(f"the module {name!r} cannot be imported", error) from None
    except MillstreamError:
        raise
    except Exception as error:
        raise _failed(f"the module {name!r} cannot be imported", error) from None


def _failed(what: str, error: Exception) -> TargetError:
    """Return the error for an exception of the user's program, with its traceback, but without the frames of this command."""
    trace = traceback.TracebackException.from_exception(error)
    own = ("<frozen importlib", importlib.__file__, __file__)
    trace.stack = traceback.StackSummary.from_list(
        [frame for frame in trace.stack if not frame.filename.startswith(own)]
    )
    return TargetError(f"{what}:\n{''.join(trace.format()).rstrip()}")


def resolved(target: str) -> Any:
    """Return the object of a target; if it is a function, what the function returns.

    Raises:
        TargetError: If the module or the attribute does not exist, or the program fails.
    """
    found = load(target)
    return called(found, target) if callable(found) and not isinstance(found, type) else found


def topology_of(target: str) -> Topology:
    """Return the topology of a target.

    Args:
        target: ``module:attribute``: a topology, a builder, or a function without parameters that returns one.

    Raises:
        TargetError: If the module or the attribute does not exist, or the attribute is not a topology.
        TopologyError: If the topology is not valid.
    """
    return as_topology(resolved(target), target)


def as_topology(found: Any, target: str) -> Topology:
    """Return the topology that an object is or builds.

    Raises:
        TargetError: If it is neither a topology nor a builder.
        TopologyError: If the topology is not valid.
    """
    if isinstance(found, StreamsBuilder):
        return found.build()
    if isinstance(found, Topology):
        return found
    raise TargetError(
        f"{target!r} is {_kind(found)}; it should be a Topology, a StreamsBuilder, or a function without parameters that returns one"
    )


def called(function: Callable[..., Any], target: str) -> Any:
    """Return the result of a function without parameters.

    Raises:
        TargetError: If it needs an argument, or raises an exception that is not Millstream's.
    """
    kinds = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    for name, parameter in signature(function).parameters.items():
        if parameter.default is Parameter.empty and parameter.kind not in kinds:
            raise TargetError(f"{target!r} needs the argument {name!r}; {_EXPECTED}")
    try:
        return function()
    except (MillstreamError, ModuleNotFoundError):
        raise
    except Exception as error:
        raise _failed(f"{target!r} failed", error) from None


def _plan_of(found: Any, target: str) -> Plan:
    if _is_application(found):
        plan: Plan = found.plan
        return plan
    if isinstance(found, (StreamsBuilder, Topology)):
        return as_topology(found, target).plan()
    raise TargetError(f"{target!r} is {_kind(found)}; {_EXPECTED}")


def _kind(found: Any) -> str:
    return "None" if found is None else f"of type {type(found).__name__}"


def _is_application(found: Any) -> bool:
    """Return whether an object is an ``Application``, without importing the class, which would import Spark and a Kafka client."""
    return isinstance(getattr(found, "plan", None), Plan)


def _suitable(module: Any) -> str:
    kinds = (Topology, StreamsBuilder)
    names = [
        name for name, value in vars(module).items() if isinstance(value, kinds) or _is_application(value)
    ]
    return f"; did you mean {' or '.join(names)}?" if names else ""
