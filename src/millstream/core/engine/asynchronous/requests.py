"""Requests: the calls that a processor issues, and how they are stored.

A function is stored by its name. Otherwise, one function that a program no longer has would make a whole block of records unreadable. Earlier
versions stored the function itself, as a pickle; it is read as before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple


@dataclass(frozen=True)
class MissingFunction:
    """Stands for an issued function that the program no longer has under this name."""

    module: str
    name: str


class Request(NamedTuple):
    """A call that a processor has issued for a record.

    Attributes:
        then: The name of the processor's method that receives the result.
    """

    function: Callable[..., Any] | MissingFunction
    args: tuple[Any, ...]
    then: str

    def row(self) -> tuple[Any, ...]:
        return _stored(self.function), self.args, self.then

    @classmethod
    def from_row(cls, row: tuple[Any, ...]) -> Request:
        function, args, then = row
        if isinstance(function, tuple):
            function = _named(*function) or MissingFunction(*function)
        return cls(function, args, then)


def _stored(function: Any) -> Any:
    """Return module and name of a function, or the object itself if it is not found under a name, such as a ``partial``."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if isinstance(module, str) and isinstance(name, str) and _named(module, name) is function:
        return module, name
    return function


def _named(module: str, name: str) -> Any:
    """Return the function with a name; None if there is none."""
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        return None
    return found
