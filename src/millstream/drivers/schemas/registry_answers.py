"""Answers of a schema registry: which of them concern the registry or its address, and not a record."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Final

from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.error import OAuthTokenError, SchemaRegistryError

_NOT_THE_RECORD: Final = (401, 403, 407, 408, 429)
_ABOUT_THE_SCHEMA: Final = (409, 422)
"""It is incompatible, or no schema. No proxy answers this."""
_SHOWN: Final = 200
"""Characters of an answer in an error: it may be the web page of a proxy."""
_ASKING: Final = (
    "register_schema",
    "register_schema_full_response",
    "lookup_schema",
    "get_schema",
    "get_schema_by_guid",
    "get_version",
    "get_latest_version",
)
"""The methods with which serializers ask the registry."""


class NoRegistryError(Exception):
    """The registry could not be asked, or something else has answered, such as a proxy or the login page of a network."""


def checked(client: SchemaRegistryClient) -> SchemaRegistryClient:
    """Return the client, whose methods now raise an error for answers that no schema registry gives.

    The client would keep such an answer, or fail with an error that looks like one of the record.
    """
    for name in _ASKING:
        ask = getattr(client, name, None)
        if ask is not None:
            setattr(client, name, _checked(client, ask))
    return client


def _checked(client: SchemaRegistryClient, ask: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(ask)
    def asked(*arguments: Any, **named: Any) -> Any:
        try:
            found = ask(*arguments, **named)
        except Exception as error:
            if isinstance(error, SchemaRegistryError) or is_outage(error):
                raise
            raise NoRegistryError(f"{type(error).__name__}: {error}") from None
        if _is_answer(ask.__name__, found):
            return found
        client.clear_caches()
        raise NoRegistryError(f"its answer lacks the schema or its id: {found!r:.{_SHOWN}}")

    return asked


def _is_answer(name: str, found: Any) -> bool:
    if name == "register_schema":
        return isinstance(found, int)
    if name.startswith("get_schema"):
        return isinstance(found.schema_str, str)
    if name.startswith("get") and not isinstance(found.schema.schema_str, str):
        return False
    return isinstance(found.schema_id, int)


def is_outage(error: Exception) -> bool:
    """Return whether an error concerns the registry, not a record."""
    if isinstance(error, SchemaRegistryError):
        return _is_unavailable(error) or _is_of_another_server(error)
    return isinstance(error, NoRegistryError | OSError | OAuthTokenError) or type(
        error
    ).__module__.startswith("httpx")


def explained(error: Exception) -> str:
    """Return the text of an outage, with advice if the address may be wrong."""
    text = str(error)
    text = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    is_elsewhere = isinstance(error, NoRegistryError) or (
        isinstance(error, SchemaRegistryError) and not _is_unavailable(error) and _is_of_another_server(error)
    )
    return (
        f"{text} (check that registry= has the address and the settings of a schema registry)"
        if is_elsewhere
        else text
    )


def _is_unavailable(error: SchemaRegistryError) -> bool:
    return error.http_status_code >= 500 or error.http_status_code in _NOT_THE_RECORD


def _is_of_another_server(error: SchemaRegistryError) -> bool:
    """Return whether an error has no code of a registry (40401): a proxy has answered, or the address has a wrong path."""
    has_no_code = error.error_code in (None, SchemaRegistryError.UNKNOWN)
    is_of_server = has_no_code or str(error.error_message).startswith(f"HTTP {error.http_status_code}")
    return is_of_server and error.http_status_code not in _ABOUT_THE_SCHEMA
