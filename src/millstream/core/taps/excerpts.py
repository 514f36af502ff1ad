"""Excerpts: values as plain data of limited size, for display.

JSON-compatible values stay unchanged. Named tuples and dataclasses become objects, bytes become text or hexadecimal, and everything else
becomes its text. A value is traversed only until the excerpt is full, so that a large value costs no more than the limit.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from math import isfinite
from typing import Any, Final

CUT: Final = "…"
"""Marks an omission."""
_MAX_DEPTH: Final = 20
_MAX_INTEGER: Final = 2**63
_CONTAINER: Final = 4
"""Characters of JSON around the parts of a value."""
_SEPARATOR: Final = 2
"""Approximate number of characters of JSON between two parts of a value."""


class Excerpt:
    """Creates excerpts until a total size is reached.

    Args:
        size: Approximate maximum size of all excerpts together, in bytes of JSON.

    Attributes:
        left: Remaining bytes.
        cut: Whether anything was omitted.

    Example:
        >>> excerpt = Excerpt(30)
        >>> excerpt.of({"user": "ann", "text": "a long story of many words"}), excerpt.cut
        ({'user': 'ann', 'text': 'a l…'}, True)
    """

    def __init__(self, size: int) -> None:
        self.left = size
        self.cut = False

    def of(self, value: Any, depth: int = 0) -> Any:
        """Return an excerpt of a value. Exceptions of the value's own methods are caught."""
        try:
            return self._part(value, depth)
        except Exception as error:  # of the user's __str__ or property
            return self._text(f"<{type(value).__name__} without a text: {type(error).__name__}>")

    def _part(self, value: Any, depth: int) -> Any:
        if value is None or isinstance(value, bool | int | float):
            return self._number(value)
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, bytes | bytearray | memoryview):
            return self._bytes(bytes(value[: max(self.left, 0) + 1]))
        items = _items(value)
        if items is not None or isinstance(value, list | tuple | set | frozenset):
            if depth == _MAX_DEPTH:
                self.cut, self.left = True, self.left - _CONTAINER
                return CUT
            return self._list(value, depth + 1) if items is None else self._object(items, depth + 1)
        return self._text(str(value))

    def _number(self, value: float | None) -> Any:
        if isinstance(value, int) and not -_MAX_INTEGER <= value < _MAX_INTEGER:
            return self._text(hex(value))
        if isinstance(value, float) and not isfinite(value):
            return self._text(str(value))
        plain = value if value is None or isinstance(value, bool) else json.loads(json.dumps(value))
        self.left -= len(json.dumps(plain)) + _SEPARATOR
        return plain

    def _text(self, text: str) -> str:
        fitting = text[: max(self.left, 0)].encode(errors="replace").decode()
        size = len(json.dumps(fitting))
        if size > self.left + _SEPARATOR:  # characters that JSON escapes
            fitting = fitting[: max(self.left, 0) // 6]
            size = len(json.dumps(fitting))
        self.left -= size + _SEPARATOR
        if len(fitting) == len(text):
            return fitting
        self.cut = True
        return fitting + CUT

    def _bytes(self, data: bytes) -> str:
        try:
            # The cut may fall within a character.
            return self._text(codecs.getincrementaldecoder("utf-8")().decode(data, len(data) <= self.left))
        except UnicodeDecodeError:
            return self._text(data.hex())

    def _object(self, items: Iterable[tuple[Any, Any]], depth: int) -> dict[str, object]:
        self.left -= _CONTAINER
        parts: dict[str, object] = {}
        for key, value in items:
            if self.is_full():
                break
            name = self._text(str(key))
            parts[name] = self.of(value, depth)
        return parts

    def _list(self, items: Iterable[Any], depth: int) -> list[Any]:
        self.left -= _CONTAINER
        parts: list[Any] = []
        for item in items:
            if self.is_full():
                break
            parts.append(self.of(item, depth))
        return parts

    def is_full(self) -> bool:
        """Return whether nothing more fits, so that further parts are omitted."""
        self.cut = self.cut or self.left <= 0
        return self.left <= 0


def _items(value: Any) -> Iterable[tuple[Any, Any]] | None:
    """Return the parts of a value that becomes an object, or None for any other value."""
    if isinstance(value, tuple):
        names: Sequence[str] | None = getattr(value, "_fields", None)
        return None if names is None else zip(names, value, strict=False)
    if is_dataclass(value) and not isinstance(value, type):
        return ((field.name, getattr(value, field.name)) for field in fields(value))
    return value.items() if isinstance(value, Mapping) else None
