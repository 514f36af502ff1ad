"""Expressions: what is computed from a value, said instead of programmed.

An expression is made of fields of the value, constants and operators: ``ms.col("amount") > 10``. It can be given wherever a function
of a value, or of key and value, is taken, and means the Python expression that it looks like: a field that is missing, or a
comparison of a text with a number, fails as it would there, and what stands behind ``&`` and ``|`` is computed only if it
decides. Unlike a function it has no side effects and is known to the engine, which may so compute it for many values at once
(``millstream.core.engine.columns``), and show it in ``describe()``.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import compress, repeat
from typing import Any, Final, NoReturn

_REQUIRED: Final = object()
"""Marks a field that has to be there."""


class Expression(ABC):
    """Something that is computed from a value. Made by :func:`col` and :func:`struct`, and by operators.

    Comparisons, ``+ - * / // % **``, ``abs`` and ``-`` mean what they mean in Python; ``&``, ``|`` and ``~`` are *and*, *or* and
    *not*, with parentheses around comparisons; ``[...]`` takes a field of a field, or an element of a list.
    """

    __slots__ = ()

    @abstractmethod
    def at(self, value: Any) -> Any:
        """Compute it from a value.

        Raises:
            Exception: Whatever Python raises for such a value.
        """

    @abstractmethod
    def over(self, values: Sequence[Any]) -> Iterable[Any]:
        """Compute it from many values; raises what it raises for any of them."""

    @abstractmethod
    def __repr__(self) -> str:
        """Give it as a program says it, without the name of the package."""

    def __call__(self, *arguments: Any) -> Any:
        """Compute it as a function of a value, or of key and value."""
        return self.at(arguments[-1])

    def is_null(self) -> Expression:
        """Tell whether it is None.

        Example:
            >>> (col("amount").is_null() | (col("amount") > 10))({"amount": None})
            True
        """
        return _Applied(_is_null, (self,))

    def is_not_null(self) -> Expression:
        """Tell whether it is not None."""
        return _Applied(_is_not_null, (self,))

    def is_in(self, choices: Collection[Any]) -> Expression:
        """Tell whether it is one of some constants.

        Args:
            choices: The constants; anything that knows ``in``.

        Example:
            >>> col("currency").is_in({"EUR", "CHF"})({"currency": "EUR"})
            True
        """
        return _Applied(_is_in, (self, _Constant(choices)))

    def __getitem__(self, place: object) -> Expression:
        return applied(operator.getitem, self, place)

    def __bool__(self) -> NoReturn:
        raise TypeError(
            f"the expression {self!r} is neither true nor false until it is computed from a value; join conditions with & | ~ "
            "and parentheses, not with 'and', 'or', 'not', and write 1 < x < 9 as (x > 1) & (x < 9)"
        )

    def __iter__(self) -> NoReturn:
        raise TypeError(f"the expression {self!r} has no elements until it is computed from a value")

    def __contains__(self, other: object) -> NoReturn:
        raise TypeError(f"'in' cannot be part of an expression; for {self!r} in [...] write is_in([...])")

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> Expression:  # type: ignore[override]
        return applied(operator.eq, self, other)

    def __ne__(self, other: object) -> Expression:  # type: ignore[override]
        return applied(operator.ne, self, other)

    def __lt__(self, other: object) -> Expression:
        return applied(operator.lt, self, other)

    def __le__(self, other: object) -> Expression:
        return applied(operator.le, self, other)

    def __gt__(self, other: object) -> Expression:
        return applied(operator.gt, self, other)

    def __ge__(self, other: object) -> Expression:
        return applied(operator.ge, self, other)

    def __add__(self, other: object) -> Expression:
        return applied(operator.add, self, other)

    def __radd__(self, other: object) -> Expression:
        return applied(operator.add, other, self)

    def __sub__(self, other: object) -> Expression:
        return applied(operator.sub, self, other)

    def __rsub__(self, other: object) -> Expression:
        return applied(operator.sub, other, self)

    def __mul__(self, other: object) -> Expression:
        return applied(operator.mul, self, other)

    def __rmul__(self, other: object) -> Expression:
        return applied(operator.mul, other, self)

    def __truediv__(self, other: object) -> Expression:
        return applied(operator.truediv, self, other)

    def __rtruediv__(self, other: object) -> Expression:
        return applied(operator.truediv, other, self)

    def __floordiv__(self, other: object) -> Expression:
        return applied(operator.floordiv, self, other)

    def __rfloordiv__(self, other: object) -> Expression:
        return applied(operator.floordiv, other, self)

    def __mod__(self, other: object) -> Expression:
        return applied(operator.mod, self, other)

    def __rmod__(self, other: object) -> Expression:
        return applied(operator.mod, other, self)

    def __pow__(self, other: object) -> Expression:
        return applied(operator.pow, self, other)

    def __rpow__(self, other: object) -> Expression:
        return applied(operator.pow, other, self)

    def __neg__(self) -> Expression:
        return applied(operator.neg, self)

    def __abs__(self) -> Expression:
        return applied(abs, self)

    def __and__(self, other: object) -> Expression:
        return _Joined(self, _expression(other), until=False)

    def __rand__(self, other: object) -> Expression:
        return _Joined(_expression(other), self, until=False)

    def __or__(self, other: object) -> Expression:
        return _Joined(self, _expression(other), until=True)

    def __ror__(self, other: object) -> Expression:
        return _Joined(_expression(other), self, until=True)

    def __invert__(self) -> Expression:
        return applied(operator.not_, self)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Field(Expression):
    """A field of the value, or the value itself."""

    name: str | None
    default: Any = _REQUIRED

    def at(self, value: Any) -> Any:
        if self.name is None:
            return value
        return value[self.name] if self.default is _REQUIRED else value.get(self.name, self.default)

    def over(self, values: Sequence[Any]) -> Iterable[Any]:
        if self.name is None:
            return values
        if self.default is _REQUIRED:
            return map(operator.itemgetter(self.name), values)
        return map(operator.methodcaller("get", self.name, self.default), values)

    def __repr__(self) -> str:
        if self.name is None:
            return "col()"
        default = "" if self.default is _REQUIRED else f", default={self.default!r}"
        return f"col({self.name!r}{default})"

    def __reduce__(self) -> Any:
        arguments = (self.name,) if self.default is _REQUIRED else (self.name, self.default)
        return _Field, arguments


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Constant(Expression):
    """The same for every value."""

    value: Any

    def at(self, value: Any) -> Any:
        return self.value

    def over(self, values: Sequence[Any]) -> Iterable[Any]:
        return repeat(self.value, len(values))

    def __repr__(self) -> str:
        return repr(self.value)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Applied(Expression):
    """A function of what other expressions give."""

    function: Callable[..., Any]
    operands: tuple[Expression, ...]

    def at(self, value: Any) -> Any:
        return self.function(*(operand.at(value) for operand in self.operands))

    def over(self, values: Sequence[Any]) -> Iterable[Any]:
        return map(self.function, *(operand.over(values) for operand in self.operands))

    def __repr__(self) -> str:
        form = _FORMS.get(self.function)
        if form is not None:
            return form.format(*map(_nested, self.operands))
        return f"{self.function.__name__}({', '.join(map(repr, self.operands))})"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Joined(Expression):
    """Two conditions; the second is computed only if the first is not the value that decides.

    Attributes:
        first: One condition.
        second: The other.
        until: Which result of the first decides: True makes it *or*, False *and*.
    """

    first: Expression
    second: Expression
    until: bool

    def at(self, value: Any) -> bool:
        return self.until if bool(self.first.at(value)) is self.until else bool(self.second.at(value))

    def over(self, values: Sequence[Any]) -> Iterable[Any]:
        first = [bool(one) for one in self.first.over(values)]
        open_ones = list(compress(values, map(operator.is_not, first, repeat(self.until))))
        second = iter(self.second.over(open_ones))
        return [one if one is self.until else bool(next(second)) for one in first]

    def __repr__(self) -> str:
        return f"{_nested(self.first)} {'|' if self.until else '&'} {_nested(self.second)}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Struct(Expression):
    """A dict of what other expressions give."""

    names: tuple[str, ...]
    fields: tuple[Expression, ...]

    def at(self, value: Any) -> dict[str, Any]:
        return {name: field.at(value) for name, field in zip(self.names, self.fields)}

    def over(self, values: Sequence[Any]) -> Iterable[Any]:
        rows = zip(*(field.over(values) for field in self.fields))
        return (dict(zip(self.names, row)) for row in rows)

    def __repr__(self) -> str:
        return f"struct({', '.join(map(_named, self.names, self.fields))})"


def col(name: str | None = None, *, default: Any = _REQUIRED) -> Expression:
    """Begin an expression with a field of the value.

    Args:
        name: The field, where values are dicts; None is the value itself.
        default: What is taken where the field is missing; without it, a missing field is an error of its record.

    Returns:
        An expression; compare it and compute with it, join conditions with ``&``, ``|`` and ``~``.

    Example:
        >>> large = (col("amount") > 10) & (col("currency", default="EUR") == "EUR")
        >>> large({"amount": 11})
        True
        >>> large
        (col('amount') > 10) & (col('currency', default='EUR') == 'EUR')
        >>> (col() * 2)(21)
        42
    """
    return _Field(name, default)


def struct(*names: str, **fields: Any) -> Expression:
    """Make a dict of some fields, and of what expressions give.

    Args:
        names: Fields of the value that are taken over.
        fields: More fields: expressions, or constants.

    Raises:
        TypeError: If there are no fields, or a name is no text or comes twice.

    Example:
        >>> order = struct("user", total=col("price") * col("pieces"), shop="web")
        >>> order({"user": "ann", "price": 3, "pieces": 2, "note": "-"})
        {'user': 'ann', 'total': 6, 'shop': 'web'}
        >>> order
        struct('user', total=col('price') * col('pieces'), shop='web')
    """
    wrong = next((name for name in names if not isinstance(name, str)), None)
    if wrong is not None:
        raise TypeError(f"struct takes names of fields, and expressions by name: write name={wrong!r}")
    every = (*names, *fields)
    if not every or len(set(every)) < len(every):
        raise TypeError(f"struct needs at least one field, and each once; got {', '.join(every) or 'none'}")
    return _Struct(every, (*map(col, names), *map(_expression, fields.values())))


def applied(function: Callable[..., Any], *operands: object) -> Expression:
    """Make an expression of a function without side effects; what is no expression is a constant."""
    return _Applied(function, tuple(map(_expression, operands)))


def _expression(one: object) -> Expression:
    return one if isinstance(one, Expression) else _Constant(one)


def _is_null(one: object) -> bool:
    return one is None


def _is_not_null(one: object) -> bool:
    return one is not None


def _is_in(one: object, choices: Collection[Any]) -> bool:
    return one in choices


_FORMS: Final[dict[Callable[..., Any], str]] = {
    operator.eq: "{} == {}",
    operator.ne: "{} != {}",
    operator.lt: "{} < {}",
    operator.le: "{} <= {}",
    operator.gt: "{} > {}",
    operator.ge: "{} >= {}",
    operator.add: "{} + {}",
    operator.sub: "{} - {}",
    operator.mul: "{} * {}",
    operator.truediv: "{} / {}",
    operator.floordiv: "{} // {}",
    operator.mod: "{} % {}",
    operator.pow: "{} ** {}",
    operator.neg: "-{}",
    operator.not_: "~{}",
    operator.getitem: "{}[{}]",
    _is_null: "{}.is_null()",
    _is_not_null: "{}.is_not_null()",
    _is_in: "{}.is_in({})",
}


def _nested(one: Expression) -> str:
    """Give an operand, in parentheses if it has operators of its own."""
    closed = isinstance(one, (_Field, _Constant, _Struct)) or (
        isinstance(one, _Applied) and (one.function not in _FORMS or _FORMS[one.function][-1] in ")]")
    )
    return repr(one) if closed else f"({one!r})"


def _named(name: str, field: Expression) -> str:
    plain = isinstance(field, _Field) and field.name == name and field.default is _REQUIRED
    return repr(name) if plain else f"{name}={field!r}"
