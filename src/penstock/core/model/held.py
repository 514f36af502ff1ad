"""Held updates: what a suppressed table keeps of a row until it is given.

In the bytes, lengths of -1 stand for None:

    timestamp (8) | length of the value (4) | length of the value before (4) | number of headers (4)
    value | value before | for each header: length of the name (4) | length of its value (4) | name | value
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from penstock.core.model.record import Headers
from penstock.core.model.serdes import Serde

_HEAD: Final = struct.Struct(">qiiI")
_LENGTHS: Final = struct.Struct(">ii")


class Held(NamedTuple):
    """The newest update of a row that is held back.

    Attributes:
        new: Its value; None is a deletion.
        old: The value that was given last, None if there is none.
        timestamp: The update's, ms since the epoch.
        headers: The update's.
    """

    new: Any
    old: Any
    timestamp: int
    headers: Headers


def held(key: Serde[Any], value: Serde[Any]) -> Serde[Held]:
    r"""Make the serde of held updates of a table.

    Args:
        key: Serde of its keys; only its name is used, which says how to read the keys of the store.
        value: Serde of its values.

    Example:
        >>> from penstock.core.model import serdes
        >>> serde = held(serdes.string, serdes.string)
        >>> serde.deserialize(serde.serialize(Held("b", None, 7, (("h", b"x"),))))
        Held(new='b', old=None, timestamp=7, headers=(('h', b'x'),))
    """
    parts = _Held(value.serialize, value.deserialize)
    return Serde(f"held({key.name}, {value.name})", parts.write, parts.read, value.immutable, (Held,))


@dataclass(frozen=True, slots=True)
class _Held:
    to_bytes: Callable[[Any], bytes]
    from_bytes: Callable[[bytes], Any]

    def write(self, update: Held) -> bytes:
        new, old = (None if value is None else self.to_bytes(value) for value in update[:2])
        parts = [
            _HEAD.pack(update.timestamp, _length(new), _length(old), len(update.headers)),
            new or b"",
            old or b"",
        ]
        for name, content in update.headers:
            encoded = name.encode()
            parts += [_LENGTHS.pack(len(encoded), _length(content)), encoded, content or b""]
        return b"".join(parts)

    def read(self, data: bytes) -> Held:
        timestamp, *lengths, count = _HEAD.unpack_from(data)
        (new, old), at = _cut(data, _HEAD.size, lengths)
        headers: list[tuple[str, bytes | None]] = []
        for _ in range(count):
            (name, content), at = _cut(data, at + _LENGTHS.size, _LENGTHS.unpack_from(data, at))
            headers.append(((name or b"").decode(), content))
        return Held(self._value(new), self._value(old), timestamp, tuple(headers))

    def _value(self, data: bytes | None) -> Any:
        return None if data is None else self.from_bytes(data)


def _length(part: bytes | None) -> int:
    return -1 if part is None else len(part)


def _cut(data: bytes, at: int, lengths: Any) -> tuple[list[bytes | None], int]:
    """Give the parts of these lengths, and where they end."""
    parts: list[bytes | None] = []
    for length in lengths:
        parts.append(None if length < 0 else data[at : at + length])
        at += max(length, 0)
    return parts, at
