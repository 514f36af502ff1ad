"""Arguments: reject invalid arguments where the user passes them, based on the annotations of the called function.

A parameter whose annotation does not allow None rejects None. A parameter that takes a function rejects values that are not callable,
functions that take other arguments, and functions whose calls have no result. A parameter that takes str, int, bool, lists of str or classes
of this package rejects other types. Type checkers check all other annotations.

A class may have an attribute ``advice_if_refused``: what to do instead of passing one of its objects where another type is expected.

The functions at the end, about functions of users, return what is wrong as text: their callers add the method or the node, and raise
different errors.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from inspect import Parameter, Signature, signature
from types import FunctionType, UnionType
from typing import Any, Final, NamedTuple, TypeVar, cast, get_args, get_origin

from millstream.core.model.errors import ArgumentError

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)


_COROUTINE_ADVICE: Final = (
    "which this operator would not await. Make external calls with map_values_async, foreach_async or process_async, or issue them in a "
    "processor"
)
_GENERATOR_ADVICE: Final = (
    "so a call returns a generator instead of a result, and none of its code would run. Use return; for any number of results, use "
    "flat_map or flat_map_values"
)
_CHECKED_TYPES: Final = (str, int, bool, re.Pattern)
_BY_NAME: Final[dict[str, type]] = {}
"""The classes with checked methods or constructors. An annotation may name one that its module imports only for type checkers."""
_WORDS: Final = {"K": "key", "V": "value", "A": "aggregate", "R": "value"}
"""Words for the arguments of functions, by the letter of their type variable."""


class _Function(NamedTuple):
    """The functions that an annotation allows.

    Attributes:
        takes: Names of the arguments; None if they depend on other arguments, so that the function is not checked here.
        iterable: Whether the result may be an iterable, so that generator functions are allowed.
    """

    takes: tuple[str, ...] | None
    iterable: bool

    def problem(self, function: object) -> str | None:
        if self.takes is None or _is_ours(type(function)):
            return None
        problem = kind_problem(function, iterable=self.iterable) or arguments_problem(function, self.takes)
        if problem is not None and isinstance(function, type) and not self.takes:
            problem += f"; pass `lambda: {function.__name__}(...)`"
        return problem


class _Names:
    """A member of an annotation: a list, or another iterable, of strings."""


class _Rule(NamedTuple):
    """The values that a parameter accepts.

    Attributes:
        function: The functions among them; None if there are none.
        names: Whether lists of strings are among them.
        known: Whether the rule is complete, so that all other values are rejected, not only None.
    """

    none: bool
    function: _Function | None
    names: bool
    classes: tuple[type, ...]
    known: bool

    def admits(self, value: object) -> bool:
        if value is None:
            return self.none
        return (
            not self.known
            or isinstance(value, self.classes)
            or (self.function is not None and callable(value))
            or (self.names and isinstance(value, Iterable) and _wrong_name(value) is None)
        )

    def refusal(self, value: object) -> str:
        """Return what the parameter must be instead of a value, and what to do."""
        cls = type(value)
        shown = f"a {cls.__name__}" if _is_ours(cls) and cls.__repr__ is object.__repr__ else repr(value)
        if self.names and isinstance(value, str):
            return f"{self}{shown}; write [{value!r}]"
        wrong = _wrong_name(value) if self.names and isinstance(value, Iterable) else value
        return f"{self}{shown}{getattr(type(wrong), 'advice_if_refused', '')}"

    def __str__(self) -> str:
        if not self.known:
            return "not be "
        kinds = (
            ["callable"] * (self.function is not None)
            + [each.__name__ for each in self.classes]
            + ["a list of str"] * self.names
            + ["None"] * self.none
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
    _BY_NAME[cls.__name__] = cls
    return cls


def checked_constructor(cls: C) -> C:
    """Make the constructor of a class reject arguments that its annotations do not allow."""
    cls.__init__ = checked(cls.__init__)  # type: ignore[misc]
    _BY_NAME[cls.__name__] = cls
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
        raise ArgumentError(f"{_called(function, known, args)}: {name} must {rule.refusal(value)}")
    for name, rule, value in given:
        if rule.function is not None and callable(value) and (problem := rule.function.problem(value)):
            raise ArgumentError(f"{_called(function, known, args)}: {name}: {problem}")


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
    none, function, listed, classes, known = False, None, False, [], True
    for member in _members(annotation, names):
        if member is Any or member is object or isinstance(member, TypeVar):
            return None
        if member is None:
            none = True
        elif isinstance(member, _Function):
            function = member
        elif member is _Names:
            listed = True
        elif isinstance(member, type) and (member in _CHECKED_TYPES or _is_ours(member)):
            classes.append(member)
        else:
            known = False
    return _Rule(none, function, listed, tuple(classes), known)


def _wrong_name(listed: Iterable[object]) -> object | None:
    """Return the first element that is no string; the value itself if it is one string, or bytes. An iterator is not read."""
    if isinstance(listed, (str, bytes)):
        return listed
    read = listed if isinstance(listed, (list, tuple, set, frozenset)) else ()
    return next((each for each in read if not isinstance(each, str)), None)


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
    elif get_origin(annotation) is Callable:
        takes, result = get_args(annotation)
        names_of_types = None if takes is ... else [getattr(each, "__name__", str(each)) for each in takes]
        yield _function(names_of_types, str(result))
    elif get_origin(annotation) in (Iterable, Sequence):
        yield _Names if get_args(annotation) == (str,) else _Unknown()
    else:
        yield get_origin(annotation) or annotation


def _annotation_members(tree: ast.expr, names: Mapping[str, Any]) -> Iterator[object]:
    if isinstance(tree, ast.BinOp):
        yield from _annotation_members(tree.left, names)
        yield from _annotation_members(tree.right, names)
    elif isinstance(tree, ast.Constant):
        yield from _members(tree.value, names)
    elif isinstance(tree, ast.Subscript):
        for member in _annotation_members(tree.value, names):
            if member is Callable:
                yield _annotated_function(tree.slice)
            elif member in (Iterable, Sequence):
                yield _Names if ast.unparse(tree.slice) == "str" else _Unknown()
            else:
                yield member
    elif isinstance(tree, ast.Attribute) and ast.unparse(tree) == "re.Pattern":
        yield re.Pattern
    elif isinstance(tree, ast.Name):
        named = {**_BY_NAME, "str": str, "int": int, "bool": bool, "object": object, **names}
        yield from _members(named.get(tree.id, _Unknown()), names)
    else:
        yield _Unknown()


def _annotated_function(arguments: ast.expr) -> _Function:
    """Return the rule for ``Callable[arguments]``."""
    assert isinstance(arguments, ast.Tuple)
    takes, result = arguments.elts
    listed = [ast.unparse(each) for each in takes.elts] if isinstance(takes, ast.List) else None
    return _function(listed, ast.unparse(result))


def _function(takes: Iterable[str] | None, result: str) -> _Function:
    """Return the rule for functions with arguments of the given types, and a result of the given type.

    Functions that may return an awaitable are checked by the asynchronous operators.
    """
    if takes is None or "Awaitable" in result:
        return _Function(None, iterable=True)
    return _Function(tuple(map(_word, takes)), iterable="Iterable" in result)


def _word(annotation: str) -> str:
    """Return the word for an argument, or its annotation if that is not a type variable.

    Example:
        >>> [_word("K"), _word("V2 | None"), _word("int")]
        ['key', 'value', 'int']
    """
    variable = annotation.removesuffix(" | None").rstrip("0123456789")
    return _WORDS.get(variable, annotation)


def name_of(function: object) -> str:
    """Return the name of a function for a message; that of the function behind a ``partial``."""
    while isinstance(function, functools.partial):
        function = function.func
    return repr(getattr(function, "__qualname__", function))


def is_coroutine(function: object) -> bool:
    """Whether a call returns an awaitable: of a coroutine function, also in a ``partial``, or of an object with such a ``__call__``."""
    return any(map(inspect.iscoroutinefunction, _run_by(function)))


def kind_problem(function: object, *, iterable: bool = False) -> str | None:
    """Return why a call of a function could not have a result; None if it can.

    Args:
        function: The function.
        iterable: Whether an iterable is expected, so that the function may be a generator function.
    """
    called = _run_by(function)
    if any(map(inspect.iscoroutinefunction, called)):
        return f"{name_of(function)} is a coroutine function, {_COROUTINE_ADVICE}"
    if any(map(inspect.isasyncgenfunction, called)):
        return f"{name_of(function)} is an asynchronous generator function, {_GENERATOR_ADVICE}"
    if not iterable and any(map(inspect.isgeneratorfunction, called)):
        return f"{name_of(function)} is a generator function, {_GENERATOR_ADVICE}"
    return None


def _run_by(function: object) -> tuple[object, object]:
    """Return the function, and the method that a call runs if it is an object of a class with ``__call__``."""
    while isinstance(function, functools.partial):
        function = function.func
    return function, inspect.getattr_static(type(function), "__call__", None)


def arguments_problem(function: object, takes: Sequence[str]) -> str | None:
    """Return why a function cannot be called with the given positional arguments; None if it can, or has no known signature.

    Args:
        function: The function.
        takes: Names of the arguments, for the message.

    Example:
        >>> arguments_problem(lambda value: value, ["key", "value"])
        "'<lambda>' is called with (key, value), but it takes (value)"
    """
    try:
        known = signature(function)  # type: ignore[arg-type]  # raises an error if it is not callable
    except (TypeError, ValueError):  # built-in functions have none
        return None
    try:
        known.bind(*takes)
    except TypeError:
        own = ", ".join(str(each.replace(annotation=Parameter.empty)) for each in known.parameters.values())
        given = f"with ({', '.join(takes)})" if takes else "without arguments"
        return f"{name_of(function)} is called {given}, but it takes ({own})"
    return None
