"""Record types: the schema of a Python type, and the conversion of its objects to and from plain data."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import sys
import types
from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from functools import partial
from inspect import signature
from typing import Annotated, Any, Final, Union, get_args, get_origin
from uuid import UUID

import msgspec

from millstream.core.model.errors import SerdeError, SettingsError
from millstream.drivers.schemas.readable_types import (
    check_aliases,
    check_readable,
    check_revealed,
    check_structs,
    classes_of,
    drop_caches,
    forget,
    has_secrets,
    is_pydantic,
    is_pydantic_dataclass,
    may_have_bytes,
    may_have_tuples,
    types_of_fields,
    written_names,
)

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
        dataclasses.is_dataclass(of) or is_pydantic(of) or issubclass(of, msgspec.Struct)
    )


def avro_schema(of: type[Any], namespace: str | None = None) -> dict[str, Any]:
    """Return the Avro schema of a record type.

    Raises:
        SettingsError: If the type of a field has no Avro counterpart, the type could not be written or read, or the namespace is no name.
    """
    for part in () if namespace is None else namespace.split("."):
        _checked_name(part, f"a part of namespace={namespace!r}")
    schema = _record(of, {})
    check_readable(of)
    check_structs(of)
    drop_caches(of)
    if not schema["fields"]:  # Confluent's deserializer takes data without any byte for damaged data
        raise SettingsError(
            f"{of!r} has no fields, so its Avro data would be empty and could not be read. Add a field"
        )
    return schema if namespace is None else {**schema, "namespace": namespace}


def json_schema(of: type[Any]) -> dict[str, Any]:
    """Return the JSON Schema of a record type.

    Raises:
        SettingsError: If the type could not be described or read, or a field of a pydantic model has one alias for each direction.
    """
    if is_pydantic(of):
        check_aliases(of)
        found = _schema_of_model(of)
    else:
        check_readable(of)
        try:
            (reference,), parts = msgspec.json.schema_components([of], ref_template="#/$defs/{name}")
        except TypeError as error:
            raise SettingsError(f"{of!r} has no JSON Schema: {error}. Give the schema as text") from None
        drop_caches(of)
        own = parts[reference["$ref"].rpartition("/")[2]]
        if json.dumps(reference["$ref"]) not in json.dumps(parts):  # a type that contains itself stays
            parts = {name: part for name, part in parts.items() if part is not own}
        found = {**own, "$defs": parts} if parts else own
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": of.__name__, **_in_draft_7(found)}


def _schema_of_model(of: Any) -> dict[str, Any]:
    from pydantic import PydanticUserError

    try:
        found: dict[str, Any] = of.model_json_schema()
    except PydanticUserError as error:
        raise SettingsError(f"{of!r} has no JSON Schema: {error.message}. Give the schema as text") from None
    return found


def _in_draft_7(schema: Any) -> Any:
    """Return a schema with the words of draft 7 for the items of tuples; msgspec and pydantic use those of draft 2020-12."""
    if isinstance(schema, list):
        return [_in_draft_7(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: _in_draft_7(each) for name, each in schema.items()}
    if isinstance(schema.get("prefixItems"), list):
        others = found.get("items", True)
        found |= {"items": found.pop("prefixItems"), "additionalItems": others}
    return found


def to_plain(of: type[Any], *, keep: bool) -> Callable[[Any], Any]:
    """Return the function that converts objects of a record type to plain data.

    Args:
        keep: Whether bytes, times, dates and decimals remain, as Avro's library expects. For JSON, they become text.
    """
    kept = _KEPT if keep else ()
    # pydantic turns tuples into lists for JSON
    has_tuples = keep if is_pydantic(of) else may_have_tuples(of)
    secrets = not keep and is_pydantic(of) and has_secrets(of.model_json_schema)
    shaped = _with_lists if has_tuples else (lambda plain: plain)

    def convert(value: Any) -> Any:
        if not isinstance(value, of):
            raise SerdeError(f"expected {of.__name__}, got {type(value).__name__}: {value!r}")
        plain = value
        if is_pydantic(of):  # like the schemas: Avro's has the names of the fields, JSON's their aliases
            plain = value.model_dump(mode="python" if keep else "json", by_alias=not keep, round_trip=True)
        if secrets:
            check_revealed(json.dumps(plain).encode())
        return shaped(msgspec.to_builtins(plain, builtin_types=kept))

    return convert


def _with_lists(plain: Any) -> Any:
    """Return plain data with lists for tuples: no arrays for the validation of JSON, and the name of a branch for Avro's library."""
    if isinstance(plain, dict):
        return {name: _with_lists(each) for name, each in plain.items()}
    return [_with_lists(each) for each in plain] if isinstance(plain, list | tuple) else plain


def from_plain(of: type[Any]) -> Callable[[Any], Any]:
    """Return the function that creates objects of a record type from plain data.

    The data has passed its schema. A strict model would still refuse it, because a date, for example, is text in JSON.
    """
    if is_pydantic(of):
        validate: Callable[[Any], Any] = by_name_or_alias(partial(of.model_validate, strict=False))
        return validate

    if is_pydantic_dataclass(of) and not may_have_bytes(of):
        return _validating(of)

    def convert(data: Any) -> Any:
        return msgspec.convert(data, of, builtin_types=_KEPT, strict=False)

    return _forgetting(of, _converting_and_validating(of, convert) if is_pydantic_dataclass(of) else convert)


def _validating(of: type[Any]) -> Callable[[Any], Any]:
    """Return the validation of a pydantic dataclass, which msgspec would leave out."""
    from pydantic import TypeAdapter

    validate: Callable[[Any], Any] = by_name_or_alias(partial(TypeAdapter(of).validate_python, strict=False))
    return validate


def _converting_and_validating(of: type[Any], convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a validation for a type with bytes, which only msgspec reads as it writes them to JSON."""
    validate = _validating(of)
    return lambda data: validate(msgspec.to_builtins(convert(data), builtin_types=_KEPT))


def _forgetting(of: type[Any], convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a conversion that removes what msgspec stores in classes that are pickled with their attributes."""
    owners = [owner for owner in classes_of(of) if _is_pickled_with_attributes(owner)]
    if not owners:
        return convert

    def convert_and_forget(data: Any) -> Any:
        try:
            return convert(data)
        finally:
            forget(owners)

    return convert_and_forget


def by_name_or_alias(validate: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of a pydantic model that also accepts the names of fields with aliases, under which data is written.

    Before pydantic 2.11, only the configuration of the model can allow that.
    """
    if "by_name" not in signature(validate).parameters:
        return validate
    return partial(validate, by_alias=True, by_name=True)


def _is_pickled_with_attributes(kind: type[Any]) -> bool:
    """Return whether a class belongs to the program that is run in this process. Its workers load it under the same name, from elsewhere."""
    return getattr(sys.modules.get("__main__"), kind.__name__, None) is kind


def _record(of: type[Any], known: dict[type[Any], str]) -> dict[str, Any]:
    known[of] = _checked_name(of.__name__, f"the name of {of!r}")
    hints = types_of_fields(of)
    defaults = _defaults(of)
    written = written_names(of)
    fields = [
        {"name": written.get(name, name), **_field(of, name, hint, defaults, known)}
        for name, hint in hints.items()
        if name in defaults
    ]
    return {"type": "record", "name": of.__name__, "fields": fields}


_REQUIRED: Final = object()


def _defaults(of: type[Any]) -> dict[str, Any]:
    if is_pydantic(of):
        models: Mapping[str, Any] = of.model_fields
        return {
            name: _REQUIRED if field.is_required() else _default(field.default, field.default_factory)
            for name, field in models.items()
        }
    fields = dataclasses.fields(of) if dataclasses.is_dataclass(of) else msgspec.structs.fields(of)
    return {field.name: _default(field.default, field.default_factory) for field in fields}


def _default(default: Any, factory: Any) -> Any:
    """Return the default of a field. A factory counts if it always returns an equal collection, so that the schema stays the same."""
    if callable(factory):
        try:
            default = factory()
            return default if isinstance(default, _COLLECTIONS) and default == factory() else _REQUIRED
        except TypeError:  # pydantic passes the other fields to some factories
            return _REQUIRED
    return _REQUIRED if default in (dataclasses.MISSING, msgspec.NODEFAULT) else default


def _field(
    of: type[Any], name: str, hint: Any, defaults: Mapping[str, Any], known: dict[type[Any], str]
) -> dict[str, Any]:
    _checked_name(written_names(of).get(name, name), f"the name of a field of {of.__name__}")
    found: dict[str, Any] = {"type": _type(hint, known, f"{of.__name__}.{name}")}
    try:
        default = _json_default(defaults[name])
    except SerdeError:
        return found
    if isinstance(found["type"], list):  # a default belongs to the first branch
        found["type"] = sorted(found["type"], key=lambda branch: _distance(branch, default))
    return {**found, "default": default}


def _json_default(default: Any) -> Any:
    """Return a default as JSON.

    Raises:
        SerdeError: If there is none, or Avro's library would not convert it when it reads.
    """
    if isinstance(default, Enum):
        return default.value
    if isinstance(default, float) and not math.isfinite(default):
        raise SerdeError(f"{default} is not JSON")
    if isinstance(default, str | int | float | None):
        return default
    if isinstance(default, dict):
        return {name: _json_default(value) for name, value in default.items()}
    if isinstance(default, _COLLECTIONS):
        items = [_json_default(item) for item in default]
        return sorted(items, key=repr) if isinstance(default, set | frozenset) else items
    if is_record(type(default)):
        written = written_names(type(default))
        return {
            written.get(name, name): _json_default(getattr(default, name))
            for name in _defaults(type(default))
        }
    raise SerdeError(f"{default!r} is not JSON")


_COLLECTIONS: Final = (list, tuple, set, frozenset, dict)
_JSON_TYPES: Final[Mapping[str, type]] = {
    "null": type(None),
    "boolean": bool,
    "long": int,
    "double": float,
    "string": str,
    "enum": str,
    "array": list,
    "map": dict,
    "record": dict,
}


def _distance(branch: Any, default: Any) -> int:
    """Return how well a default fits a branch of a union: 0 is best."""
    kind = _JSON_TYPES.get(branch if isinstance(branch, str) else branch["type"])
    if kind is type(default):
        return 0
    return 3 if branch == "null" else 1 if kind is None else 2


_NAME: Final = re.compile("[A-Za-z_][A-Za-z0-9_]*")


def _checked_name(name: Any, where: str) -> str:
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    raise SettingsError(
        f"{where} is {name!r}, but Avro's names are text of the form [A-Za-z_][A-Za-z0-9_]*; give the schema as text"
    )


def _union(union: Any, known: dict[type[Any], str], where: str) -> Any:
    """Return a union without equal branches, in the order in which Avro's library finds the right one.

    It writes the first branch that fits: an int also fits double, and a datetime is also a date.

    Raises:
        SettingsError: If no order is right, so that some objects would be read as others.
    """
    branches: list[Any] = []
    records = [hint for hint in get_args(union) if is_record(hint)]
    forms: dict[Any, Any] = {"map": records[0]} if records else {}  # data of both is a dict
    for hint in get_args(union):
        found = _type(hint, known, where)
        for branch in found if isinstance(found, list) else [found]:
            if branch in branches:
                continue
            branches.append(branch)
            others = [forms.setdefault(claim, hint) for claim in _claims(hint, branch)]
            other = next((other for other in others if other is not hint), None)
            if other is not None:
                raise SettingsError(
                    f"{where} has the type {union!r}, but Avro's data does not tell {other!r} and {hint!r} apart. Use one of "
                    "the two, or give the schema as text"
                )
    return sorted(branches, key=_rank) if len(branches) > 1 else branches[0]


def _rank(branch: Any) -> int:
    return 0 if branch == "null" else 2 if branch in ("double", _PRIMITIVES[date]) else 1


def _claims(hint: Any, branch: Any) -> tuple[Any, ...]:
    """Return what only one branch of a union may be. An int would also be written as a date or a time."""
    if is_pydantic(hint):
        return (tuple((name, str(field.annotation)) for name, field in hint.model_fields.items()),)
    if branch == "long":
        return ("date", "timestamp-micros")
    if isinstance(branch, str):
        return (branch,)
    return (
        branch["logicalType"] if branch["type"] in ("int", "long") else branch.get("name", branch["type"]),
    )


def _type(hint: Any, known: dict[type[Any], str], where: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _type(arguments[0], known, where)
    if origin in (Union, types.UnionType):
        return _union(hint, known, where)
    if origin in (list, tuple, set, frozenset) and len(set(arguments) - {...}) == 1:
        return {"type": "array", "items": _type(arguments[0], known, where)}
    if origin is dict and arguments[0] is str:
        return {"type": "map", "values": _type(arguments[1], known, where)}
    if hint in _PRIMITIVES:
        return _PRIMITIVES[hint]
    if hint in known:
        return known[hint]
    if isinstance(hint, type) and issubclass(hint, Enum):
        known[hint] = hint.__name__
        symbols = [
            _checked_name(member.value, f"the value of {member}, a type of {where},") for member in hint
        ]
        return {"type": "enum", "name": hint.__name__, "symbols": symbols}
    if is_record(hint):
        return _record(hint, known)
    raise SettingsError(
        f"{where} has the type {hint!r}, which has no counterpart in Avro; give the schema as text"
    )
