"""Pairs of key and value that users' functions return. Text of two characters is no pair, although Python would unpack it."""

from __future__ import annotations

from typing import Any

from millstream.core.model.errors import ProcessingError


def pair_of(result: Any, operation: str, names: str = "key, value") -> Any:
    """Return the result of a function if it is a pair, also one of another class than ``tuple``, which callers check first.

    Args:
        operation: The method of the DSL that received the function.
        names: What a pair consists of, for the message.

    Raises:
        ProcessingError: If it is not a tuple or a list of two.
    """
    if isinstance(result, (tuple, list)) and len(result) == 2:
        return result
    raise ProcessingError(f"the function of {operation!r} returned {result!r:.100}; return a pair ({names})")
