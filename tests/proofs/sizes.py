"""How much of a test is run: the short form with all tests, the full one with ``MILLSTREAM_TEST_PROOFS=full``, as ``make soak`` does."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import product
from typing import Final, TypeVar

T = TypeVar("T")

FULL: Final = os.environ.get("MILLSTREAM_TEST_PROOFS") == "full"
"""Whether tests are run in full; the proofs then have the size of the claims."""


def sized(short: T, full: T) -> T:
    """Return the first value for short proofs, the second for full ones."""
    return full if FULL else short


def each_once_or_crossed(first: Sequence[object], second: Sequence[object]) -> list[tuple[object, object]]:
    """Pair the values of two parameters: each value once, or all combinations if tests are run in full."""
    return sized(list(zip(first, second, strict=True)), list(product(first, second)))
