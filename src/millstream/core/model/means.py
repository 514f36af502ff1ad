"""Means: what is kept to give the mean of some numbers, and to change it by one more or one less.

A mean cannot be computed from the mean so far. So a store has *sums*: the total and how many numbers are in it. Whole numbers
are added up exactly, however large they become; a number with a fraction makes the total a float of 64 bits.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from millstream.core.model.serdes import Serde

_NUMBER: Final = struct.Struct(">q")
_DOUBLE: Final = struct.Struct(">d")
_WHOLE, _FRACTION = b"i", b"f"


class Sums(NamedTuple):
    """Numbers added up.

    Attributes:
        total: Their sum.
        number: How many they are.
    """

    total: int | float
    number: int


_sums: Callable[[type[Sums], tuple[int | float, int]], Sums] = tuple.__new__
"""Makes sums at half the price of their constructor."""
NONE: Final = Sums(0, 0)
"""No numbers."""


def mean_of(sums: Sums) -> float:
    """Give the mean of at least one number."""
    return sums.total / sums.number


def with_one(sums: Sums, value: Any) -> Sums:
    """Add a number.

    Raises:
        TypeError: If it is none.
    """
    if not isinstance(value, (int, float)):
        raise _no_number(value)
    return _sums(Sums, (sums[0] + value, sums[1] + 1))


def without_one(sums: Sums, value: Any) -> Sums | None:
    """Take a number away that is in the sums; None if it was the last one.

    Raises:
        TypeError: If it is none.
    """
    if not isinstance(value, (int, float)):
        raise _no_number(value)
    return None if sums.number == 1 else Sums(sums.total - value, sums.number - 1)


def joined(one: Sums, other: Sums) -> Sums:
    """Give the sums of all numbers that are in either."""
    return Sums(one.total + other.total, one.number + other.number)


def _no_number(value: Any) -> TypeError:
    return TypeError(
        f"a mean is made of numbers (int or float), but got {type(value).__name__} {value!r:.60}"
    )


def _to_bytes(sums: Sums) -> bytes:
    total, number = sums
    if isinstance(total, float):
        return _NUMBER.pack(number) + _FRACTION + _DOUBLE.pack(total)
    return _NUMBER.pack(number) + _WHOLE + total.to_bytes(total.bit_length() // 8 + 1, "big", signed=True)


def _from_bytes(data: bytes) -> Sums:
    (number,) = _NUMBER.unpack_from(data)
    kind, total = data[8:9], data[9:]
    if kind == _FRACTION:
        return Sums(_DOUBLE.unpack(total)[0], number)
    if kind != _WHOLE or not total:
        raise ValueError("these are no sums")
    return Sums(int.from_bytes(total, "big", signed=True), number)


serde: Final[Serde[Sums]] = Serde("mean", _to_bytes, _from_bytes, True, (Sums,))
"""The number in eight bytes, then ``i`` and a whole total as big-endian two's complement, or ``f`` and a double."""
