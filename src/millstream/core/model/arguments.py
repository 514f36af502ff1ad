"""Arguments: reject invalid arguments where the user passes them, based on the annotations of the called function.

A parameter whose annotation does not allow None rejects None. A parameter that takes a function rejects values that are not callable; a
parameter that takes str or classes of this package rejects other types. Type checkers check all other annotations.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterator, Mapping
from inspect import Parameter, Signature, signature
from types import FunctionType, UnionType
from typing import Any, NamedTuple, TypeVar, cast, get_args, get_origin

from millstream.core.model.errors import ArgumentError

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)


class _Rule(NamedTuple):
    """The values that a parameter accepts.

    Attributes:
        known: Whether the rule is complete, so that all other values are rejected, not only None.
    """

    none: bool
    functions: bool
    classes: tuple[type, ...]
    known: bool

    def admits(self, value: object) -> bool:
        if value is None:
            return self.none
        return not self.known or isinstance(value, self.classes) or (self.functions and callable(value))

    def __str__(self) -> str:
        if not self.known:
            return "not be "
        kinds = (
            ["callable"] * self.functions + [each.__name__ for each in self.classes] + ["None"] * self.none
        )
        return f"be {' or '.join(kinds)}, not "


def checked(function: F) -> F:
    """Make a function reject arguments that its annotations do not allow.

    Raises:
        ArgumentError: From the function, if an argument is None or has a wrong type.

    Example:
        >>> @checked
        ... def shout(text: str) -> str:
        ...     return text.upper()
        >>> shout(None)
        Traceback (most recent call last):
        ...
        millstream.core.model.errors.ArgumentError: shout: text must be str, not None
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        _check(function, args, kwargs)
        return function(*args, **kwargs)

    return cast(F, call)


def checked_methods(cls: C) -> C:
    """Make the constructor and the public methods of a class reject arguments that their annotations do not allow."""
    for name, member in list(vars(cls).items()):
        if name == "__init__" or not name.startswith("_"):
            if isinstance(member, FunctionType):
                setattr(cls, name, checked(member))
            elif isinstance(member, (staticmethod, classmethod)):
                setattr(cls, name, type(member)(checked(member.__func__)))
    return cls


def checked_constructor(cls: C) -> C:
    """Make the constructor of a class reject arguments that its annotations do not allow."""
    cls.__init__ = checked(cls.__init__)  # type: ignore[misc]
    return cls


def _check(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    known, rules = _rules_of(function)
    try:
        bound = known.bind(*args, **kwargs)
    except TypeError:
        return  # the call itself raises an error for missing arguments
    given = [
        (name, rules[name], value)
        for name, values in bound.arguments.items()
        if name in rules
        for value in (values if known.parameters[name].kind is Parameter.VAR_POSITIONAL else (values,))
    ]
    refused = [each for each in given if not each[1].admits(each[2])]
    for name, rule, value in sorted(
        refused, key=lambda each: each[2] is not None
    ):  # report missing arguments first
        raise ArgumentError(f"{_called(function, known, args)}: {name} must {rule}{value!r}")


def _called(function: Callable[..., Any], known: Signature, args: tuple[Any, ...]) -> str:
    """Return the name of a function as the user calls it. The name of a method begins with the class of the object."""
    name = function.__qualname__
    if args and next(iter(known.parameters)) == "self":
        name = f"{type(args[0]).__name__}.{function.__name__}"
    return name.removesuffix(".__init__")


@functools.cache
def _rules_of(function: Callable[..., Any]) -> tuple[Signature, dict[str, _Rule]]:
    known = signature(function)
    names: Mapping[str, Any] = getattr(function, "__globals__", {})
    rules: dict[str, _Rule] = {}
    for name, parameter in known.parameters.items():
        annotated = (
            parameter.annotation is not Parameter.empty and parameter.kind is not Parameter.VAR_KEYWORD
        )
        rule = _rule(parameter.annotation, names) if annotated else None
        if rule is not None:
            rules[name] = rule
    return known, rules


def _rule(annotation: object, names: Mapping[str, Any]) -> _Rule | None:
    """Return the rule for an annotation, or None if it accepts any value."""
    none, functions, classes, known = False, False, [], True
    for member in _members(annotation, names):
        if member is Any or member is object or isinstance(member, TypeVar):
            return None
        if member is None:
            none = True
        elif member is Callable or get_origin(member) is Callable:
            functions = True
        elif isinstance(member, type) and (member is str or _is_ours(member)):
            classes.append(member)
        else:
            known = False
    return _Rule(none, functions, tuple(classes), known)


def _is_ours(cls: type) -> bool:
    return cls.__module__.startswith("millstream.") and not getattr(cls, "_is_protocol", False)


class _Unknown:
    """A member of an annotation that is not checked."""


def _members(annotation: object, names: Mapping[str, Any]) -> Iterator[object]:
    if isinstance(annotation, str):
        yield from _annotation_members(ast.parse(annotation, mode="eval").body, names)
    elif isinstance(annotation, UnionType):
        for each in get_args(annotation):
            yield from _members(each, names)
    elif annotation is type(None):
        yield None
    else:
        yield annotation


def _annotation_members(tree: ast.expr, names: Mapping[str, Any]) -> Iterator[object]:
    if isinstance(tree, ast.BinOp):
        yield from _annotation_members(tree.left, names)
        yield from _annotation_members(tree.right, names)
    elif isinstance(tree, ast.Constant):
        yield from _members(tree.value, names)
    elif isinstance(tree, ast.Subscript):
        yield from _annotation_members(tree.value, names)
    elif isinstance(tree, ast.Name):
        builtins = {"str": str, "object": object}
        yield from _members(names.get(tree.id, builtins.get(tree.id, _Unknown())), names)
    else:
        yield _Unknown()
