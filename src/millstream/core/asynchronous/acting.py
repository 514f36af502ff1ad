"""Acting: a function of ``foreach_async`` with batches, which acts on many records and need not return anything.

A batch's function gives one answer per record. One that is called for its effect outside alone, such as inserting rows, naturally
returns None; that means that all records are done.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from inspect import isawaitable
from typing import Any


class Acting:
    """Calls a function of the user with lists of keys and values; None becomes one None per record.

    Args:
        function: ``(keys, values) -> None`` or a list of answers; a coroutine function, or a plain one.

    Example:
        >>> Acting(lambda keys, values: None)(["a", "b"], [1, 2])
        [None, None]
    """

    def __init__(self, function: Callable[[list[Any], list[Any]], Any]) -> None:
        self._function = self.__wrapped__ = function

    def __call__(self, keys: list[Any], values: list[Any]) -> Any:
        """Return the answers, or what has to be awaited for them."""
        result = self._function(keys, values)
        return _Awaited(result, len(keys)) if isawaitable(result) else _each(result, len(keys))


class _Awaited:
    """The answers of a function that has to be awaited."""

    def __init__(self, result: Any, count: int) -> None:
        self._result = result
        self._count = count

    def __await__(self) -> Generator[Any, Any, Any]:
        result = yield from self._result.__await__()
        return _each(result, self._count)


def _each(result: Any, count: int) -> Any:
    return [None] * count if result is None else result
