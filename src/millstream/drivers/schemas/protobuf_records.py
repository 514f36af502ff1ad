"""Protobuf messages as plain data: the conversion of dicts to and from messages of a generated class."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from struct import Struct
from typing import Any, Final
from uuid import UUID

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from millstream.core.model.errors import SerdeError, SettingsError
from millstream.drivers.schemas.readable_types import classes_in, types_of_fields, written_names
from millstream.drivers.schemas.record_types import is_record

_TIMESTAMP: Final = "google.protobuf.Timestamp"
_FLOAT: Final = Struct("<f")


def to_message(of: type[Message], data: Any) -> Message:
    """Return a message with the fields of a dict. None, and a field that is missing, leave a field unset.

    Raises:
        SerdeError: If the message has no such field, or a value does not fit its field.
    """
    message = of()
    _fill(message, data, of.DESCRIPTOR.name)
    return message


def from_message(message: Message) -> dict[str, Any]:
    """Return the fields of a message as a dict.

    Enums are their names. A field that can be absent is None if it is; every other field has its value or its default.
    """
    return {field.name: _value(message, field) for field in message.DESCRIPTOR.fields}


def _fill(message: Message, data: Any, where: str) -> None:
    if not isinstance(data, Mapping):
        raise SerdeError(f"{where} needs a dict, got {type(data).__name__}: {data!r}")
    fields = message.DESCRIPTOR.fields_by_name
    for name, value in data.items():
        if name not in fields:
            raise SerdeError(f"{where} has no field {name!r}; it has {', '.join(map(repr, fields))}")
        if value is None:
            continue
        try:
            _check_alone(message, fields[name], where)
            _set(message, fields[name], value, f"{where}.{name}")
        except (TypeError, ValueError, AttributeError, OverflowError) as error:
            raise SerdeError(f"{where}.{name} cannot be {value!r}: {error}") from None


def _check_alone(message: Message, field: FieldDescriptor, where: str) -> None:
    """Refuse a second field of a oneof: setting it would clear the first one."""
    other = None if field.containing_oneof is None else message.WhichOneof(field.containing_oneof.name)
    if other is not None:
        raise SerdeError(
            f"{where} has values for {other!r} and {field.name!r}, but only one of them can be set (oneof "
            f"{field.containing_oneof.name}); leave the other one None"
        )


def _set(message: Message, field: FieldDescriptor, value: Any, where: str) -> None:
    target = getattr(message, field.name)
    if _is_map(field):
        entry = field.message_type.fields_by_name["value"]
        for key, item in value.items():
            if entry.message_type is None:
                target[key] = _scalar(entry, item)
            else:
                _fill_message(target[key], entry.message_type, item, where)
    elif field.is_repeated and isinstance(value, str | bytes | Mapping):
        raise TypeError(f"a repeated field needs a list, not {type(value).__name__}")
    elif field.is_repeated and field.message_type is not None:
        for item in value:
            _fill_message(target.add(), field.message_type, item, where)
    elif field.is_repeated:
        target.extend(_scalar(field, item) for item in value)
    elif field.message_type is not None:
        target.SetInParent()  # so that an empty message is present
        _fill_message(target, field.message_type, value, where)
    else:
        setattr(message, field.name, _scalar(field, value))


def _fill_message(target: Any, of: Descriptor, value: Any, where: str) -> None:
    if of.full_name == _TIMESTAMP and isinstance(value, datetime):
        target.FromDatetime(value)
    else:
        _fill(target, value, where)


def _scalar(field: FieldDescriptor, value: Any) -> Any:
    if field.enum_type is not None and isinstance(value, str):
        return _enum_number(field.enum_type, value)
    if field.type == FieldDescriptor.TYPE_STRING and not isinstance(value, str):
        if isinstance(value, date | UUID | Decimal):
            return str(value)
        raise TypeError(f"it needs text, not {type(value).__name__}")
    if field.type == FieldDescriptor.TYPE_FLOAT and isinstance(value, float | int):
        _FLOAT.pack(float(value))  # Protobuf would write a number that is too large as an infinite one
    return value


def _enum_number(of: EnumDescriptor, name: str) -> int:
    if name not in of.values_by_name:
        raise ValueError(f"{of.name} has {', '.join(map(repr, of.values_by_name))}")
    return int(of.values_by_name[name].number)


def _value(message: Message, field: FieldDescriptor) -> Any:
    if field.has_presence and not message.HasField(field.name):
        return None
    value = getattr(message, field.name)
    if _is_map(field):
        entry = field.message_type.fields_by_name["value"]
        return {key: _python_value(entry, item) for key, item in value.items()}
    if field.is_repeated:
        return [_python_value(field, item) for item in value]
    return _python_value(field, value)


def _python_value(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None:
        if field.message_type.full_name == _TIMESTAMP:
            return value.ToDatetime(UTC)
        return from_message(value)
    if field.enum_type is not None and value in field.enum_type.values_by_number:
        return field.enum_type.values_by_number[value].name
    return value


def check_enums(message: Descriptor, of: type[Any], seen: frozenset[type[Any]] = frozenset()) -> None:
    """Refuse a record type with numbers for enums of a message: they are read as names.

    Raises:
        SettingsError: If a field of the type, or of a type in it, could not be read.
    """
    hints, names = types_of_fields(of), written_names(of)
    for name, hint in hints.items():
        field = message.fields_by_name.get(names.get(name, name))
        if field is None:
            continue
        if _is_map(field):
            field = field.message_type.fields_by_name["value"]
        kinds = set(classes_in(hint))
        if field.enum_type is not None and str not in kinds and any(map(_is_number, kinds)):
            raise SettingsError(
                f"{of.__name__}.{name} has the type {hint!r}, but the enum {field.enum_type.name} is read as the name of its value. "
                "Use str, or an Enum whose values are these names"
            )
        if field.message_type is not None:
            for kind in kinds - seen:
                if is_record(kind):
                    check_enums(field.message_type, kind, seen | {kind})


def _is_number(kind: type[Any]) -> bool:
    return issubclass(kind, int) or (
        issubclass(kind, Enum) and not all(isinstance(member.value, str) for member in kind)
    )


def _is_map(field: FieldDescriptor) -> bool:
    return bool(field.message_type is not None and field.message_type.GetOptions().map_entry)
