"""Windowed keys and versioned values, the results of reads from window, session and versioned stores."""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, TypeVar

from millstream.core.model.record import LAST_MS

K_co = TypeVar("K_co", covariant=True)


class Windowed(NamedTuple, Generic[K_co]):
    """A key in a window. Its type includes the type of the key: ``Windowed[str]``.

    Attributes:
        key: The key.
        start: Start of the window, ms since the epoch, inclusive.
        end: End of the window, ms since the epoch: exclusive for windows of a fixed size, inclusive for sessions.

    Source: ``org.apache.kafka.streams.kstream.Windowed``.
    """

    key: K_co
    start: int
    end: int


def window_end(start: int, size_ms: int) -> int:
    """Return the end of a window of a fixed size, at most the latest possible time, 2^63 - 1 ms."""
    return min(start + size_ms, LAST_MS)


class VersionedRecord(NamedTuple):
    """A value of a versioned store.

    Attributes:
        value: The value.
        timestamp: Time from which the value is valid, ms since the epoch.
        valid_to: Time until which the value is valid, exclusive; None for the latest version, which is still valid (KIP-960).

    Source: ``org.apache.kafka.streams.state.VersionedRecord``.
    """

    value: Any
    timestamp: int
    valid_to: int | None = None
