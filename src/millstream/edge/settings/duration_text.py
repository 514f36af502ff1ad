"""Durations in settings and options, in the forms that users write; validated by pydantic."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Any

from pydantic import BeforeValidator, TypeAdapter

from millstream.core.model.durations import millis

_ISO_8601 = re.compile(r"[+-]?P", re.IGNORECASE)
_DURATION = TypeAdapter(timedelta)


def duration_ms(duration: Any) -> Any:
    """Return a ``timedelta`` or an ISO 8601 duration in ms, and any other value unchanged.

    Raises:
        ValueError: If the value looks like an ISO 8601 duration but is not valid.

    Example:
        >>> duration_ms("P1DT2H"), duration_ms(timedelta(seconds=2)), duration_ms(250)
        (93600000, 2000, 250)
    """
    if isinstance(duration, str) and _ISO_8601.match(duration):
        duration = _DURATION.validate_python(duration)
    return millis(duration) if isinstance(duration, timedelta) else duration


Milliseconds = Annotated[int, BeforeValidator(duration_ms)]
"""A duration: milliseconds, a ``timedelta``, or ISO 8601 text such as ``PT5M``."""
