"""How long the proofs are: short ones run with all tests, full ones with ``MILLSTREAM_PROOFS=full``, as ``make soak`` does."""

from __future__ import annotations

import os
from typing import Final, TypeVar

T = TypeVar("T")

FULL: Final = os.environ.get("MILLSTREAM_PROOFS") == "full"
"""Whether the proofs are to have the size that the claims have."""


def sized(short: T, full: T) -> T:
    """Give the one that is asked for."""
    return full if FULL else short
