"""Expressions: declarative computations on a value, instead of functions.

``ms.col("amount") > 10`` can replace any function of a value, or of key and value. It behaves like the Python expression that it resembles:
a missing field, or a comparison of a string with a number, fails in the same way, and the right side of ``&`` and ``|`` is computed only
if it decides the result. An expression has no side effects and a known structure, so the engine can compute it for many values at once
(``millstream.core.engine.columns``) and show it in ``describe()``.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, repeat
from typing import Any, Final, NoReturn

from millstream.core.model.errors import ProcessingError

_REQUIRED: Final = object()
"""Marks a required field."""


def _operator(function: Callable[..., Any]) -> Callable[[Expression, object], Expression]:
    """Return a method that applies an operator to an expression and another operand."""

    def method(self: Expression, other: object) -> Expression:
        return applied(function, self, other)

    return method


def _reflected(function: Callable[..., Any]) -> Callable[[Expression, object], Expression]:
    """Return a method that applies an operator whose right operand is the expression."""

    def method(self: Expression, other: object) -> Expression:
        return applied(function, other, self)

    return method


class Expression(ABC):
    """A computation on a value. Created by :func:`col` and :func:`struct`, and by operators.

    Comparisons, ``+ - * / // % **``, ``abs`` and ``-`` work as in Python. ``&``, ``|`` and ``~`` are *and*, *or* and *not*; put
    comparisons in parentheses. ``[...]`` accesses a field of a field, or an element of a list.

    Source: Spark's ``Column``; Kafka Streams has no counterpart.
    """

    __slots__ = ()

    @abstractmethod
    def evaluate(self, value: Any) -> Any:
        """Compute the expression for a value; raises if the computation fails for it.

        Args:
            value: The value of a record.

        Returns:
            The result.
        """

    @abstractmethod
    def over(self, values: Sequence[Any]) -> Iterable[Any]:
        """Compute the expression for many values; raises if the computation fails for one of them.

        Args:
            values: The values.

        Returns:
            One result per value, in order.
        """

    @abstractmethod
    def __repr__(self) -> str:
        """Return the expression as source code, without the package name."""

    def __call__(self, *arguments: Any) -> Any:
        """Compute the expression as a function of a value, or of key and value."""
        return self.evaluate(arguments[-1])

    def is_null(self) -> Expression:
        """Return an expression that is true if this one is None.

        Example:
            >>> (col("amount").is_null() | (col("amount") > 10))({"amount": None})
            True
        """
        return _Applied(_is_null, (self,))

    def is_not_null(self) -> Expression:
        """Return an expression that is true if this one is not None.

        Example:
            >>> col("amount").is_not_null()({"amount": None})
            False
        """
        return _Applied(_is_not_null, (self,))

    def is_in(self, choices: Collection[Any]) -> Expression:
        """Return an expression that is true if the value of this one is among some constants.

        Args:
            choices: The constants; any object that supports ``in``.

        Example:
            >>> col("currency").is_in({"EUR", "CHF"})({"currency": "EUR"})
            True
        """
        return _Applied(_is_in, (self, _Constant(choices)))

    def __getitem__(self, index: object) -> Expression:
        return applied(operator.getitem, self, index)

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

    # Comparisons of expressions return expressions; ``object`` declares bool.
    __eq__ = _operator(operator.eq)  # type: ignore[assignment]
    __ne__ = _operator(operator.ne)  # type: ignore[assignment]
    __lt__ = _operator(operator.lt)
    __le__ = _operator(operator.le)
    __gt__ = _operator(operator.gt)
    __ge__ = _operator(operator.ge)
    __add__ = _operator(operator.add)
    __sub__ = _operator(operator.sub)
    __mul__ = _operator(operator.mul)
    __truediv__ = _operator(operator.truediv)
    __floordiv__ = _operator(operator.floordiv)
    __mod__ = _operator(operator.mod)
    __pow__ = _operator(operator.pow)
    __radd__ = _reflected(operator.add)
    __rsub__ = _reflected(operator.sub)
    __rmul__ = _reflected(operator.mul)
    __rtruediv__ = _reflected(operator.truediv)
    __rfloordiv__ = _reflected(operator.floordiv)
    __rmod__ = _reflected(operator.mod)
    __rpow__ = _reflected(operator.pow)

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

    def evaluate(self, value: Any) -> Any:
        if self.name is None:
            return value
        try:
            return value[self.name] if self.default is _REQUIRED else value.get(self.name, self.default)
        except (LookupError, TypeError, AttributeError):
            raise ProcessingError(self._refusal(value)) from None

    def _refusal(self, value: Any) -> str:
        if isinstance(value, Mapping):
            return f"no field {self.name!r} (there are: {', '.join(map(str, value)):.100}); use ms.col({self.name!r}, default=...) if it may be missing"
        advice = "; set value=ms.serdes.json on the source" if isinstance(value, (str, bytes)) else ""
        return f"{self!r}: the value is {type(value).__name__} {value!r:.100}, not a dict{advice}"

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
    value: Any

    def evaluate(self, value: Any) -> Any:
        return self.value

    def over(self, values: Sequence[Any]) -> Iterable[Any]:
        return repeat(self.value, len(values))

    def __repr__(self) -> str:
        return repr(self.value)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Applied(Expression):
    function: Callable[..., Any]
    operands: tuple[Expression, ...]

    def evaluate(self, value: Any) -> Any:
        return self.function(*(operand.evaluate(value) for operand in self.operands))

    def over(self, values: Sequence[Any]) -> Iterable[Any]:
        return map(self.function, *(operand.over(values) for operand in self.operands))

    def __repr__(self) -> str:
        form = _FORMS.get(self.function)
        if form is not None:
            return form.format(*map(_nested, self.operands))
        return f"{self.function.__name__}({', '.join(map(repr, self.operands))})"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Joined(Expression):
    """Two conditions. The second is computed only if the first does not decide the result.

    Attributes:
        until: The result of the first condition that decides: True for *or*, False for *and*.
    """

    first: Expression
    second: Expression
    until: bool

    def evaluate(self, value: Any) -> bool:
        return (
            self.until
            if bool(self.first.evaluate(value)) is self.until
            else bool(self.second.evaluate(value))
        )

    def over(self, values: Sequence[Any]) -> Iterable[Any]:
        first = [bool(value) for value in self.first.over(values)]
        open_ones = list(compress(values, map(operator.is_not, first, repeat(self.until))))
        second = iter(self.second.over(open_ones))
        return [value if value is self.until else bool(next(second)) for value in first]

    def __repr__(self) -> str:
        return f"{_nested(self.first)} {'|' if self.until else '&'} {_nested(self.second)}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Struct(Expression):
    names: tuple[str, ...]
    fields: tuple[Expression, ...]

    def evaluate(self, value: Any) -> dict[str, Any]:
        return {name: field.evaluate(value) for name, field in zip(self.names, self.fields)}

    def over(self, values: Sequence[Any]) -> Iterable[Any]:
        rows = zip(*(field.over(values) for field in self.fields))
        return (dict(zip(self.names, row)) for row in rows)

    def __repr__(self) -> str:
        return f"struct({', '.join(map(_named, self.names, self.fields))})"


def col(name: str | None = None, *, default: Any = _REQUIRED) -> Expression:
    """Start an expression with a field of the value.

    Args:
        name: Name of the field, if values are dicts; None means the value itself.
        default: Value for a missing field. Without a default, a missing field is an error of its record.

    Returns:
        An expression for comparisons and computations. Combine conditions with ``&``, ``|`` and ``~``.

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
    """Create a dict of fields and expressions.

    Args:
        names: Fields of the value to copy.
        fields: Additional fields, as expressions or constants.

    Returns:
        An expression whose result is the dict.

    Raises:
        TypeError: If there are no fields, or a name is not a str or is repeated.

    Source: Spark's ``functions.struct``.

    Example:
        >>> order = struct("user", total=col("price") * col("pieces"), shop="web")
        >>> order({"user": "ann", "price": 3, "pieces": 2, "note": "-"})
        {'user': 'ann', 'total': 6, 'shop': 'web'}
        >>> order
        struct('user', total=col('price') * col('pieces'), shop='web')
    """
    wrong = next((name for name in names if not isinstance(name, str)), None)
    if wrong is not None:
        raise TypeError(
            f"struct takes fields by name, and expressions as keyword arguments: write name={wrong!r}"
        )
    every = (*names, *fields)
    if not every or len(set(every)) < len(every):
        raise TypeError(
            f"struct needs at least one field, and no field twice; got {', '.join(every) or 'none'}"
        )
    return _Struct(every, (*map(col, names), *map(_expression, fields.values())))


def applied(function: Callable[..., Any], *operands: object) -> Expression:
    """Create an expression from a function without side effects. Operands that are not expressions become constants."""
    return _Applied(function, tuple(map(_expression, operands)))


def _expression(value: object) -> Expression:
    return value if isinstance(value, Expression) else _Constant(value)


def _is_null(value: object) -> bool:
    return value is None


def _is_not_null(value: object) -> bool:
    return value is not None


def _is_in(value: object, choices: Collection[Any]) -> bool:
    return value in choices


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


def _nested(part: Expression) -> str:
    closed = isinstance(part, (_Field, _Constant, _Struct)) or (
        isinstance(part, _Applied) and (part.function not in _FORMS or _FORMS[part.function][-1] in ")]")
    )
    return repr(part) if closed else f"({part!r})"


def _named(name: str, field: Expression) -> str:
    plain = isinstance(field, _Field) and field.name == name and field.default is _REQUIRED
    return repr(name) if plain else f"{name}={field!r}"
