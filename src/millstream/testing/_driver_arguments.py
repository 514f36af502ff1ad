"""Checks of arguments of the test driver: times, serdes and headers."""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from typing import Any

from millstream.core.model.errors import SettingsError
from millstream.core.model.record import LAST_MS, Headers
from millstream.core.model.serdes import Serde


def checked_time(time_ms: Any, name: str) -> int:
    """Return a time, ms since the epoch, that Kafka can store."""
    try:
        if (found := index(time_ms)) <= LAST_MS:
            return found
    except TypeError:
        pass
    raise SettingsError(
        f"{name}={time_ms!r}: it must be a whole number of ms since the epoch, at most {LAST_MS}"
    )


def check_serdes(*serdes: Any) -> None:
    for serde in serdes:
        if not isinstance(serde, Serde | None):
            raise SettingsError(
                f"{serde!r} is not a serde; pass one such as ms.serdes.string, or None for that of the topology"
            )


def checked_headers(headers: Headers) -> Headers:
    """Return headers that a topic can contain; a dictionary or text would be taken apart into its keys or letters."""
    pairs = tuple(headers) if isinstance(headers, Iterable) else (headers,)
    for pair in pairs:
        if not (
            isinstance(pair, tuple | list)
            and len(pair) == 2
            and isinstance(pair[0], str)
            and isinstance(pair[1], bytes | None)
        ):
            raise SettingsError(
                f"headers={headers!r}: headers are pairs of a name and bytes or None, such as [('trace', b'1')]"
            )
    return pairs
