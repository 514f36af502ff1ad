"""Serdes in Confluent's wire format: a byte 0, the id of the schema in a registry, and the data.

Confluent's serializers do the work. A process creates a serializer when the first record of a topic needs it, one for each topic and
side, because a serializer keeps the schema id of its subject.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.message import Message

from millstream.core.model.errors import MillstreamError, SerdeError, SettingsError, UnavailableError
from millstream.core.model.serdes import SerdeContext
from millstream.drivers.schemas import registry_answers
from millstream.drivers.schemas.plain_data import check_finite, in_utc
from millstream.drivers.schemas.protobuf_records import from_message, to_message
from millstream.drivers.schemas.readable_types import is_pydantic
from millstream.drivers.schemas.record_types import from_plain, to_plain
from millstream.drivers.schemas.typed_json import format_of
from millstream.drivers.schemas.unknown_fields import check_of

_TIMEOUT_S: Final = 10
"""Timeout of a request without a user-defined ``timeout``, in seconds. By default, the client would wait forever."""
Registry = tuple[tuple[str, Any], ...]
"""The settings of a client, sorted by name. Secrets are references."""
_CLIENTS: list[tuple[int, Registry, SchemaRegistryClient]] = []
_LOCK = threading.Lock()


def registry_of(given: str | Mapping[str, Any]) -> Registry:
    """Return the settings of a client, sorted by name.

    Args:
        given: The address, or settings of ``confluent_kafka.schema_registry.SchemaRegistryClient`` by name. Its ``timeout`` (of one
            request, in seconds) is 10 by default.

    Raises:
        SettingsError: If there is no address, or a setting that is text or a number has another type.
    """
    if not isinstance(given, str | Mapping):
        raise SettingsError(f"registry={given!r} is neither an address nor settings by name")
    settings = {"url": given} if isinstance(given, str) else dict(given)
    if not settings.get("url"):
        raise SettingsError("a schema registry needs an address: registry='http://localhost:8081'")
    for name, value in settings.items():
        if not isinstance(name, str):
            raise SettingsError(f"the name of a setting of the schema registry is text, not {name!r}")
        is_text = isinstance(value, str) or any(hasattr(value, way) for way in _SECRET_TEXT)
        if _TEXT.fullmatch(name) and not (is_text or value is None):
            raise SettingsError(
                f"the setting {name!r} of the schema registry is text or a reference such as ms.secret.env('NAME'), not "
                f"{type(value).__name__}"
            )
        if name in _NUMBERS and isinstance(value, str | bool):
            raise SettingsError(f"the setting {name!r} of the schema registry is a number, not {value!r}")
    return tuple(sorted(settings.items()))


_TEXT: Final = re.compile(r"url|basic\.auth\..*|ssl\.(ca|certificate|key)\.(location|password)")
"""Names of the settings whose value is text; others may be numbers, dictionaries or functions."""
_NUMBERS: Final = (
    "timeout",
    "max.retries",
    "retries.wait.ms",
    "retries.max.wait.ms",
    "cache.capacity",
    "cache.latest.ttl.sec",
)
"""Names of the settings whose value is a number. The client would use a ``timeout`` as text in each request, and fail."""
_SECRET_TEXT: Final = ("fetch", "get_secret_value")
"""The methods that return the text of a reference to a secret, and of pydantic's ``SecretStr``."""


def _revealed(value: Any) -> Any:
    reveal = next((getattr(value, way) for way in _SECRET_TEXT if hasattr(value, way)), None)
    return value if reveal is None else reveal()


def client_of(registry: Registry) -> SchemaRegistryClient:
    """Return this process's client.

    Raises:
        SettingsError: If a secret does not exist, or the client rejects a setting.
    """
    process = os.getpid()
    with _LOCK:
        for owner, known, client in _CLIENTS:
            if (owner, known) == (process, registry):  # a forked process must not share connections
                return client
        settings = {name: _revealed(value) for name, value in registry}
        try:
            client = registry_answers.checked(
                SchemaRegistryClient.new_client({"timeout": _TIMEOUT_S, **settings})
            )
        except (AttributeError, OSError, TypeError, ValueError) as error:
            files = [f"{name}={value!r}" for name, value in registry if name.endswith(".location")]
            hint = f"; check {', '.join(files)} on this host" if isinstance(error, OSError) and files else ""
            raise SettingsError(
                f"the client of the schema registry rejects its settings: {_without_user_info(str(error))}{hint}"
            ) from None
        _CLIENTS.append((process, registry, client))
        return client


Format = Literal["avro", "json", "protobuf"]
Subject = Literal["topic", "record", "topic_record"]
"""How the subject of a schema is named. Confluent's strategies."""
Register = Literal["auto", "check", "never"]
"""Whether new schemas are registered, must already be registered, or data is written with the newest registered schema."""

_WRITING: Final[Mapping[Register, Mapping[str, bool]]] = {
    "auto": {"auto.register.schemas": True},
    "check": {"auto.register.schemas": False},
    "never": {"auto.register.schemas": False, "use.latest.version": True},
}
_PATIENCE_S: Final = 60.0
_PAUSE_S: Final = 1.0
_NOT_FOUND: Final = 404
_USER_INFO: Final = re.compile(r"//[^/,]*@")
_INSTANT: Final = '"timestamp-'
"""The beginning of Avro's types of a time with a zone. For those without one, Avro's library ignores the zone that a time has."""


@dataclass(frozen=True)
class SchemaFormat:
    """The format that a serde writes and reads.

    Attributes:
        of: The record type; None for dicts, and for the messages of Protobuf themselves.
        schema: The schema as text; for Protobuf, the generated class of the message.
    """

    format: Format
    of: type[Any] | None
    schema: str | type[Message]
    registry: Registry = field(repr=False)  # it may contain a password
    subject: Subject
    register: Register


class RegistrySerde:
    """Writes and reads one format. Picklable. Serializers remain in the process."""

    def __init__(self, spec: SchemaFormat) -> None:
        self._spec = spec
        self._pid = 0
        self._made: dict[tuple[str | None, str, bool], Callable[..., Any]] = {}

    def __reduce__(self) -> tuple[type[RegistrySerde], tuple[SchemaFormat]]:
        return RegistrySerde, (self._spec,)

    def write(self, data: Any, context: SerdeContext) -> bytes:
        """Serialise an object.

        Raises:
            SerdeError: If the object does not match the schema, or the registry rejects the schema.
        """
        written: bytes = self._patiently(data, context, writing=True)
        return written

    def read(self, data: bytes, context: SerdeContext) -> Any:
        """Deserialise bytes.

        Raises:
            SerdeError: If the bytes have another format, or their schema is not compatible with this one.
        """
        return self._patiently(data, context, writing=False)

    def parse(self, text: str) -> Any:
        """Create an object from JSON, for a key in a query. The registry is not asked.

        Raises:
            SerdeError: If the data does not fit the type.
            ValueError: If the text is not JSON.
        """
        of, schema = self._spec.of, self._spec.schema
        if of is None and not isinstance(schema, str):
            return to_message(schema, json.loads(text))
        return json.loads(text) if of is None or of is dict else format_of(of).parse(text)

    def _patiently(self, data: Any, context: SerdeContext, *, writing: bool) -> Any:
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                call = self._call(context, writing=writing)
                return call(data, _context(context))
            except SettingsError as error:
                raise UnavailableError(
                    f"the schema registry {self._address()} cannot be asked: {error.message}. No records are lost: correct the "
                    "settings of registry=, or the secret, and start the application again"
                ) from None
            except MillstreamError:
                raise
            except Exception as error:
                if not registry_answers.is_outage(error):
                    why = None if writing else _unframed(data, context)
                    hint = self._missing(error, context) if writing else ""
                    raise SerdeError(f"{self._spec.format}: {why or self._reason(error)}{hint}") from None
                if time.monotonic() > deadline:
                    raise UnavailableError(
                        f"the schema registry {self._address()} has not answered for {_PATIENCE_S:.0f} "
                        f"s: {registry_answers.explained(error)}. No records are lost: start the application again when the registry responds"
                    ) from None
            time.sleep(_PAUSE_S)

    def _reason(self, error: Exception) -> str:
        text = str(error) or type(error).__name__
        if isinstance(error, SchemaRegistryError):
            return f"the schema registry {self._address()} answers: {text}"
        return text if isinstance(error, TypeError | ValueError) else f"{type(error).__name__}: {text}"

    def _missing(self, error: Exception, context: SerdeContext) -> str:
        """Return what to do if the registry has no schema to write with."""
        is_missing = isinstance(error, SchemaRegistryError) and error.http_status_code == _NOT_FOUND
        if not is_missing or self._spec.register == "auto":
            return ""
        place = "a store" if context.topic is None else f"topic {context.topic!r}"
        return (
            f". register={self._spec.register!r} writes the {context.side}s of {place} only with a schema that is registered for their "
            "subject: register it, or set register='auto'"
        )

    def _address(self) -> str:
        return _without_user_info(str(dict(self._spec.registry)["url"]))

    def _call(self, context: SerdeContext, *, writing: bool) -> Callable[..., Any]:
        if self._pid != os.getpid():
            self._pid, self._made = os.getpid(), {}
        use = (context.topic if writing else None, context.side, writing)
        if use not in self._made:
            self._made[use] = _writer(self._spec) if writing else _reader(self._spec)
        return self._made[use]


def _without_user_info(text: str) -> str:
    """Return a text without the user names and passwords that its URLs contain."""
    return _USER_INFO.sub("//", text)


def _context(context: SerdeContext) -> SerializationContext:
    topic: Any = context.topic  # None in a store; the functions for subjects below handle it
    return SerializationContext(topic, MessageField(context.side), list(context.headers))


def _writer(spec: SchemaFormat) -> Any:
    client = client_of(spec.registry)
    conf: dict[str, Any] = {**_WRITING[spec.register], "subject.name.strategy": _SUBJECTS[spec.subject]}
    if not isinstance(spec.schema, str):
        return _message_writer(spec.of, spec.schema, client, conf)
    convert = None if spec.of is None else to_plain(spec.of, keep=spec.format == "avro")
    plain = (lambda value: value) if convert is None else convert
    if spec.format == "avro":
        zoned = in_utc if _INSTANT in spec.schema else (lambda data: data)
        check = check_of(spec.schema) if _may_have_unknown_fields(spec) else (lambda data: None)

        def to_dict(value: Any, _: SerializationContext) -> Any:
            data = plain(value)
            check(data)
            return zoned(data)

        return AvroSerializer(client, spec.schema, to_dict, conf)
    return JSONSerializer(spec.schema, client, lambda value, _: _finite(plain(value)), conf)


def _may_have_unknown_fields(spec: SchemaFormat) -> bool:
    """Return whether data may have fields that its schema lacks. The newest registered schema may lack fields of the type."""
    return spec.register != "never" and (spec.of is None or is_pydantic(spec.of))


def _finite(plain: Any) -> Any:
    """Return plain data without NaN and infinite numbers. Confluent's serializer would write what no JSON reader reads, or null."""
    check_finite(plain)
    return plain


def _reader(spec: SchemaFormat) -> Any:
    client = client_of(spec.registry)
    if not isinstance(spec.schema, str):
        return _message_reader(spec.of, spec.schema, client)
    convert = None if spec.of is None else from_plain(spec.of)
    from_dict = (lambda value, _: value) if convert is None else (lambda value, _: convert(value))
    if spec.format == "avro":
        return AvroDeserializer(client, spec.schema, from_dict)
    return JSONDeserializer(spec.schema, from_dict=from_dict, schema_registry_client=client)


def _message_writer(
    of: type[Any] | None, message: type[Message], client: SchemaRegistryClient, conf: Mapping[str, Any]
) -> Any:
    serializer = ProtobufSerializer(message, client, {**conf, "use.deprecated.format": False})
    if of is None:
        return serializer
    if of is dict:
        return lambda value, context: serializer(to_message(message, value), context)
    plain = to_plain(of, keep=True)
    return lambda value, context: serializer(to_message(message, plain(value)), context)


def _message_reader(of: type[Any] | None, message: type[Message], client: SchemaRegistryClient) -> Any:
    deserializer = ProtobufDeserializer(message, {"use.deprecated.format": False}, client)
    if of is None:
        return deserializer
    if of is dict:
        return lambda data, context: from_message(deserializer(data, context))
    convert = from_plain(of)
    return lambda data, context: convert(from_message(deserializer(data, context)))


def _named(record: str | None) -> str:
    if record is None:
        raise SerdeError(
            "the schema has no name, so it has no subject in a store, and none with subject='record' or 'topic_record'. Give a JSON "
            "Schema a title, and use a record as the schema in Avro"
        )
    return record


# A store has no topic.
_SUBJECTS: Final[Mapping[Subject, Callable[[SerializationContext, str | None], str]]] = {
    "topic": lambda at, record: _named(record) if at.topic is None else f"{at.topic}-{at.field}",
    "record": lambda at, record: _named(record),
    "topic_record": lambda at, record: _named(record) if at.topic is None else f"{at.topic}-{_named(record)}",
}


def _unframed(data: bytes, context: SerdeContext) -> str | None:
    """Return why bytes cannot be in Confluent's wire format, or None if they may be."""
    if any(name == f"__{context.side}_schema_id" for name, _ in context.headers):
        return None  # newer producers may write the id there
    if data and data[0] in _SMALLEST and len(data) >= _SMALLEST[data[0]]:
        return None
    start = f"they begin with {data[:10]!r}" if data else "they are empty"
    return (
        f"the bytes are not in Confluent's wire format, a zero byte, the id of a schema and data: {start}. The producer used no "
        "schema registry: read this topic with the serde for its format"
    )


_SMALLEST: Final = {0: 6, 1: 18}
"""Least number of bytes by the first one: 0 precedes an id of 4 bytes, 1 a GUID of 16."""
