"""What the topics beside a topic with fan-out inherit from it, so that its records are kept as long and as safely after a split.

The fan-out topics get its configuration and its number of replicas. The control topic is compacted, and gets the number of replicas only.
"""

from __future__ import annotations

from typing import Final

from confluent_kafka.admin import ConfigSource

from millstream.drivers.kafka.broker import Broker
from millstream.drivers.kafka.clients import log
from millstream.drivers.kafka.internal_topics import described_configs

_OF_TOPIC: Final = (ConfigSource.DYNAMIC_TOPIC_CONFIG, ConfigSource.DYNAMIC_TOPIC_CONFIG.value)
"""The source of settings of the topic itself. The client returns the number, not the member that its types promise."""
_OF_PARTITIONS: Final = {"leader.replication.throttled.replicas", "follower.replication.throttled.replicas"}
"""Settings that name partitions of the topic."""


def replica_count(broker: Broker, topic: str) -> int:
    """Return the number of replicas of a topic's partitions; -1, the broker's default, if the topic does not exist."""

    def counted() -> int:
        known = broker.admin().list_topics(timeout=broker.timeout_s).topics.get(topic)
        counts = () if known is None else (len(partition.replicas) for partition in known.partitions.values())
        return max(counts, default=-1)

    return broker.ask(f"reading the number of replicas of topic {topic!r}", counted)


def own_config(broker: Broker, topic: str) -> dict[str, str]:
    """Return the configuration that was set for a topic, without the broker's defaults. Without permission, warn and return an empty dict."""
    configs = described_configs(broker, [topic])
    if configs is None:
        log.warning(
            "this user may not read the configuration of topic %r (DESCRIBE_CONFIGS), so its new fan-out topic gets the broker's "
            "defaults. Configure it like the topic, for example with kafka-configs",
            topic,
        )
        return {}
    return {
        name: entry.value
        for name, entry in configs[topic].items()
        if entry.source in _OF_TOPIC and entry.value is not None and name not in _OF_PARTITIONS
    }
