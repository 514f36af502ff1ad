"""Serde formats: the functions of the built-in serdes that convert objects to bytes and back."""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final
from uuid import UUID

try:
    import msgspec
except ImportError:  # it is optional
    msgspec = None  # type: ignore[assignment]

from millstream.core.model.calendars import Windows
from millstream.core.model.errors import SerdeError
from millstream.core.model.windowed import Windowed, window_end

_NAME: Final = "millstream.core."
_FORMER_NAME: Final = "penstock.core."
_MOVED: Final = {"millstream.core.engine.ledger": "millstream.core.engine.asynchronous.record_keys"}
"""Modules of stored classes, by former name."""


def misfit(serde: str, wanted: str, got: Any) -> SerdeError:
    """Return the error for an object that does not fit a serde."""
    shown = repr(got)
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    return SerdeError(
        f"serdes.{serde} takes {wanted}, but got {type(got).__name__} {shown}; set a matching serde with key=... "
        "or value=... on the operator that created it"
    )


def string_to_bytes(text: str) -> bytes:
    """Encode text as UTF-8."""
    try:
        return text.encode()
    except (AttributeError, UnicodeEncodeError):
        raise misfit("string", "str", text) from None


def checked_bytes(data: bytes) -> bytes:
    """Return bytes unchanged."""
    if type(data) is bytes:
        return data
    raise misfit("bytes", "bytes", data)


LONG = struct.Struct(">q")
INT = struct.Struct(">i")
DOUBLE = struct.Struct(">d")
BOUNDS = struct.Struct(">qq")


def int64_to_bytes(number: int) -> bytes:
    """Encode a 64-bit integer, big endian."""
    try:
        return LONG.pack(number)
    except struct.error:
        raise misfit("int64", "an int of 64 bits", number) from None


def int64_from_bytes(data: bytes) -> int:
    """Decode a 64-bit integer, big endian."""
    return LONG.unpack(data)[0]  # type: ignore[no-any-return]


@dataclass(frozen=True)
class NumberFormat:
    """The functions of a serde of fixed-size numbers. They are methods, because a ``struct.Struct`` cannot be pickled.

    Attributes:
        code: Format for ``struct``.
        wanted: Accepted type, for errors.
    """

    name: str
    code: str
    wanted: str

    def write(self, number: Any) -> bytes:
        """Serialise an object."""
        try:
            return struct.pack(self.code, number)
        except (struct.error, OverflowError):
            raise misfit(self.name, self.wanted, number) from None

    def read(self, data: bytes) -> Any:
        """Deserialise bytes."""
        return struct.unpack(self.code, data)[0]


def uuid_to_bytes(value: UUID) -> bytes:
    """Encode a UUID as text."""
    if not isinstance(value, UUID):
        raise misfit("uuid", "uuid.UUID", value)
    return str(value).encode()


def uuid_from_bytes(data: bytes) -> UUID:
    """Decode a UUID from text."""
    return UUID(data.decode())


def float64_to_bytes(number: float) -> bytes:
    """Encode a 64-bit float, big endian."""
    try:
        return DOUBLE.pack(number)
    except (struct.error, OverflowError):  # an int that no float can hold
        raise misfit("float64", "float", number) from None


def float64_from_bytes(data: bytes) -> float:
    """Decode a 64-bit float, big endian."""
    return DOUBLE.unpack(data)[0]  # type: ignore[no-any-return]


_to_json = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


_TEXT: Final = frozenset((str,))
_SAME_SCALARS: Final = frozenset((str, int, bool, type(None)))


def _is_written_alike(values: Iterable[Any]) -> bool:
    """Whether msgspec writes the bytes of the standard library, or raises an exception.

    It accepts more types, writes NaN as null, and exponents in another form: the standard library writes them below 1e-4 and from 1e16.
    """
    for value in values:
        kind = type(value)
        if kind in _SAME_SCALARS:
            continue
        if kind is float:
            if value and not 1e-4 <= abs(value) < 1e16:
                return False
        elif kind is dict:
            if not (_TEXT.issuperset(map(type, value)) and _is_written_alike(value.values())):
                return False
        elif not (kind in (list, tuple) and _is_written_alike(value)):
            return False
    return True


def json_to_bytes(value: Any) -> bytes:
    """Encode an object as compact JSON: the bytes of the standard library, by msgspec if it is installed."""
    if msgspec is not None:
        try:
            if _is_written_alike((value,)):
                return msgspec.json.encode(value)
        except Exception:  # the standard library writes it, or explains why not
            pass
    try:
        return _to_json(value).encode()
    except (TypeError, ValueError) as error:
        raise SerdeError(f"serdes.json cannot write {type(value).__name__}: {error}") from None


def json_from_bytes(data: bytes) -> Any:
    """Decode JSON: the objects of the standard library, by msgspec if it is installed."""
    if msgspec is not None:
        try:
            return msgspec.json.decode(data)
        except Exception:  # the standard library also reads NaN, surrogates and UTF-16, or explains why not
            pass
    return json.loads(data)


def string_from_bytes(data: bytes) -> str:
    """Decode UTF-8."""
    return data.decode()


def pickle_to_bytes(value: Any) -> bytes:
    """Pickle an object."""
    try:
        return pickle.dumps(value, protocol=5)
    except Exception as error:
        raise SerdeError(f"serdes.pickle cannot write {type(value).__name__}: {error}") from None


class _Unpickler(pickle.Unpickler):
    """Maps classes of the project's former name, Penstock, and of moved modules to the current classes."""

    def find_class(self, module: str, name: str) -> Any:
        module = module.replace(_FORMER_NAME, _NAME, 1)
        return super().find_class(_MOVED.get(module, module), name)


def unpickled(data: bytes) -> Any:
    """Unpickle data. Classes under the former name are mapped to the current ones."""
    if _FORMER_NAME.encode() in data:  # even if a package with the former name is installed
        return with_former_names(data)
    return pickle.loads(data)


def with_former_names(data: bytes) -> Any:
    """Unpickle data whose classes may be stored under former names."""
    return _Unpickler(BytesIO(data)).load()


def check_strings(data: Sequence[bytes]) -> str:
    """Raise UnicodeDecodeError if one of the byte strings is not UTF-8."""
    return b"\n".join(data).decode()  # no multi-byte character of UTF-8 can continue after a newline


def check_bytes(data: Sequence[bytes]) -> None:
    """Raise TypeError if one of the objects is not bytes."""
    if data and set(map(type, data)) != {bytes}:
        raise TypeError("it is not bytes")


def check_int64s(data: Sequence[bytes]) -> None:
    """Raise ValueError if one of the byte strings is not a 64-bit integer."""
    if data and set(map(len, data)) != {LONG.size}:
        raise ValueError("a 64-bit integer has eight bytes")


@dataclass(frozen=True, slots=True)
class ListFormat:
    """Lists (KIP-466). Items of a fixed ``size`` (in bytes) are stored without lengths; for other items ``size`` is -1."""

    to_bytes: Callable[[Any], bytes]
    from_bytes: Callable[[bytes], Any]
    size: int

    def write(self, items: Any) -> bytes:
        """Serialise an object."""
        if not isinstance(items, (list, tuple)):
            raise misfit("list_of", "a list", items)
        data = [None if item is None else self.to_bytes(item) for item in items]
        if self.size < 0:
            parts = [INT.pack(-1) if entry is None else INT.pack(len(entry)) + entry for entry in data]
            return b"\x01" + INT.pack(len(data)) + b"".join(parts)
        nulls = [number for number, entry in enumerate(data) if entry is None]
        head = b"".join(map(INT.pack, (len(nulls), *nulls, len(data))))
        return b"\x00" + head + b"".join(entry for entry in data if entry is not None)

    def read(self, data: bytes) -> list[Any]:
        """Deserialise bytes."""
        position, nulls = 1, frozenset[int]()

        def read_number() -> int:
            nonlocal position
            position += INT.size
            found: int = INT.unpack_from(data, position - INT.size)[0]
            return found

        if data[0] == 0:
            if self.size < 0:
                raise ValueError("the items have no lengths, but their serde is not one of a fixed size")
            nulls = frozenset(read_number() for _ in range(read_number()))
        elif data[0] != 1:
            raise ValueError(f"a list begins with 0 or 1, not {data[0]}")
        items: list[Any] = []
        count = read_number()
        if count < 0:
            raise ValueError(f"a list cannot have {count} items")
        for index in range(count):
            size = read_number() if data[0] == 1 else -1 if index in nulls else self.size
            if size < 0:
                items.append(None)
                continue
            if position + size > len(data):
                raise ValueError(f"item {index} of the list is truncated")
            items.append(self.from_bytes(data[position : position + size]))
            position += size
        return items


@dataclass(frozen=True, slots=True)
class TimeWindowedFormat:
    """Keys in windows of a fixed size. The functions are methods: a nested function would be pickled with its ``struct.Struct``."""

    to_bytes: Callable[[Any], bytes]
    from_bytes: Callable[[bytes], Any]
    size_ms: int

    def write(self, windowed: Windowed[Any]) -> bytes:
        """Serialise an object."""
        try:
            key, start, _ = windowed
        except (TypeError, ValueError):
            raise misfit("time_windowed", "Windowed(key, start, end)", windowed) from None
        return self.to_bytes(key) + LONG.pack(start)

    def read(self, data: bytes) -> Windowed[Any]:
        """Deserialise bytes."""
        (start,) = LONG.unpack_from(data, len(data) - 8)
        return Windowed(self.from_bytes(data[:-8]), start, window_end(start, self.size_ms))


@dataclass(frozen=True, slots=True)
class CalendarWindowedFormat(TimeWindowedFormat):
    """Keys in user-defined windows."""

    windows: Windows

    def read(self, data: bytes) -> Windowed[Any]:
        """Deserialise bytes."""
        (start,) = LONG.unpack_from(data, len(data) - 8)
        return Windowed(self.from_bytes(data[:-8]), start, self.windows.end_of(start))


@dataclass(frozen=True, slots=True)
class SessionWindowedFormat:
    """Keys in sessions."""

    to_bytes: Callable[[Any], bytes]
    from_bytes: Callable[[bytes], Any]

    def write(self, windowed: Windowed[Any]) -> bytes:
        """Serialise an object."""
        try:
            key, start, end = windowed
        except (TypeError, ValueError):
            raise misfit("session_windowed", "Windowed(key, start, end)", windowed) from None
        return self.to_bytes(key) + BOUNDS.pack(end, start)

    def read(self, data: bytes) -> Windowed[Any]:
        """Deserialise bytes."""
        end, start = BOUNDS.unpack_from(data, len(data) - 16)
        return Windowed(self.from_bytes(data[:-16]), start, end)
