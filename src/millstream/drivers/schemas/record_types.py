"""Record types: the schema of a Python type, and the conversion of its objects to and from plain data."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Final, Union, get_args, get_origin, get_type_hints
from uuid import UUID

import msgspec

from millstream.core.model.errors import SerdeError, SettingsError

_PRIMITIVES: Final[Mapping[Any, Any]] = {
    str: "string",
    int: "long",
    float: "double",
    bool: "boolean",
    bytes: "bytes",
    type(None): "null",
    datetime: {"type": "long", "logicalType": "timestamp-micros"},
    date: {"type": "int", "logicalType": "date"},
    UUID: {"type": "string", "logicalType": "uuid"},
}
_KEPT: Final = (bytes, datetime, date, UUID, Decimal)
"""Types that Avro's library converts itself."""


def is_record(of: Any) -> bool:
    """Return whether a type is a dataclass, a pydantic model or a msgspec Struct."""
    return isinstance(of, type) and (
        dataclasses.is_dataclass(of) or _is_pydantic(of) or issubclass(of, msgspec.Struct)
    )


def avro_schema(of: type[Any], namespace: str | None = None) -> dict[str, Any]:
    """Return the Avro schema of a record type.

    Raises:
        SettingsError: If the type of a field has no Avro counterpart.

    Example:
        >>> @dataclasses.dataclass
        ... class Order:
        ...     id: str
        ...     cents: int
        ...     note: str | None = None
        >>> avro_schema(Order)["fields"][2]
        {'name': 'note', 'type': ['null', 'string'], 'default': None}
    """
    schema = _record(of, {})
    return schema if namespace is None else {**schema, "namespace": namespace}


def json_schema(of: type[Any]) -> dict[str, Any]:
    if _is_pydantic(of):
        found: dict[str, Any] = of.model_json_schema()
    else:
        (reference,), parts = msgspec.json.schema_components([of], ref_template="#/$defs/{name}")
        parts = dict(parts)
        own = parts.pop(reference["$ref"].rpartition("/")[2])
        found = {**own, "$defs": parts} if parts else own
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": of.__name__, **found}


def to_plain(of: type[Any], *, keep: bool) -> Callable[[Any], Any]:
    """Return the function that converts objects of a record type to plain data.

    Args:
        keep: Whether bytes, times, dates and decimals remain, as Avro's library expects. For JSON, they become text.
    """
    kept = _KEPT if keep else ()

    def convert(value: Any) -> Any:
        if not isinstance(value, of):
            raise SerdeError(f"expected {of.__name__}, got {type(value).__name__}: {value!r}")
        if _is_pydantic(of):
            return value.model_dump(mode="python" if keep else "json")
        return msgspec.to_builtins(value, builtin_types=kept)

    return convert


def from_plain(of: type[Any]) -> Callable[[Any], Any]:
    """Return the function that creates objects of a record type from plain data."""
    if _is_pydantic(of):
        validate: Callable[[Any], Any] = of.model_validate
        return validate

    def convert(data: Any) -> Any:
        return msgspec.convert(data, of, builtin_types=_KEPT, strict=False)

    return convert


def _is_pydantic(of: Any) -> bool:
    return hasattr(of, "model_validate") and hasattr(of, "model_json_schema")


def _record(of: type[Any], known: dict[type[Any], str]) -> dict[str, Any]:
    known[of] = of.__name__
    hints = get_type_hints(of)
    defaults = _defaults(of)
    fields = [_field(of, name, hint, defaults, known) for name, hint in hints.items() if name in defaults]
    return {"type": "record", "name": of.__name__, "fields": fields}


_REQUIRED: Final = object()


def _defaults(of: type[Any]) -> dict[str, Any]:
    if dataclasses.is_dataclass(of):
        return {
            field.name: _REQUIRED if field.default is dataclasses.MISSING else field.default
            for field in dataclasses.fields(of)
        }
    if _is_pydantic(of):
        fields: Mapping[str, Any] = of.model_fields
        return {
            name: _REQUIRED if field.is_required() or field.default_factory else field.default
            for name, field in fields.items()
        }
    return {
        field.name: _REQUIRED if field.default is msgspec.NODEFAULT else field.default
        for field in msgspec.structs.fields(of)
    }


def _field(
    of: type[Any], name: str, hint: Any, defaults: Mapping[str, Any], known: dict[type[Any], str]
) -> dict[str, Any]:
    found: dict[str, Any] = {"name": name, "type": _type(hint, known, f"{of.__name__}.{name}")}
    default = defaults[name]
    if default is _REQUIRED or not isinstance(default, str | int | float | bool | None):
        return found
    if isinstance(found["type"], list) and default is not None:  # a default belongs to the first branch
        found["type"] = sorted(found["type"], key=lambda branch: branch == "null")
    return {**found, "default": default}


def _type(hint: Any, known: dict[type[Any], str], where: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _type(arguments[0], known, where)
    if origin in (Union, types.UnionType):
        branches = [_type(branch, known, where) for branch in arguments]
        return sorted(branches, key=lambda branch: branch != "null")
    if origin in (list, tuple, set, frozenset):
        return {"type": "array", "items": _type(arguments[0], known, where)}
    if origin is dict and arguments[0] is str:
        return {"type": "map", "values": _type(arguments[1], known, where)}
    if hint in _PRIMITIVES:
        return _PRIMITIVES[hint]
    if hint in known:
        return known[hint]
    if isinstance(hint, type) and issubclass(hint, Enum):
        known[hint] = hint.__name__
        return {"type": "enum", "name": hint.__name__, "symbols": [str(member.value) for member in hint]}
    if is_record(hint):
        return _record(hint, known)
    raise SettingsError(
        f"{where} has the type {hint!r}, which has no counterpart in Avro; give the schema as text"
    )
