"""Windowed keys and versioned values: what stores that know time give besides plain keys and values."""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, TypeVar

_LAST = (1 << 63) - 1
K_co = TypeVar("K_co", covariant=True)


class Windowed(NamedTuple, Generic[K_co]):
    """A key in a window of time (Kafka Streams: ``Windowed``). Its type carries that of the key: ``Windowed[str]``.

    Attributes:
        key: The key.
        start: Where the window begins, ms since the epoch, included.
        end: Where it ends: excluded for windows of a fixed size, included for sessions.
    """

    key: K_co
    start: int
    end: int


def window_end(start: int, size_ms: int) -> int:
    """Return where a window of a fixed size ends: never behind the last time there is, 2^63 - 1 ms."""
    return min(start + size_ms, _LAST)


class VersionedRecord(NamedTuple):
    """A value of a versioned store (Kafka Streams: ``VersionedRecord``).

    Attributes:
        value: The value.
        timestamp: From when on it is valid, ms since the epoch.
        valid_to: Until when, excluded; None for the latest version, which is still valid (KIP-960).
    """

    value: Any
    timestamp: int
    valid_to: int | None = None
