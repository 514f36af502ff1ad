"""Asks the brokers whether they create missing topics, without creating any."""

from __future__ import annotations

from typing import Final

from confluent_kafka.admin import ConfigResource

from millstream.core.model.errors import BrokerUnavailableError, MillstreamError
from millstream.drivers.kafka.broker import Broker

_OF_BROKERS: Final = "auto.create.topics.enable"
_OF_CLIENTS: Final = "allow.auto.create.topics"


def creates_topics(broker: Broker) -> bool | None:
    """Return whether the brokers create a missing topic when a producer asks for it; None if this user may not see that.

    Raises:
        BrokerUnavailableError: If no broker answers in time.
    """
    if str(broker.settings.get(_OF_CLIENTS, True)).lower() == "false":
        return False
    try:
        found = broker.ask(f"reading {_OF_BROKERS} of the brokers", lambda: _configured(broker))
    except BrokerUnavailableError:
        raise
    except MillstreamError:
        return None
    return True if "true" in found else False if found == {"false"} else None


def _configured(broker: Broker) -> set[str | None]:
    """Return the configurations of all brokers. A request can name only one of them."""
    admin = broker.admin()
    found = set()
    for number in admin.list_topics(timeout=broker.timeout_s).brokers:
        wanted = ConfigResource(ConfigResource.Type.BROKER, str(number))
        (future,) = admin.describe_configs([wanted], request_timeout=broker.timeout_s).values()
        entry = future.result().get(_OF_BROKERS)
        found.add(None if entry is None else entry.value)
    return found
