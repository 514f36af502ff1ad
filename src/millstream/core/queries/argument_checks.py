"""Checks the method of a question, its arguments and its limits, so that errors name what is expected."""

from __future__ import annotations

import sys
from typing import Any, Final

from millstream.core.model.errors import QueryError
from millstream.core.queries.methods import Method, method_of
from millstream.core.queries.question import Question
from millstream.core.topology.stores import StoreSpec

TIME: Final = "a time in ms since the epoch, a whole number"
_LONGEST_SHOWN: Final = 60


def checked(question: Question, spec: StoreSpec) -> Method:
    """Check the method of a question, its arguments and its limits, except the key of a question about one key; see :func:`key_of`.

    Returns:
        The method.

    Raises:
        QueryError: If something does not fit. The error names the store, the method, the argument and what is expected.
    """
    method, arguments = method_of(question.method, spec), question.arguments
    keys = len(method.keys)
    if len(arguments) != keys or method.times:
        _check_number(question, method)
    if method.scope != "key":
        _check_bounds(question, spec, method, arguments)
    for name, time in zip(method.times, arguments[keys:], strict=False):
        if type(time) is not int:
            raise unexpected(question, name, TIME, time)
    if question.limit is not None:
        _check_whole(question, "limit", question.limit, 1)
    if question.max_lag is not None:
        _check_whole(question, "max_lag", question.max_lag, 0)
    if type(question.timestamps) is not bool:
        raise unexpected(question, "timestamps", "true or false", question.timestamps)
    return method


def key_of(question: Question, spec: StoreSpec, name: str = "key", position: int = 0) -> bytes:
    """Return the serialised key that is an argument of a question; by default, the key of a question about one key.

    Args:
        name: The name of the argument, for errors.
        position: The position of the argument.

    Raises:
        QueryError: If the key does not fit.
    """
    key = question.arguments[position]
    try:
        if key is not None:
            return spec.key.serialize(key)
    except Exception:
        pass
    raise unexpected(question, name, f"a key of the serde {spec.key.name!r}", key)


def unexpected(question: Question, argument: str, expected: str, given: Any) -> QueryError:
    shown = repr(given)
    shown = shown if len(shown) <= _LONGEST_SHOWN else f"{shown[: _LONGEST_SHOWN - 3]}..."
    return QueryError(
        f"{question.method}() of store {question.store!r}: {argument} must be {expected}, not {type(given).__name__} {shown}"
    )


def _check_number(question: Question, method: Method) -> None:
    count, most = len(question.arguments), len(method.keys) + len(method.times)
    if not most - method.optional <= count <= most:
        raise QueryError(
            f"{question.method}() of store {question.store!r} takes {method.signature}, but got {count or 'no'} "
            f"argument{'' if count == 1 else 's'}"
        )


def _check_bounds(question: Question, spec: StoreSpec, method: Method, arguments: tuple[Any, ...]) -> None:
    for position, (name, key) in enumerate(zip(method.keys, arguments, strict=False)):
        unbounded = key is None and method.unbounded
        if not unbounded and not (name == "prefix" and isinstance(key, bytes)):
            key_of(question, spec, name, position)


def _check_whole(question: Question, name: str, number: Any, least: int) -> None:
    if type(number) is not int or not least <= number <= sys.maxsize:
        raise unexpected(question, name, f"a whole number from {least} to {sys.maxsize}", number)
