"""Client settings, and clients that outlive a micro-batch.

A client costs a connection, so each Python process keeps the ones it has made (:func:`warm`): only module globals outlive
a micro-batch in a Spark worker. Settings are plain dicts of librdkafka's names, made once by ``penstock.edge.settings``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException

from penstock.core.model.errors import BrokerUnavailableError, PenstockError

Client = TypeVar("Client")
ClientSettings = Mapping[str, Any]
"""librdkafka's settings by name, with ``bootstrap.servers`` and security."""

log = logging.getLogger("penstock.kafka")

_WARM: dict[tuple[str, tuple[tuple[str, str], ...]], Any] = {}
_NO_BROKER = {KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._RESOLVE}


def warm(make: Callable[[dict[str, Any]], Client], settings: ClientSettings) -> Client:
    """Give the process's client of a kind with these settings, made when it is first asked for.

    Args:
        make: Class or function that makes a client of a dict of settings.
        settings: librdkafka's settings.
    """
    name = f"{make.__module__}.{make.__qualname__}"
    identity = (name, tuple(sorted((key, str(value)) for key, value in settings.items())))
    if identity not in _WARM:
        _WARM[identity] = make({"logger": log, **settings})
    client: Client = _WARM[identity]
    return client


def discard(client: Any) -> None:
    """Forget a client that is in a state nobody wants to reuse."""
    for identity in [i for i, known in _WARM.items() if known is client]:
        del _WARM[identity]


def is_unavailable(error: KafkaError) -> bool:
    """Tell whether an error says that no broker answers, so that waiting may help."""
    return error.code() in _NO_BROKER or error.retriable()


def translated(error: KafkaException, doing: str, servers: str) -> PenstockError:
    """Make an error for people of an error of the client.

    Args:
        error: What the client raised.
        doing: What was being done, as in "reading topic 'lines'".
        servers: The bootstrap servers.
    """
    cause = error.args[0]
    if isinstance(cause, KafkaError) and is_unavailable(cause):
        return BrokerUnavailableError(
            f"no Kafka broker answers at {servers} (while {doing}: {cause.str()}). Check that the broker runs, that "
            "bootstrap_servers is right and reachable from here, and that its advertised.listeners are too"
        )
    return PenstockError(f"Kafka refused {doing}: {cause.str() if isinstance(cause, KafkaError) else cause}")
