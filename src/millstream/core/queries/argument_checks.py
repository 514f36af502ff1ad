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


def check(question: Question, spec: StoreSpec) -> None:
    """Check the method of a question, its arguments and its limits.

    Raises:
        QueryError: If something does not fit. The error names the store, the method, the argument and what is expected.

    Example:
        >>> from millstream.core.model import serdes
        >>> from millstream.core.topology.stores import key_value
        >>> check(Question("counts", "get"), key_value("counts", serdes.string, serdes.int64))
        Traceback (most recent call last):
        ...
        millstream.core.model.errors.QueryError: get() of store 'counts' takes (key), but got no arguments
    """
    method, arguments = method_of(question.method, spec), question.arguments
    _check_number(question, method)
    keys = len(method.keys)
    for name, key in zip(method.keys, arguments, strict=False):
        if not (key is None and method.unbounded):
            _check_key(question, spec, name, key)
    for name, time in zip(method.times, arguments[keys:], strict=False):
        if type(time) is not int:
            raise unexpected(question, name, TIME, time)
    _check_whole(question, "limit", question.limit, 1)
    _check_whole(question, "max_lag", question.max_lag, 0)
    if type(question.timestamps) is not bool:
        raise unexpected(question, "timestamps", "true or false", question.timestamps)


def unexpected(question: Question, argument: str, expected: str, given: Any, why: str = "") -> QueryError:
    """Return the error for an argument."""
    shown = repr(given)
    shown = shown if len(shown) <= _LONGEST_SHOWN else f"{shown[: _LONGEST_SHOWN - 3]}..."
    return QueryError(
        f"{question.method}() of store {question.store!r}: {argument} must be {expected}, not {type(given).__name__} {shown}{why}"
    )


def _check_number(question: Question, method: Method) -> None:
    count, most = len(question.arguments), len(method.keys) + len(method.times)
    if not most - method.optional <= count <= most:
        raise QueryError(
            f"{question.method}() of store {question.store!r} takes {method.signature}, but got {count or 'no'} "
            f"argument{'' if count == 1 else 's'}"
        )


def _check_key(question: Question, spec: StoreSpec, name: str, key: Any) -> None:
    if name == "prefix" and isinstance(key, bytes):
        return
    try:
        if key is not None:
            spec.key.serialize(key)
            return
    except Exception:
        pass
    raise unexpected(question, name, f"a key of the serde {spec.key.name!r}", key)


def _check_whole(question: Question, name: str, number: Any, least: int) -> None:
    if number is not None and not (type(number) is int and least <= number <= sys.maxsize):
        raise unexpected(question, name, f"a whole number from {least} to {sys.maxsize}", number)
