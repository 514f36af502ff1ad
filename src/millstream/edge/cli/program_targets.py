"""Finds the topology or the application that a target on the command line names.

A target has the form ``module:attribute``, such as ``examples.wordcount:topology``. Modules are also found in the working directory. The
attribute may be a topology, a builder, an application, or a function without parameters that returns one of these.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable, Coroutine, Mapping
from inspect import Parameter, signature
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from millstream.core.dsl.builder import StreamsBuilder
from millstream.core.model.errors import MillstreamError, SettingsError
from millstream.core.topology.plan import Plan
from millstream.core.topology.topology import Topology
from millstream.edge.spark.required_packages import explained

if TYPE_CHECKING:
    from millstream.edge.application.application import Application

_EXPECTED: Final = "it should be a Topology, a StreamsBuilder, an Application, or a function without parameters that returns one"


class TargetError(MillstreamError):
    """The target does not exist, fails, or is not a topology."""


def plan_of(target: str) -> Plan:
    """Return the plan of a target. An application names the internal topics by its id.

    Raises:
        TargetError: If the module or the attribute does not exist or fails, or the attribute is neither a topology nor an application.
        TopologyError: If the topology is not valid.
    """
    found = _target_object(target)
    if isinstance(found, Topology):
        return found.plan()
    if _is_application(found):
        plan: Plan = found.plan
        return plan
    raise TargetError(f"{target!r} is {_kind(found)}; {_EXPECTED}")


def topology_of(target: str) -> Topology:
    """Return the topology of a target that is not an application.

    Raises:
        TargetError: If the module or the attribute does not exist or fails, or the attribute is not a topology.
        TopologyError: If the topology is not valid.
    """
    return _checked_topology(_target_object(target), target)


def application_of(target: str, application_id: str | None, given: Mapping[str, Any]) -> Application:
    """Return the application of a target; create one for a topology.

    Args:
        application_id: The id if an application is created here; None for the module's name.
        given: Settings for an application that is created here.

    Raises:
        SettingsError: If settings are invalid, or are given although the target is an application with its own settings.
        TargetError: If the module or the attribute does not exist or fails, or the attribute is none of these.
        TopologyError: If the id or the topology is not valid.
    """
    from millstream.edge.application.application import Application

    found = _target_object(target)
    if not isinstance(found, Application):
        name = name_of(target) if application_id is None else application_id
        return Application(name, _checked_topology(found, target), **given)
    if given or application_id is not None:
        raise SettingsError(f"{target!r} is an application, which has its id and its settings; give none")
    return found


def name_of(target: str) -> str:
    """Return the default application id of a target: the name of its module.

    Example:
        >>> name_of("examples.word_count:topology")
        'word-count'
    """
    return target.partition(":")[0].rpartition(".")[2].replace("_", "-")


def _target_object(target: str) -> Any:
    """Return the object of a target; what a function returns, and what a builder builds."""
    found = _attribute(target)
    if callable(found) and not isinstance(found, type):
        found = _called(found, target)
    return found.build() if isinstance(found, StreamsBuilder) else found


def _checked_topology(found: object, target: str) -> Topology:
    if isinstance(found, Topology):
        return found
    raise TargetError(
        f"{target!r} is {_kind(found)}; it should be a Topology, a StreamsBuilder, or a function without parameters that returns one"
    )


def _attribute(target: str) -> Any:
    """Import the module of a target, and return its attribute, whose name may contain dots."""
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
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            raise TargetError(
                f"there is no module {error.name!r}, neither installed nor in {Path.cwd()}; run this command in the directory of the module"
            ) from None
        if _is_explained(error):
            raise
        raise _program_error(f"the module {name!r} cannot be imported", error) from None


def _called(function: Callable[..., object], target: str) -> Any:
    kinds = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    try:
        parameters = signature(function).parameters
    except (TypeError, ValueError):  # some functions that are written in C
        raise TargetError(f"{target!r} is {_kind(function)}; {_EXPECTED}") from None
    for name, parameter in parameters.items():
        if parameter.default is Parameter.empty and parameter.kind not in kinds:
            raise TargetError(f"{target!r} needs the argument {name!r}; {_EXPECTED}")
    try:
        found = function()
    except Exception as error:
        if _is_explained(error):
            raise
        raise _program_error(f"{target!r} failed", error) from None
    if isinstance(found, Coroutine):
        found.close()  # it would otherwise warn that nobody has awaited it
        raise TargetError(f"{target!r} is an async function, which nothing awaits here; {_EXPECTED}")
    return found


def _is_explained(error: Exception) -> bool:
    """Return whether the command line explains an error itself: one of Millstream, or a missing package of an extra."""
    if isinstance(error, ModuleNotFoundError):
        return explained(error, "this command") is not error
    return isinstance(error, MillstreamError)


def _program_error(what: str, error: Exception) -> TargetError:
    """Return the error for an exception of the user's program, with its traceback, but without the frames of this command."""
    trace = traceback.TracebackException.from_exception(error)
    own = ("<frozen importlib", importlib.__file__, __file__)
    trace.stack = traceback.StackSummary.from_list(
        [frame for frame in trace.stack if not frame.filename.startswith(own)]
    )
    return TargetError(f"{what}:\n{''.join(trace.format()).rstrip()}")


def _kind(found: object) -> str:
    return "None" if found is None else f"of type {type(found).__name__}"


def _is_application(found: object) -> bool:
    """Return whether an object is an ``Application``, without importing the class, which would import Spark and a Kafka client."""
    return isinstance(getattr(found, "plan", None), Plan)


def _suitable(module: object) -> str:
    kinds = (Topology, StreamsBuilder)
    names = [
        name for name, value in vars(module).items() if isinstance(value, kinds) or _is_application(value)
    ]
    return f"; did you mean {' or '.join(names)}?" if names else ""
