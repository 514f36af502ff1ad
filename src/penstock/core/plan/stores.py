"""Store specifications: what a store is called, what it holds and where it is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.core.model.errors import TopologyError
from penstock.core.model.serdes import Serde


@dataclass(frozen=True)
class StoreSpec:
    """A key-value store, as it is added to a topology (Kafka Streams: ``StoreBuilder``).

    Attributes:
        name: Unique in its topology; the store's state is found by it after a restart.
        key: Serde of the keys; iteration is in the order of the serialised keys.
        value: Serde of the values.
        timestamped: Whether each value is kept with the timestamp of its record; stores made by the DSL are.
    """

    name: str
    key: Serde[Any]
    value: Serde[Any]
    timestamped: bool = False

    @property
    def fingerprint(self) -> str:
        """What must stay the same for the store's content to be readable."""
        kind = "timestamped-key-value" if self.timestamped else "key-value"
        return f"{kind} {self.key.name} -> {self.value.name}"


def key_value(name: str, key: Serde[Any], value: Serde[Any], *, timestamped: bool = False) -> StoreSpec:
    """Specify a key-value store.

    Args:
        name: Letters, digits, dots, dashes and underscores.
        key: Serde of the keys.
        value: Serde of the values.
        timestamped: Keep a timestamp with each value; ``get`` then gives ``ValueAndTimestamp``.

    Returns:
        What ``add_state_store`` takes.

    Raises:
        TopologyError: If the name cannot be the name of a store.

    Source: ``org.apache.kafka.streams.state.Stores.keyValueStoreBuilder``.

    Example:
        >>> from penstock.core.model import serdes
        >>> key_value("seen", serdes.string, serdes.int64).fingerprint
        'key-value string -> int64'
    """
    return StoreSpec(checked_name(name, "store"), key, value, timestamped)


_ALLOWED = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def checked_name(name: str, what: str) -> str:
    """Give the name back if it can be part of a topic's name, as Kafka Streams demands of ``Named``.

    Raises:
        TopologyError: If it is empty, too long or has other characters.
    """
    if (
        not isinstance(name, str)
        or not 0 < len(name) < 250
        or not _ALLOWED.issuperset(name)
        or name in (".", "..")
    ):
        raise TopologyError(
            f"{name!r} cannot be the name of a {what}: use 1 to 249 letters, digits, '.', '_' or '-', "
            "because topic names are made from it"
        )
    return name
