"""Plain data, of dicts, lists and values of formats: times in UTC, and numbers that JSON has."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any


def in_utc(plain: Any) -> Any:
    """Return plain data in which times without a zone are in UTC. Avro's library would take them for times of the host's zone."""
    if isinstance(plain, datetime):
        return plain if plain.tzinfo is not None else plain.replace(tzinfo=UTC)
    if isinstance(plain, dict):
        return {name: in_utc(each) for name, each in plain.items()}
    if isinstance(plain, tuple):  # the name of a branch of a union, and its data
        return tuple(in_utc(each) for each in plain)
    if isinstance(plain, list):
        return [in_utc(each) for each in plain]
    return plain


def check_finite(plain: Any) -> None:
    """Refuse NaN and infinite numbers in plain data.

    Raises:
        ValueError: If there is one.
    """
    if isinstance(plain, float):
        if not math.isfinite(plain):
            raise ValueError(f"{plain} is not JSON")
    elif isinstance(plain, dict):
        for each in plain.values():
            check_finite(each)
    elif isinstance(plain, list | tuple | set | frozenset):
        for each in plain:
            check_finite(each)
