"""Entries of a store: converts the engine's objects to bytes and back.

An *entry* is a value, or a pair of an entry and a *stamp*, a 64-bit number: the timestamp in a timestamped store, the time of the
last write in an expiring store. In the bytes, stamps come first, as Kafka Streams stores timestamped values.

A put rejects a value that does not fit the store's serde, so that the error policy applies to the record that caused it. A value that
the serializer turns into None deletes the key at once, as in Kafka Streams. A put does not serialise values of the types that a serde
declares in ``accepts``, because serialising each value costs more than counting it; the exceptions are text that is not ASCII, which may
contain surrogates, and ints that may have too many bits. An error that is found only when the micro-batch is written (a serializer of
the user that fails, or returns None, for a value of such a type) stops the application; the message names the store and the key.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from millstream.core.model.errors import MillstreamError, SerdeError, StoreError
from millstream.core.model.serdes import Serde

_STAMP: Final = struct.Struct(">q")


def copier(serde: Serde[Any]) -> Callable[[Any], Any]:
    """Return a function that copies an object, unless its type is immutable."""
    serialize, deserialize = serde.serialize, serde.deserialize
    return (lambda value: value) if serde.immutable else lambda value: deserialize(serialize(value))


def fits_certainly(serde: Serde[Any]) -> Callable[[Any], bool]:
    """Return a quick check of an object whose type is in ``accepts``: False if only serialising the object shows whether it fits."""
    if serde.accepts == (str,):
        return str.isascii
    if serde.accepts == (int,):
        limit = 1 << (_BITS.get(serde.name, 64) - 1)
        return lambda number: -limit <= number < limit
    return lambda value: True


_BITS: Final = {"int16": 16, "int32": 32}


class Values:
    """Converts the entries of one store to bytes and back. Stateless.

    Args:
        stamps: Number of stamps around the value.

    Attributes:
        fits: See :func:`fits_certainly`.
    """

    __slots__ = ("_deserialize", "_name", "_serialize", "accepts", "fits", "live", "stamps", "store")

    def __init__(self, store: str, serde: Serde[Any], stamps: int = 0) -> None:
        self.store = store
        self.stamps = stamps
        self.live = serde.immutable
        self.accepts, self.fits = serde.accepts, fits_certainly(serde)
        self._name = serde.name
        self._serialize, self._deserialize = serde.serialize, serde.deserialize
        for _ in range(stamps):
            self._serialize, self._deserialize = _stamped(self._serialize, self._deserialize)

    def encode(self, entry: Any) -> bytes | None:
        """Return an entry as bytes, or None if the serializer returns None.

        Raises:
            SerdeError: If the value does not fit the store's value serde.
        """
        try:
            data: bytes | None = self._serialize(entry)
        except Exception as error:
            raise SerdeError(f"store {self.store!r}: {_reason(error)}") from error
        return data

    def decode(self, data: bytes) -> Any:
        """Return the decoded entry.

        Raises:
            StoreError: If the bytes cannot be read.
        """
        try:
            return self._deserialize(data)
        except Exception as error:
            raise StoreError(
                f"store {self.store!r}: {len(data)} stored bytes cannot be read as {self._name} ({error!r}); "
                "was the store's value serde changed without a new store name?"
            ) from error

    def checked(self, entry: Any) -> Any:
        """Return an entry as it will be read, or None if the serializer returns None for it.

        Serialises the entry only if its type is not in ``accepts``, or it may not fit.

        Raises:
            SerdeError: If the value does not fit the store's value serde.
        """
        value = entry
        for _ in range(self.stamps):
            value = value[0]
        if type(value) in self.accepts and self.fits(value):
            return entry
        data = self.encode(entry)
        return None if data is None else self.decode(data)

    def overlay_form(self, entry: Any) -> Any:
        """Return the form in which an overlay holds an entry: an immutable object as it is, any other object as bytes.

        None, and an entry that the serializer turns into None, become None, which deletes the key.

        Raises:
            SerdeError: If the value does not fit the store's value serde.
        """
        if entry is None:
            return None
        return self.checked(entry) if self.live else self.encode(entry)

    def encoded_changes(self, own: dict[bytes, Any]) -> list[tuple[bytes, bytes | None]]:
        """Return the writes of the micro-batch as encoded changes.

        Raises:
            SerdeError: If a value does not fit and :meth:`put` could not detect it.
        """
        if not self.live:
            return list(own.items())
        serialize = self._serialize
        changes: list[tuple[bytes, bytes | None]] = []
        for key, entry in own.items():
            try:
                data = None if entry is None else serialize(entry)
                if data is None and entry is not None:
                    raise TypeError(
                        f"serdes.{self._name} lists the type in accepts=..., but serialises it to None"
                    )
                changes.append((key, data))
            except Exception as error:
                raise SerdeError(
                    f"store {self.store!r}, key {key!r}: {_reason(error)}. The value was put in this micro-batch, and error "
                    "policies no longer apply; correct the processor or function that put it"
                ) from error
        return changes


def _stamped(serialize: Any, deserialize: Any) -> tuple[Any, Any]:
    pack, unpack = _STAMP.pack, _STAMP.unpack_from

    def to_bytes(entry: Any) -> bytes | None:
        data: bytes | None = serialize(entry[0])
        return None if data is None else pack(entry[1]) + data

    def from_bytes(data: bytes) -> Any:
        return (deserialize(data[8:]), unpack(data)[0])

    return to_bytes, from_bytes


def _reason(error: Exception) -> str:
    return error.message if isinstance(error, MillstreamError) else f"{type(error).__name__}: {error}"
