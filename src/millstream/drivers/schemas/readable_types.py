"""What msgspec, which reads dataclasses and Structs, says about a type: the types in it, and why it could not be read or not written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import is_dataclass
from typing import Any, Final, get_args, get_type_hints

import msgspec
from msgspec.inspect import (
    AnyType,
    ByteArrayType,
    BytesType,
    CustomType,
    MemoryViewType,
    NamedTupleType,
    StructType,
    TupleType,
    UnionType,
    VarTupleType,
)

from millstream.core.model.errors import SettingsError

_HIDDEN: Final = b'"**********"'
_SECRET: Final = '"writeOnly": true'
"""How pydantic writes a secret that is not empty, and what it says about one in a JSON Schema."""
_CACHE: Final = "__msgspec_cache__"
_BYTES: Final = (BytesType, ByteArrayType, MemoryViewType, AnyType)
_TUPLES: Final = (TupleType, VarTupleType, NamedTupleType, AnyType)


def is_pydantic(of: Any) -> bool:
    return hasattr(of, "model_validate") and hasattr(of, "model_json_schema")


def check_readable(of: type[Any]) -> None:
    """Refuse a type whose objects could be written but not read, such as a union of two dataclasses.

    Raises:
        SettingsError: If msgspec does not support the type.
    """
    types_of_fields(of)
    why = None if is_pydantic(of) else unsupported(of)
    if why is not None:
        raise SettingsError(f"{of!r}: {why}. Change the type so that its objects can be read again")


def unsupported(kind: Any) -> str | None:
    """Return why msgspec does not support a type, or None if it does."""
    try:
        parts = parts_of(kind)
        drop_caches(kind)
    except TypeError as error:
        return str(error)
    except NameError as error:
        return f"{error}, a type in it; define it at the top of its module"
    unknown = next((part.cls for part in parts if isinstance(part, CustomType)), None)
    if unknown is None:
        return None
    return f"msgspec does not support {unknown!r}" + ("" if unknown is kind else ", a type in it")


def check_structs(of: type[Any]) -> None:
    """Refuse Structs whose plain data is no dict of all fields, which Avro's library would take for data without these fields.

    Raises:
        SettingsError: If a Struct is written as an array, or without its defaults, or a union tells Structs apart by their tags.
    """
    if is_pydantic(of):
        return
    for part in parts_of(of):
        if isinstance(part, UnionType) and sum(isinstance(each, StructType) for each in part.types) > 1:
            names = " | ".join(each.cls.__name__ for each in part.types if isinstance(each, StructType))
            raise SettingsError(
                f"{of!r}: Avro's data has no tags, so {names} could not be told apart when they are read. Use one Struct with a "
                "field for each"
            )
        config = part.cls.__struct_config__ if isinstance(part, StructType) else None
        for option in ("array_like", "omit_defaults"):
            if config is not None and getattr(config, option):
                raise SettingsError(
                    f"{part.cls!r} has {option}=True, but Avro writes every field by its name. Remove this option"
                )


def may_have_tuples(of: type[Any]) -> bool:
    """Return whether plain data of a dataclass or Struct may contain tuples."""
    return _has_part(of, _TUPLES)


def may_have_bytes(of: type[Any]) -> bool:
    """Return whether objects of a dataclass may contain bytes, which msgspec writes to JSON in base64."""
    return _has_part(of, _BYTES)


def _has_part(of: type[Any], kinds: tuple[type[Any], ...]) -> bool:
    parts = parts_of(of)
    drop_caches(of)
    return any(isinstance(part, kinds) for part in parts)


def written_names(of: type[Any]) -> dict[str, str]:
    """Return the names under which msgspec writes the fields of a Struct, by their names in Python. A Struct can rename its fields."""
    if not issubclass(of, msgspec.Struct):
        return {}
    return {field.name: field.encode_name for field in msgspec.structs.fields(of)}


def types_of_fields(of: type[Any]) -> dict[str, Any]:
    """Return the types of the fields of a record type, by name.

    Raises:
        SettingsError: If a name in them is not known, such as that of a class in a function.
    """
    if is_pydantic(of):  # it knows such names
        return {name: field.annotation for name, field in of.model_fields.items()}
    try:
        return get_type_hints(of)
    except NameError as error:
        raise SettingsError(f"{of!r}: {error}, a type in it; define it at the top of its module") from None


def parts_of(kind: Any) -> list[Any]:
    """Return the descriptions of a type and of the types in it."""
    return list(_types_within(msgspec.inspect.type_info(kind), set()))


def drop_caches(kind: Any) -> None:
    """Remove what msgspec has stored in the classes of a type. Decoders that exist do not need it.

    It cannot be pickled, and a class of the program that is run (``__main__``) is pickled with its attributes.
    """
    forget(classes_of(kind))


def forget(owners: Iterable[type[Any]]) -> None:
    for owner in owners:
        if _CACHE in vars(owner):
            delattr(owner, _CACHE)


def classes_of(kind: Any) -> list[type[Any]]:
    """Return the classes of a type, in which msgspec stores a cache."""
    owners = (getattr(part, "cls", None) for part in parts_of(kind))
    return [owner for owner in owners if isinstance(owner, type)]


def classes_in(hint: Any) -> Iterator[type[Any]]:
    """Yield the classes in the type of a field, such as those of a union."""
    if isinstance(hint, type):
        yield hint
    for argument in get_args(hint):
        yield from classes_in(argument)


def check_aliases(of: Any, seen: frozenset[type[Any]] = frozenset()) -> None:
    """Refuse a pydantic model whose JSON would have other names than its schema.

    Raises:
        SettingsError: If a field of the model, or of a model in it, is written under another name than the one under which it is read.
    """
    for name, field in of.model_fields.items():
        written, read = field.serialization_alias or name, field.validation_alias or name
        if written != read:
            raise SettingsError(
                f"{of.__name__}.{name} is written as {written!r} and read as {read!r}, but a JSON Schema has one name for both. "
                "Give the field one alias=..., or none"
            )
        for kind in set(classes_in(field.annotation)) - seen - {of}:
            if is_pydantic(kind):
                check_aliases(kind, seen | {of})


def is_pydantic_dataclass(of: Any) -> bool:
    return is_dataclass(of) and hasattr(of, "__pydantic_validator__")


def has_secrets(json_schema: Callable[..., Any]) -> bool:
    """Return whether a pydantic model has a ``SecretStr`` or ``SecretBytes``, as far as it has a JSON Schema."""
    try:
        schema = json_schema(mode="serialization")
    except Exception:  # a field has no schema; pydantic is imported only by the programs that use it
        return False
    return _SECRET in json.dumps(schema, sort_keys=True)


def check_revealed(data: bytes) -> None:
    """Refuse JSON of a model with secrets in which they are asterisks.

    Raises:
        ValueError: If it has one, which no reader would get back.
    """
    if _HIDDEN in data:
        raise ValueError(
            "pydantic writes a secret as asterisks, so it would be lost; give the field a field_serializer that returns its text, or "
            "the type str"
        )


def _types_within(info: Any, seen: set[int]) -> Iterator[Any]:
    """Yield the description of a type and those of the types in it, which may contain themselves."""
    if isinstance(info, tuple):
        for each in info:
            yield from _types_within(each, seen)
    elif isinstance(info, msgspec.inspect.Type | msgspec.inspect.Field) and id(info) not in seen:
        seen.add(id(info))
        yield info
        for name in info.__struct_fields__:
            yield from _types_within(getattr(info, name), seen)
