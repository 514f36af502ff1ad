"""How long the proofs are: short ones run with all tests, full ones with ``MILLSTREAM_TEST_PROOFS=full``, as ``make soak`` does."""

from __future__ import annotations

import os
from typing import Final, TypeVar

T = TypeVar("T")

FULL: Final = os.environ.get("MILLSTREAM_TEST_PROOFS") == "full"
"""Whether the proofs have the full size of the claims."""


def sized(short: T, full: T) -> T:
    """Return the first value for short proofs, the second for full ones."""
    return full if FULL else short
