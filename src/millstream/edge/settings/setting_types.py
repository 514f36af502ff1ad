"""Types of settings, with what pydantic's own types do not check."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter
from pydantic_core import PydanticCustomError

from millstream.core.engine.policy import check_policy
from millstream.core.model.durations import millis
from millstream.core.model.errors import SettingsError, TopologyError
from millstream.core.model.topics import checked_name

_ISO_8601 = re.compile(r"[+-]?P", re.IGNORECASE)
_DURATION = TypeAdapter(timedelta)


def _require_text(value: Any) -> Any:
    """Refuse empty text: an unset variable of a deployment would otherwise mean this directory, or all addresses of the host."""
    if isinstance(value, str) and not value.strip():
        raise PydanticCustomError("empty", "Input should not be empty")
    return value


def _expanded(path: Path) -> Path:
    """Return a path with the home directory for ``~``, which no shell replaces in a settings file."""
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise PydanticCustomError("home", "{why}", {"why": str(error)}) from None


def _topic(name: str) -> str:
    try:
        return checked_name(name, "topic")
    except TopologyError:
        raise PydanticCustomError(
            "topic", "Input should be 1 to 249 letters, digits, '.', '_' or '-'"
        ) from None


def master_of(text: str) -> str:
    """Return a Spark master; refuse what spark-submit refuses, which would look like a missing Java.

    Raises:
        PydanticCustomError: If it is none.

    Example:
        >>> master_of("local[*]"), master_of("yarn")
        ('local[*]', 'yarn')
    """
    if text != "yarn" and not text.startswith(("local", "spark://", "k8s://")):
        raise PydanticCustomError(
            "master", "Input should be local[*], spark://host:7077, yarn or k8s://https://host:port"
        )
    return text


def _port(value: Any) -> Any:
    """Refuse True, which would be port 1."""
    if isinstance(value, bool):
        raise PydanticCustomError("port", "Input should be a port, 0 for any free one, or None")
    return value


def _replicas(count: int) -> int:
    if count == 0:
        raise PydanticCustomError("replicas", "Input should be at least 1, or -1 for the broker's default")
    return count


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


def checked_policy(policy: Any) -> Any:
    """Return a valid error policy; refuse an invalid one with a validation error of the setting."""
    try:
        check_policy("policy", policy)
    except SettingsError:
        raise PydanticCustomError(
            "policy",
            "Input should be 'fail', 'skip' or 'dead_letter', ms.dead_letter('topic') or an error handler",
        ) from None
    return policy


FilledText = Annotated[str, BeforeValidator(_require_text)]
Directory = Annotated[Path, BeforeValidator(_require_text), AfterValidator(_expanded)]
TopicName = Annotated[str, AfterValidator(_topic)]
Master = Annotated[str, AfterValidator(master_of)]
Replicas = Annotated[int, Field(ge=-1), AfterValidator(_replicas)]
Port = Annotated[int | None, Field(ge=0, lt=65_536), BeforeValidator(_port)]
Milliseconds = Annotated[int, BeforeValidator(duration_ms)]
"""A duration: milliseconds, a ``timedelta``, or ISO 8601 text such as ``PT5M``."""
