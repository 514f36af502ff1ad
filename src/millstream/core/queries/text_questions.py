"""Questions as text and answers as plain data, for the shell and for HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, is_dataclass, replace
from typing import Any, Final

from millstream.core.model.errors import StoreError
from millstream.core.model.serdes import Serde
from millstream.core.queries.question import Question
from millstream.core.topology.stores import StoreSpec

_KEYS: Final[Mapping[str, int]] = {
    "get": 1,
    "prefix_scan": 1,
    "fetch": 1,
    "reverse_fetch": 1,
    "fetch_session": 1,
    "find_sessions": 1,
    "range": 2,
    "reverse_range": 2,
    "fetch_range": 2,
    "reverse_fetch_range": 2,
}
"""Number of leading arguments of a method that are keys; the others are times."""
_FROM_TEXT: Final[Mapping[str, Callable[[str], Any]]] = {
    "string": str,
    "bytes": str.encode,
    "int32": int,
    "int64": int,
    "float32": float,
    "float64": float,
}
"""Parsers of keys by name of the serde. All other keys are JSON."""


def parsed(question: Question, spec: StoreSpec) -> Question:
    """Parse textual arguments of a question into keys and times. Other arguments are unchanged.

    Raises:
        StoreError: If an argument does not fit the method.

    Example:
        >>> from millstream.core.model import serdes
        >>> from millstream.core.topology.stores import window
        >>> spec = window("clicks", serdes.int64, serdes.int64, retention=60_000, size=60_000)
        >>> parsed(Question("clicks", "fetch", ("7", "0", "60000")), spec).arguments
        (7, 0, 60000)
    """
    keys = _KEYS.get(question.method, 0)
    arguments = question.arguments
    first = (_key(text, spec.key, question) for text in arguments[:keys])
    rest = (_time(text, question) for text in arguments[keys:])
    return replace(question, arguments=(*first, *rest))


def plain(value: Any) -> Any:
    """Return a value as JSON values: named tuples and dataclasses as objects, bytes as text or hexadecimal.

    Example:
        >>> from millstream.core.model.windowed import Windowed
        >>> plain([(Windowed(b"tea", 0, 60_000), 3)])
        [[{'key': 'tea', 'start': 0, 'end': 60000}, 3]]
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value.hex()
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return plain(value._asdict())
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each) for each in value]
    return str(value)


def _key(given: Any, serde: Serde[Any], question: Question) -> Any:
    if not isinstance(given, str):
        return given
    try:
        return _FROM_TEXT.get(serde.name, json.loads)(given)
    except ValueError:
        raise StoreError(
            f"{question.method}() of store {question.store!r}: {given!r} is not a key of the serde {serde.name!r}"
            f"{'' if serde.name in _FROM_TEXT else '; give it as JSON'}"
        ) from None


def _time(given: Any, question: Question) -> Any:
    if not isinstance(given, str):
        return given
    try:
        return int(given)
    except ValueError:
        raise StoreError(
            f"{question.method}() of store {question.store!r}: {given!r} is not a time in ms since the epoch"
        ) from None
