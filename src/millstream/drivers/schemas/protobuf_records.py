"""Protobuf messages as plain data: the conversion of dicts to and from messages of a generated class."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from millstream.core.model.errors import SerdeError

_TIMESTAMP: Final = "google.protobuf.Timestamp"


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
            _set(message, fields[name], value, f"{where}.{name}")
        except (TypeError, ValueError, AttributeError) as error:
            raise SerdeError(f"{where}.{name} cannot be {value!r}: {error}") from None


def _set(message: Message, field: FieldDescriptor, value: Any, where: str) -> None:
    target = getattr(message, field.name)
    if _is_map(field):
        entry = field.message_type.fields_by_name["value"]
        for key, item in value.items():
            if entry.message_type is None:
                target[key] = _scalar(entry, item)
            else:
                _fill_message(target[key], entry.message_type, item, where)
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
        return str(value)  # dates, UUIDs and decimals
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


def _is_map(field: FieldDescriptor) -> bool:
    return bool(field.message_type is not None and field.message_type.GetOptions().map_entry)
