"""Questions as text and answers as plain data, for the shell and for HTTP."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass, replace
from typing import Any

from millstream.core.model.errors import SerdeError
from millstream.core.model.serdes import Serde
from millstream.core.queries.argument_checks import TIME, unexpected
from millstream.core.queries.methods import method_of
from millstream.core.queries.question import Question
from millstream.core.topology.stores import StoreSpec


def parsed(question: Question, spec: StoreSpec) -> Question:
    """Parse textual arguments of a question into keys and times. Other arguments are unchanged.

    Raises:
        QueryError: If the kind of store has no such method, or an argument does not fit the method.
    """
    method, given = method_of(question.method, spec), question.arguments
    names = len(method.keys)
    keys = (_key(text, spec.key, question, name) for name, text in zip(method.keys, given, strict=False))
    times = (_time(text, question, name) for name, text in zip(method.times, given[names:], strict=False))
    more = given[names + len(method.times) :]
    return replace(question, arguments=(*keys, *times, *more))


def as_json_value(value: Any) -> Any:
    """Return a value as JSON values: named tuples and dataclasses as objects, bytes as text or hexadecimal.

    Example:
        >>> from millstream.core.model.windowed import Windowed
        >>> as_json_value([(Windowed(b"tea", 0, 60_000), 3)])
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
        return as_json_value(value._asdict())
    if is_dataclass(value) and not isinstance(value, type):
        return as_json_value(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): as_json_value(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [as_json_value(each) for each in value]
    return str(value)


def _key(given: Any, serde: Serde[Any], question: Question, name: str) -> Any:
    if isinstance(given, dict | list) and serde.parse is not None and not serde.accepts:
        given = json.dumps(given)
    if not isinstance(given, str):
        return given
    try:
        return (serde.parse or json.loads)(given)
    except (ValueError, RecursionError, SerdeError):
        how = " as JSON" if serde.parse is None else ""
        raise unexpected(question, name, f"a key of the serde {serde.name!r}{how}", given) from None


def _time(given: Any, question: Question, name: str) -> Any:
    if not isinstance(given, str):
        return given
    try:
        return int(given)
    except ValueError:
        raise unexpected(question, name, TIME, given) from None
