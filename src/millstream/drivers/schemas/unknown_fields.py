"""Fields of plain data that its Avro schema lacks. Avro's library leaves them out without an error.

The library can check this itself, but then also refuses a missing field that may be null, and data with its hint ``-type``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from fastavro.schema import parse_schema

from millstream.core.model.errors import SerdeError

Check = Callable[[Any], None]
_HINT: Final = "-type"
"""The name with which data may tell the library the record type in a union."""


def check_of(schema: str) -> Check:
    """Return a function that refuses data with a field that the schema lacks.

    The function raises ``SerdeError``.
    """
    return _check_of(parse_schema(json.loads(schema)), {}) or (lambda data: None)


def _check_of(schema: Any, records: dict[str, Check]) -> Check | None:
    """Return the check of a schema; None if its data contains no records.

    Args:
        records: The checks of the record types up to here, by name; a record may contain itself.
    """
    if isinstance(schema, list):
        return _union_check(schema, records)
    if isinstance(schema, str):
        return records.get(schema)
    if schema["type"] in ("record", "error"):
        return _record_check(schema, records)
    if schema["type"] in ("array", "map"):
        each = _check_of(schema["items" if schema["type"] == "array" else "values"], records)
        return None if each is None else _collection_check(each)
    return _check_of(schema["type"], records) if isinstance(schema["type"], dict | list) else None


def _record_check(schema: Mapping[str, Any], records: dict[str, Check]) -> Check:
    record = schema["name"]
    names = frozenset({field["name"] for field in schema["fields"]} | {_HINT})
    within: dict[str, Check] = {}

    def check(data: Any) -> None:
        if not isinstance(data, Mapping):
            return
        if not data.keys() <= names:
            unknown = ", ".join(sorted(repr(name) for name in data.keys() - names))
            known = ", ".join(repr(field["name"]) for field in schema["fields"])
            raise SerdeError(f"avro: {record} has no field {unknown}; it has {known}")
        for name, each in within.items():
            if name in data:
                each(data[name])

    records[record] = check
    for field in schema["fields"]:
        found = _check_of(field["type"], records)
        if found is not None:
            within[field["name"]] = found
    return check


def _collection_check(each: Check) -> Check:
    def check(data: Any) -> None:
        for item in (
            data.values() if isinstance(data, Mapping) else data if isinstance(data, list | tuple) else ()
        ):
            each(item)

    return check


def _union_check(schema: list[Any], records: dict[str, Check]) -> Check | None:
    if any(isinstance(branch, dict) and branch["type"] == "map" for branch in schema):
        return None  # a dict may be that, with any names
    checks = [found for found in (_check_of(branch, records) for branch in schema) if found is not None]
    if len(checks) < 2:
        return checks[0] if checks else None

    def check(data: Any) -> None:
        for number, each in enumerate(checks, 1):
            try:
                each(None if isinstance(data, tuple) else data)  # a tuple: the name of a branch, and its data
                break
            except SerdeError:
                if number == len(checks):
                    raise

    return check
