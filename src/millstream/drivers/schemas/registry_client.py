"""Clients of schema registries: one per process and registry, made when the first record needs it."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka.schema_registry import SchemaRegistryClient

from millstream.core.model.errors import SettingsError

_TIMEOUT_S: Final = 10
"""How long a request may take where the user sets no ``timeout``; the client itself would wait for ever."""
_CLIENTS: dict[tuple[int, tuple[tuple[str, Any], ...]], SchemaRegistryClient] = {}
_LOCK = threading.Lock()

Registry = tuple[tuple[str, Any], ...]
"""The settings of a client, sorted by name; secrets are references."""


def registry_of(given: str | Mapping[str, Any]) -> Registry:
    """Return the settings of a client, sorted by name.

    Args:
        given: The address, or settings of ``confluent_kafka.schema_registry.SchemaRegistryClient`` by name. Its ``timeout`` (of one request,
            in seconds) is 10 unless set.

    Raises:
        SettingsError: If there is no address.
    """
    settings = {"url": given} if isinstance(given, str) else dict(given)
    if not settings.get("url"):
        raise SettingsError("a schema registry needs an address: registry='http://localhost:8081'")
    return tuple(sorted(settings.items()))


def client_of(registry: Registry) -> SchemaRegistryClient:
    """Return this process's client.

    Raises:
        SettingsError: If a secret does not exist, or the client refuses a setting.
    """
    key = (os.getpid(), registry)  # a forked process must not share connections
    with _LOCK:
        if key not in _CLIENTS:
            settings = {name: value.fetch() if hasattr(value, "fetch") else value for name, value in registry}
            try:
                _CLIENTS[key] = SchemaRegistryClient.new_client({"timeout": _TIMEOUT_S, **settings})
            except (TypeError, ValueError) as error:
                raise SettingsError(
                    f"the client of the schema registry does not take its settings: {error}"
                ) from None
        return _CLIENTS[key]
