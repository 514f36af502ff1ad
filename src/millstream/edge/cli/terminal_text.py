"""Data of records as text for the terminal. It is untrusted, so control characters are always escaped."""

from __future__ import annotations

import json
from typing import Any


def printable(text: str) -> str:
    r"""Return text with unprintable characters escaped.

    Example:
        >>> printable("größer" + chr(27) + "[31m")
        'größer\\x1b[31m'
    """
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def value_text(value: Any) -> str:
    """Return a key or a value as text: a string as it is, other values as JSON, both printable."""
    return printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
