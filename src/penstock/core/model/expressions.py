"""Expressions: what is computed from a value, said instead of programmed.

An expression is made of fields of the value, constants and operators: ``ps.col("amount") > 10``. It can be given wherever a function
of a value, or of key and value, is taken, and means the Python expression that it looks like: a field that is missing, or a
comparison of a text with a number, fails as it would there. Unlike a function it has no side effects and is known to the
engine, which may so compute it for many values at once (``penstock.core.engine.columns``).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, NoReturn


class Expression:
    """Something that is computed from a value. Made by :func:`col`, and by operators."""

    __slots__ = ()

    def at(self, value: Any) -> Any:
        """Compute it from a value.

        Raises:
            Exception: Whatever Python raises for such a value.
        """
        raise NotImplementedError

    def over(self, values: Sequence[Any]) -> Iterable[Any]:
        """Compute it from many values."""
        raise NotImplementedError

    def __call__(self, *arguments: Any) -> Any:
        """Compute it as a function of a value, or of key and value."""
        return self.at(arguments[-1])

    def __bool__(self) -> NoReturn:
        raise TypeError(
            "an expression is neither true nor false until it is computed; join expressions with & | ~ and parentheses, "
            "not with 'and', 'or', 'not'"
        )

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> Expression:  # type: ignore[override]
        return _applied(operator.eq, self, other)

    def __ne__(self, other: object) -> Expression:  # type: ignore[override]
        return _applied(operator.ne, self, other)

    def __lt__(self, other: object) -> Expression:
        return _applied(operator.lt, self, other)

    def __le__(self, other: object) -> Expression:
        return _applied(operator.le, self, other)

    def __gt__(self, other: object) -> Expression:
        return _applied(operator.gt, self, other)

    def __ge__(self, other: object) -> Expression:
        return _applied(operator.ge, self, other)

    def __add__(self, other: object) -> Expression:
        return _applied(operator.add, self, other)

    def __radd__(self, other: object) -> Expression:
        return _applied(operator.add, other, self)

    def __sub__(self, other: object) -> Expression:
        return _applied(operator.sub, self, other)

    def __rsub__(self, other: object) -> Expression:
        return _applied(operator.sub, other, self)

    def __mul__(self, other: object) -> Expression:
        return _applied(operator.mul, self, other)

    def __rmul__(self, other: object) -> Expression:
        return _applied(operator.mul, other, self)

    def __truediv__(self, other: object) -> Expression:
        return _applied(operator.truediv, self, other)

    def __rtruediv__(self, other: object) -> Expression:
        return _applied(operator.truediv, other, self)

    def __and__(self, other: object) -> Expression:
        return _applied(_both, self, other)

    def __or__(self, other: object) -> Expression:
        return _applied(_either, self, other)

    def __invert__(self) -> Expression:
        return _applied(operator.not_, self)


@dataclass(frozen=True, slots=True, eq=False)
class _Field(Expression):
    """A field of the value, or the value itself."""

    name: str | None

    def at(self, value: Any) -> Any:
        return value if self.name is None else value[self.name]

    def over(self, values: Sequence[Any]) -> Iterable[Any]:
        return values if self.name is None else map(operator.itemgetter(self.name), values)


@dataclass(frozen=True, slots=True, eq=False)
class _Constant(Expression):
    """The same for every value."""

    value: Any

    def at(self, value: Any) -> Any:
        return self.value

    def over(self, values: Sequence[Any]) -> Iterable[Any]:
        return repeat(self.value, len(values))


@dataclass(frozen=True, slots=True, eq=False)
class _Applied(Expression):
    """A function of what other expressions give."""

    function: Callable[..., Any]
    operands: tuple[Expression, ...]

    def at(self, value: Any) -> Any:
        return self.function(*(operand.at(value) for operand in self.operands))

    def over(self, values: Sequence[Any]) -> Iterable[Any]:
        return map(self.function, *(operand.over(values) for operand in self.operands))


def col(name: str | None = None) -> Expression:
    """Begin an expression with a field of the value.

    Args:
        name: The field, where values are dicts; None is the value itself.

    Returns:
        An expression; compare it and compute with it, join conditions with ``&``, ``|`` and ``~``.

    Example:
        >>> large = (col("amount") > 10) & (col("currency") == "EUR")
        >>> large({"amount": 11, "currency": "EUR"})
        True
        >>> (col() * 2)(21)
        42
    """
    return _Field(name)


def _applied(function: Callable[..., Any], *operands: object) -> Expression:
    return _Applied(
        function, tuple(one if isinstance(one, Expression) else _Constant(one) for one in operands)
    )


def _both(one: object, other: object) -> bool:
    return bool(one) and bool(other)


def _either(one: object, other: object) -> bool:
    return bool(one) or bool(other)
