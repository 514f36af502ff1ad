"""Serdes: convert keys and values to bytes and back.

A serde never receives None, because a null key or value is also null on the broker. A serde declares whether its objects are
*immutable*. Stores may keep immutable objects in memory instead of their bytes, which makes aggregates over numbers and strings fast.
"""

from __future__ import annotations

import builtins
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, TypeVar
from uuid import UUID

from millstream.core.model import serde_formats as _formats
from millstream.core.model.arguments import checked, checked_constructor
from millstream.core.model.calendars import Windows
from millstream.core.model.durations import Duration, not_negative
from millstream.core.model.errors import ArgumentError, SerdeError
from millstream.core.model.record import Headers, checked_headers
from millstream.core.model.windowed import Windowed

T = TypeVar("T")


Side = Literal["key", "value"]


@dataclass
class SerdeContext:
    """The context of a serde created by :func:`in_context`, passed in addition to the object or the bytes.

    Attributes:
        topic: The topic to write or read; None in a store.
        side: Whether the serde is used for the key or the value.
        headers: Name and value pairs of the record. A serializer may append to them. The key is serialised before the value.
    """

    topic: str | None
    side: Side
    headers: list[tuple[str, builtins.bytes | None]]


@checked_constructor
@dataclass(frozen=True)
class Serde(Generic[T]):
    """A pair of functions that convert objects to bytes and back, with a name that identifies the format of state.

    Attributes:
        name: Name of the format in errors, in ``describe()`` and in the checkpoint.
        serialize: Object to bytes, or None for a value that counts as null. Raises SerdeError or TypeError if the object does not fit.
            Its results are not checked; those of a serde created by :func:`of` are.
        deserialize: Bytes to object. Raises any exception if the bytes do not fit.
        immutable: Whether the objects are immutable.
        accepts: Exact types whose objects always fit and are never serialised to None. A store accepts such objects without
            serialising them.
        verbatim: For a serde that writes exactly the bytes that it has read: a function that raises any exception if one of many byte
            strings does not fit, in a fraction of the time of deserialising each. None if the bytes may differ.
        contextual: For a serde created by :func:`in_context`: its functions, which take a :class:`SerdeContext` after the object or
            the bytes.
        parse: Text, such as a key in a query of a store, to object. Raises ValueError or SerdeError if it does not fit. None if the
            text is JSON for the object.

    Source: ``org.apache.kafka.common.serialization.Serde``.
    """

    name: str
    serialize: Callable[[T], builtins.bytes]
    deserialize: Callable[[builtins.bytes], T]
    immutable: bool = False
    accepts: tuple[type, ...] = ()
    verbatim: Callable[[Sequence[builtins.bytes]], object] | None = None
    contextual: tuple[Callable[..., Any], Callable[..., Any]] | None = None
    parse: Callable[[str], T] | None = None

    def __repr__(self) -> str:
        return f"serdes.{self.name}"


@dataclass(frozen=True)
class _Bytes:
    """A user's function that serialises: refuses what a topic or a store cannot contain, where the function is known.

    ``null`` is whether it may return None. It is not compared, because the bytes are the same.
    """

    serde: str
    function: Callable[..., Any]
    null: bool = field(default=True, compare=False)

    def __call__(self, data: Any, *context: SerdeContext) -> Any:
        done = self.function(data, *context)
        if isinstance(done, builtins.bytes) or (done is None and self.null):
            return done
        what = "None where a null is impossible" if done is None else f"{type(done).__name__}, not bytes"
        raise SerdeError(f"serialize of the serde {self.serde!r} returned {what}; correct the function")


@checked
def of(
    serialize: Callable[[T], builtins.bytes],
    deserialize: Callable[[builtins.bytes], T],
    *,
    name: str = "custom",
    immutable: bool = False,
    accepts: tuple[type, ...] = (),
    parse: Callable[[str], T] | None = None,
) -> Serde[T]:
    """Create a serde from two functions.

    Args:
        serialize: Object to bytes; never called with None. It may return None for null, but not for a key of a store.
        deserialize: Bytes to object; never called with None.
        name: Name of the format, which a store records. Change the name when the format changes.
        immutable: True only if objects of this type cannot be changed in place.
        accepts: Exact types for whose objects ``serialize`` always returns bytes; a store does not check these objects on put.
        parse: Text to object, for keys in queries from the shell or over HTTP; None if the text is JSON for the object.

    Example:
        >>> upper = of(lambda s: s.upper().encode(), lambda b: b.decode(), name="upper")
        >>> upper.serialize("a")
        b'A'
    """
    if not (isinstance(accepts, tuple) and all(isinstance(each, type) for each in accepts)):
        raise ArgumentError(f"of: accepts must be a tuple of types, such as (str,), not {accepts!r}")
    return Serde(name, _Bytes(name, serialize), deserialize, immutable, accepts, parse=parse)


@dataclass(frozen=True)
class _Alone:
    """A contextual function in a place without topic or headers, such as a store."""

    function: Callable[[Any, SerdeContext], Any]

    def __call__(self, data: Any) -> Any:
        return self.function(data, SerdeContext(None, "value", []))


@checked
def in_context(
    serialize: Callable[[T, SerdeContext], builtins.bytes],
    deserialize: Callable[[builtins.bytes, SerdeContext], T],
    *,
    name: str = "custom",
    parse: Callable[[str], T] | None = None,
) -> Serde[T]:
    """Create a serde that receives topic and headers, for formats that keep their schema in a header.

    Records with such a serde are read and written one at a time. Where there is no topic (in stores, and inside other serdes), the context
    has the topic None and no headers, and appended headers are ignored.

    Args:
        serialize: Object and :class:`SerdeContext` to bytes; never called with None. It may append to ``context.headers``.
        deserialize: Bytes and :class:`SerdeContext` to object; never called with None.
        name: Name of the format, which a store records. Change the name when the format changes.
        parse: As in :func:`of`.

    Source: ``org.apache.kafka.common.serialization.Serializer.serialize(topic, headers, data)``.

    Example:
        >>> def write(text: str, context: SerdeContext) -> bytes:
        ...     context.headers.append(("schema", b"1"))
        ...     return text.encode()
        >>> versioned = in_context(write, lambda data, context: data.decode() + dict(context.headers)["schema"].decode())
        >>> serialize_for_topic(versioned, "a", "out", "value", ())
        (b'a', (('schema', b'1'),))
    """
    write = _Bytes(name, serialize)
    contextual = write, deserialize
    return Serde(name, _Alone(write), _Alone(deserialize), contextual=contextual, parse=parse)


def never_null(serde: Serde[T]) -> Serde[T]:
    """Return an equal serde that raises a SerdeError if a user's function returns None, for keys of stores and for parts of keys."""
    write = serde.serialize
    if isinstance(write, _Alone) and isinstance(write.function, _Bytes):
        return replace(serde, serialize=_Alone(replace(write.function, null=False)))
    return replace(serde, serialize=replace(write, null=False)) if isinstance(write, _Bytes) else serde


def serialize_for_topic(
    serde: Serde[Any], data: Any, topic: str, side: Side, headers: Headers
) -> tuple[builtins.bytes | None, Headers]:
    """Serialise a key or a value of a record for a topic; return the bytes and the new headers of the record."""
    if data is None:
        return None, headers
    if serde.contextual is None:
        return serde.serialize(data), headers
    context = SerdeContext(topic, side, list(headers))
    done: builtins.bytes | None = serde.contextual[0](data, context)
    return done, checked_headers(context.headers)


def read(serde: Serde[Any], data: builtins.bytes | None, topic: str, side: Side, headers: Headers) -> Any:
    """Deserialise a key or a value of a record from a topic."""
    if data is None:
        return None
    if serde.contextual is None:
        return serde.deserialize(data)
    return serde.contextual[1](data, SerdeContext(topic, side, list(headers)))


def _number_serde(name: str, code: str, wanted: str, parse: type, *accepts: type) -> Serde[Any]:
    parts = _formats.NumberFormat(name, code, wanted)
    return Serde(name, parts.write, parts.read, bool(accepts), accepts, parse=parse)


string: Serde[str] = Serde(
    "string",
    _formats.string_to_bytes,
    _formats.string_from_bytes,
    True,
    (str,),
    _formats.check_strings,
    parse=str,
)
"""Text as UTF-8 (Java: StringSerializer)."""
bytes: Serde[builtins.bytes] = Serde(  # noqa: A001 - serdes.bytes
    "bytes",
    _formats.checked_bytes,
    _formats.checked_bytes,
    True,
    (builtins.bytes,),
    _formats.check_bytes,
    parse=str.encode,
)
"""Bytes, unchanged (Java: ByteArraySerializer)."""
int64: Serde[int] = Serde(
    "int64",
    _formats.int64_to_bytes,
    _formats.int64_from_bytes,
    True,
    (int,),
    _formats.check_int64s,
    parse=int,
)
"""64-bit integers, big endian (Java: LongSerializer)."""
float64: Serde[float] = Serde(
    "float64", _formats.float64_to_bytes, _formats.float64_from_bytes, True, (float,), parse=float
)
"""64-bit floats, big endian (Java: DoubleSerializer)."""
int16: Serde[int] = _number_serde("int16", ">h", "an int of 16 bits", int, int)
"""16-bit integers, big endian (Java: ShortSerializer)."""
int32: Serde[int] = _number_serde("int32", ">i", "an int of 32 bits", int, int)
"""32-bit integers, big endian (Java: IntegerSerializer)."""
float32: Serde[float] = _number_serde("float32", ">f", "a float of 32 bits", float)
"""32-bit floats, big endian (Java: FloatSerializer). Reading may return a different number, because Python floats have 64 bits."""
uuid: Serde[UUID] = Serde("uuid", _formats.uuid_to_bytes, _formats.uuid_from_bytes, True, (UUID,), parse=UUID)
"""A ``uuid.UUID`` as text, in UTF-8 (Java: UUIDSerializer)."""
json: Serde[Any] = Serde("json", _formats.json_to_bytes, _formats.json_from_bytes, accepts=(int, bool))
"""JSON-compatible objects, as compact UTF-8. Several times as fast if msgspec is installed, with equal bytes and objects."""
pickle: Serde[Any] = Serde("pickle", _formats.pickle_to_bytes, _formats.unpickled)
"""Any Python object. Only for stores and topics to which no one else can write: unpickling runs code."""


_QUICK: dict[Callable[[Any], Any], Callable[[Any], Any]] = {
    _formats.string_to_bytes: str.encode,
    _formats.string_from_bytes: builtins.bytes.decode,
    _formats.int64_to_bytes: _formats.LONG.pack,
    _formats.float64_to_bytes: _formats.DOUBLE.pack,
}
_BYTES_OR_NULL = {builtins.bytes, type(None)}


def quickly(convert: Callable[[Any], Any], items: list[Any]) -> list[Any] | None:
    """Convert many objects at once, in a fraction of the time of converting each.

    Args:
        convert: ``serialize`` or ``deserialize`` of a serde.
        items: The arguments of its calls.

    Returns:
        The results, or the same list if nothing changes; None if there is no faster way, or an item does not fit.
    """
    if convert is _formats.checked_bytes:
        return items if _BYTES_OR_NULL.issuperset(map(type, items)) else None
    quick = _QUICK.get(convert)
    if quick is None:
        return None
    try:
        return list(map(quick, items))
    except Exception:
        return None


def change(of: Serde[Any]) -> Serde[Any]:
    """Create the serde of a table's changes (new and old value) in repartition topics.

    The format is one length-prefixed part per value. A missing part is a null (Kafka Streams: ``ChangedSerializer``).
    """

    def serialize(pair: Any) -> builtins.bytes:
        new, old = (None if value is None else of.serialize(value) for value in pair)
        head = struct.pack(">i", -1 if new is None else len(new)) + (new or b"")
        return head + (b"" if old is None else b"\x01" + old)

    def deserialize(data: builtins.bytes) -> Any:
        (size,) = struct.unpack_from(">i", data)
        end = 4 + max(size, 0)
        new = of.deserialize(data[4:end]) if size >= 0 else None
        return (new, of.deserialize(data[end + 1 :]) if len(data) > end else None)

    return Serde(f"change({of.name})", serialize, deserialize, of.immutable)


@checked
def list_of(inner: Serde[T]) -> Serde[list[T | None]]:
    r"""Create the serde of lists. Items may be None.

    Args:
        inner: Serde of the items. Items of a fixed size (numbers, UUIDs) are written without lengths.

    Source: KIP-466; ``org.apache.kafka.common.serialization.ListSerializer``.

    Example:
        >>> list_of(int16).serialize([1, None])
        b'\x00\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\x02\x00\x01'
        >>> list_of(int16).deserialize(_)
        [1, None]
    """
    parts = _formats.ListFormat(
        inner.serialize, inner.deserialize, _FIXED.get(inner.name, -1) if _is_ours(inner) else -1
    )
    return Serde(f"list({inner.name})", parts.write, parts.read)


_FIXED = {"int16": 2, "int32": 4, "float32": 4, "int64": 8, "float64": 8, "uuid": 36}
"""Size of an item in bytes, by name of the serde, for serdes with a fixed size."""


def _is_ours(serde: Serde[Any]) -> bool:
    return serde in (int16, int32, float32, int64, float64, uuid)


@checked
def time_windowed(key: Serde[T], size: Duration | Windows) -> Serde[Windowed[T]]:
    r"""Create the serde of keys in windows of a fixed size, for topics.

    The format is the bytes of the key followed by the start of the window in eight bytes, big endian. The end is not written.

    Args:
        key: Serde of the keys.
        size: Length of a window (``timedelta`` or ms), from which a reader computes the end, or user-defined windows.

    Source: ``org.apache.kafka.streams.kstream.TimeWindowedSerializer``.

    Example:
        >>> serde = time_windowed(string, 1000)
        >>> serde.serialize(Windowed("a", 5, 1005))
        b'a\x00\x00\x00\x00\x00\x00\x00\x05'
        >>> serde.deserialize(_)
        Windowed(key='a', start=5, end=1005)
    """
    write, read = never_null(key).serialize, key.deserialize
    parts = (
        _formats.CalendarWindowedFormat(write, read, size.size_ms, size)
        if isinstance(size, Windows)
        else _formats.TimeWindowedFormat(write, read, not_negative("the size of windows", size))
    )
    return Serde(f"time_windowed({key.name})", parts.write, parts.read, key.immutable)


def writes_windows_of(serde: Serde[Any], key: Serde[Any], *, sessions: bool = False) -> bool:
    """Return whether a serde is for keys in windows of a fixed size, or in sessions, based on the given serde of keys."""
    parts = getattr(serde.serialize, "__self__", None)
    windowed: Any = _formats.SessionWindowedFormat if sessions else _formats.TimeWindowedFormat
    return isinstance(parts, windowed) and bool(parts.to_bytes == key.serialize)


def window_bytes(serde: Serde[Any]) -> int:
    """Return the number of bytes for the window in the output of a serde of windowed keys; 0 for other serdes.

    Example:
        >>> window_bytes(time_windowed(string, 1000)), window_bytes(session_windowed(string)), window_bytes(string)
        (8, 16, 0)
    """
    parts = getattr(serde.serialize, "__self__", None)
    if isinstance(parts, _formats.SessionWindowedFormat):
        return _formats.BOUNDS.size
    return _formats.LONG.size if isinstance(parts, _formats.TimeWindowedFormat) else 0


@checked
def session_windowed(key: Serde[T]) -> Serde[Windowed[T]]:
    r"""Create the serde of keys in sessions, for topics.

    The format is the bytes of the key, followed by the end and the start of the session in eight bytes each, big endian.

    Source: ``org.apache.kafka.streams.kstream.SessionWindowedSerializer``.

    Example:
        >>> serde = session_windowed(string)
        >>> serde.serialize(Windowed("a", 5, 7))
        b'a\x00\x00\x00\x00\x00\x00\x00\x07\x00\x00\x00\x00\x00\x00\x00\x05'
        >>> serde.deserialize(_)
        Windowed(key='a', start=5, end=7)
    """
    parts = _formats.SessionWindowedFormat(never_null(key).serialize, key.deserialize)
    return Serde(f"session_windowed({key.name})", parts.write, parts.read, key.immutable)
