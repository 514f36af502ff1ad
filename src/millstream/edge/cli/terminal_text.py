"""Data of records as text for the terminal. It is untrusted, so control characters are always escaped."""

from __future__ import annotations

import json
from datetime import UTC, datetime


def printable(text: str) -> str:
    """Return text with unprintable characters escaped."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def value_text(value: object) -> str:
    """Return a key or a value as text: a string as it is, other values as JSON, both printable."""
    return printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def time_text(timestamp: int) -> str:
    """Return a timestamp, ms since the epoch, as ISO 8601 in UTC, or as its number if it is not between the years 1 and 9999.

    Example:
        >>> time_text(1_700_000_000_123), time_text(1_700_000_000_123_456)
        ('2023-11-14T22:13:20.123Z', '1700000000123456 ms')
    """
    seconds, ms = divmod(timestamp, 1000)
    try:
        return f"{datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat()}.{ms:03}Z"
    except (ValueError, OverflowError, OSError):
        return f"{timestamp} ms"
