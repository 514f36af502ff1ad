"""Means: the state needed to compute the mean of numbers, and to add or remove a number.

A store keeps *sums*: the total and the count of the numbers. Integers are added exactly, however large; a float makes the total a 64-bit
float.
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
    """The total and the count of numbers."""

    total: int | float
    number: int


_sums: Callable[[type[Sums], tuple[int | float, int]], Sums] = tuple.__new__
"""Creates sums in half the time of the constructor."""
NONE: Final = Sums(0, 0)
"""The sums of no numbers."""


def mean_of(sums: Sums) -> float:
    """Return the mean of at least one number."""
    return sums.total / sums.number


def with_one(sums: Sums, value: Any) -> Sums:
    """Add a number.

    Raises:
        TypeError: If the value is not a number.
    """
    if not isinstance(value, (int, float)):
        raise _no_number(value)
    return _sums(Sums, (sums[0] + value, sums[1] + 1))


def with_several(sums: Sums, several: tuple[Any, int]) -> Sums:
    """Add several numbers, given as their total and their count."""
    return _sums(Sums, (sums[0] + several[0], sums[1] + several[1]))


def without_one(sums: Sums, value: Any) -> Sums | None:
    """Remove a number that is part of the sums; return None if it was the last one.

    Raises:
        TypeError: If the value is not a number.
    """
    if not isinstance(value, (int, float)):
        raise _no_number(value)
    return None if sums.number == 1 else Sums(sums.total - value, sums.number - 1)


def combined_sums(first: Sums, other: Sums) -> Sums:
    """Return the combined sums of two sets of numbers."""
    return Sums(first.total + other.total, first.number + other.number)


def _no_number(value: Any) -> TypeError:
    return TypeError(f"a mean needs numbers (int or float), but got {type(value).__name__} {value!r:.60}")


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
        raise ValueError("the result is not a sum")
    return Sums(int.from_bytes(total, "big", signed=True), number)


serde: Final[Serde[Sums]] = Serde("mean", _to_bytes, _from_bytes, True, (Sums,))
"""The count in eight bytes, then ``i`` and an int total as big-endian two's complement, or ``f`` and a double."""
