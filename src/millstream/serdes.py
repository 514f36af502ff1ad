"""Serdes: ``ms.serdes.string``, ``ms.serdes.json``, and serdes with a schema registry.

Functions that need a package of the extra ``schemas`` import it when they are called.
"""

from __future__ import annotations

import json as _json
from collections.abc import Mapping
from typing import Any, TypeVar, overload

from millstream.core.model.arguments import checked
from millstream.core.model.errors import SettingsError
from millstream.core.model.serdes import *  # noqa: F403
from millstream.core.model.serdes import Serde, in_context

_T = TypeVar("_T")


@checked
def avro(
    schema: type[_T] | str | Mapping[str, Any],
    *,
    registry: str | Mapping[str, Any],
    subject: str = "topic",
    register: str = "auto",
    namespace: str | None = None,
) -> Serde[_T]:
    """Create an Avro serde with a schema registry, in Confluent's wire format.

    Args:
        schema: A dataclass, a pydantic model or a msgspec Struct; or, for dicts, an Avro schema as text or dict. Data that was written
            with another version of the schema is converted to this schema by Avro's rules.
        registry: The address of the registry, or settings of ``confluent_kafka.schema_registry.SchemaRegistryClient`` by name. Settings
            may contain references from ``ms.secret``. ``mock://name`` is a registry in the memory of the process.
        subject: How the subject is named: ``"topic"``, ``"record"`` or ``"topic_record"``. In a store, it is the name of the record.
        register: ``"auto"`` registers the schema at the first write; ``"check"`` writes only with a registered schema; ``"never"`` writes
            with the newest registered schema.
        namespace: The namespace of a record name that is derived from a type.

    Returns:
        The serde. It raises ``SerdeError`` for bytes in another format and for a schema that the registry refuses. It raises
        ``UnavailableError``, which no error policy can skip, if the registry does not answer for a minute.

    Raises:
        SettingsError: If the type or the schema cannot be used, or the extra ``schemas`` is not installed.

    Source: Confluent's ``SpecificAvroSerde`` and ``GenericAvroSerde``.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Order:
        ...     id: str
        ...     cents: int
        >>> orders = avro(Order, registry="mock://shop")
        >>> data = orders.serialize(Order("a", 250))
        >>> data[0], orders.deserialize(data)
        (0, Order(id='a', cents=250))
    """
    types = _extra("record_types")
    if isinstance(schema, type):
        if not types.is_record(schema):
            raise SettingsError(f"{schema!r} is not a dataclass, pydantic model or msgspec Struct")
        text = _json.dumps(types.avro_schema(schema, namespace))
    else:
        text = _schema_text(schema)
    of = schema if isinstance(schema, type) else None
    _extra("schema_texts").check_avro(text, of)
    return _registered("avro", of, text, registry, (subject, register))


@checked
def json_schema(
    schema: type[_T] | str | Mapping[str, Any],
    *,
    registry: str | Mapping[str, Any],
    subject: str = "topic",
    register: str = "auto",
) -> Serde[_T]:
    """Create a JSON serde with a JSON Schema in a schema registry, in Confluent's wire format.

    Args:
        schema: A dataclass, a pydantic model or a msgspec Struct; or, for dicts, a JSON Schema as text or dict.
        registry: As for :func:`avro`.
        subject: As for :func:`avro`.
        register: As for :func:`avro`.

    Returns:
        The serde, which raises the same errors as that of :func:`avro`.

    Raises:
        SettingsError: If the type or the schema cannot be used, or the extra ``schemas`` is not installed.

    Source: Confluent's ``KafkaJsonSchemaSerde``.

    Example:
        >>> visits = json_schema({"title": "Visit", "type": "object"}, registry="mock://shop")
        >>> visits.deserialize(visits.serialize({"page": "/"}))
        {'page': '/'}
    """
    types = _extra("record_types")
    if isinstance(schema, type):
        if not types.is_record(schema):
            raise SettingsError(f"{schema!r} is not a dataclass, pydantic model or msgspec Struct")
        return _registered(
            "json", schema, _json.dumps(types.json_schema(schema)), registry, (subject, register)
        )
    text = _schema_text(schema)
    _extra("schema_texts").check_json_schema(text)
    return _registered("json", None, text, registry, (subject, register))


@overload
def protobuf(
    message: type[_T], *, registry: str | Mapping[str, Any], subject: str = ..., register: str = ...
) -> Serde[_T]: ...


@overload
def protobuf(
    message: type[Any],
    of: type[_T],
    *,
    registry: str | Mapping[str, Any],
    subject: str = ...,
    register: str = ...,
) -> Serde[_T]: ...


@checked
def protobuf(
    message: type[Any],
    of: type[Any] | None = None,
    *,
    registry: str | Mapping[str, Any],
    subject: str = "topic",
    register: str = "auto",
) -> Serde[Any]:
    """Create a Protobuf serde with a schema registry, in Confluent's wire format.

    ``docs/how-to/use-a-schema-registry.md`` has a tested example.

    Args:
        message: The generated class of the message.
        of: The type of the objects: a dataclass, a pydantic model or a msgspec Struct whose fields have the names of the message's
            fields, or ``dict``. Enums are names, timestamps ``datetime``, absent fields None. None for messages of the generated class.
        registry: As for :func:`avro`.
        subject: As for :func:`avro`.
        register: As for :func:`avro`.

    Returns:
        The serde, which raises the same errors as that of :func:`avro`.

    Raises:
        SettingsError: If ``message`` is not a message class, ``of`` is another type, or the extra ``schemas`` is not installed.

    Source: Confluent's ``KafkaProtobufSerde``.
    """
    types = _extra("record_types")
    if not (isinstance(message, type) and hasattr(message, "DESCRIPTOR")):
        given = repr(message) if isinstance(message, type) else f"an object of type {type(message).__name__}"
        raise SettingsError(
            f"{given} is not a generated class of a Protobuf message, such as Order of the module order_pb2"
        )
    if not (of is None or of is dict or types.is_record(of)):
        raise SettingsError(f"{of!r} is not dict, a dataclass, pydantic model or msgspec Struct")
    if types.is_record(of):
        _extra("readable_types").check_readable(of)
        _extra("protobuf_records").check_enums(message.DESCRIPTOR, of)
    return _registered("protobuf", of, message, registry, (subject, register))


@checked
def typed(kind: type[_T], *, name: str | None = None) -> Serde[_T]:
    """Create a JSON serde for one type; it validates objects when it reads them.

    Args:
        kind: A pydantic model, a dataclass, a msgspec Struct, a TypedDict, or another type that msgspec supports.
        name: The name of the format, which a store remembers; None for ``json:`` and the name of the type.

    Returns:
        The serde. It raises ``SerdeError`` for bytes that do not fit the type.

    Raises:
        SettingsError: If msgspec does not support the type, or the extra ``schemas`` is not installed.

    Source: Kafka has no counterpart; ``org.apache.kafka.common.serialization.Serde``.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Point:
        ...     x: int
        ...     y: int
        >>> points = typed(Point)
        >>> points.serialize(Point(1, 2)), points.deserialize(b'{"x":3,"y":4}')
        (b'{"x":1,"y":2}', Point(x=3, y=4))
    """
    found: Serde[_T] = _extra("typed_json").typed_json(kind, name)
    return found


def _schema_text(schema: str | Mapping[str, Any]) -> str:
    """Return a schema as text."""
    try:
        text = schema if isinstance(schema, str) else _json.dumps(schema)
        _json.loads(text)
    except (TypeError, ValueError) as error:
        raise SettingsError(f"the schema is not JSON ({error}): {schema!r}") from None
    return text


def _registered(
    form: str,
    of: type[Any] | None,
    schema: str | type[Any],
    registry: str | Mapping[str, Any],
    names: tuple[str, str],
) -> Serde[Any]:
    subject, register = names
    serde = _extra("registry_serde")
    for name, given, known in (
        ("subject", subject, ("topic", "record", "topic_record")),
        ("register", register, ("auto", "check", "never")),
    ):
        if given not in known:
            raise SettingsError(f"{name}={given!r} must be one of {', '.join(map(repr, known))}")
    spec = serde.SchemaFormat(form, of, schema, serde.registry_of(registry), subject, register)
    described = schema if isinstance(schema, type) else of
    kind = _extra("schema_texts").name_of(schema) if described is None else described.__name__
    made = serde.RegistrySerde(spec)
    return in_context(made.write, made.read, name=f"{form}:{kind}", parse=made.parse)


def _extra(module: str) -> Any:
    from importlib import import_module

    try:
        return import_module(f"millstream.drivers.schemas.{module}")
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"this serde needs the package {error.name!r}, which is not installed here: pip install 'millstream[schemas]', on every "
            "host of the application"
        ) from None
