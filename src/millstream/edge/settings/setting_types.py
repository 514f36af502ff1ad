"""Types of settings, with what pydantic's own types do not check."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from millstream.core.model.errors import TopologyError
from millstream.core.model.topics import checked_name


def _require_text(value: Any) -> Any:
    """Refuse empty text: an unset variable of a deployment would otherwise mean this directory, or all addresses of the host."""
    if isinstance(value, str) and not value.strip():
        raise PydanticCustomError("empty", "Input should not be empty")
    return value


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


FilledText = Annotated[str, BeforeValidator(_require_text)]
Directory = Annotated[Path, BeforeValidator(_require_text)]
TopicName = Annotated[str, AfterValidator(_topic)]
Master = Annotated[str, AfterValidator(master_of)]
Replicas = Annotated[int, Field(ge=-1), AfterValidator(_replicas)]
Port = Annotated[int | None, Field(ge=0, lt=65_536), BeforeValidator(_port)]
