"""Configuration of internal topics: what a user may add, and what the application decides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_DECIDED: Final[Mapping[str, str]] = {
    "cleanup.policy": "a repartition topic must not lose records of equal keys, and a changelog keeps the newest of each key",
    "message.timestamp.type": "the times of records have to stay as they are (CreateTime)",
    "retention.ms": "repartition topics are purged of what has been processed (repartition_purge_interval_ms), and changelogs "
    "keep entries as long as their store does (its retention)",
    "retention.bytes": "records that are still needed would be deleted",
    "min.compaction.lag.ms": "it is the history_retention of versioned stores",
}
_HARMLESS: Final[Mapping[str, str]] = {"unclean.leader.election.enable": "false"}


def checked_topic_config(config: Mapping[str, str]) -> dict[str, str]:
    """Return what a user adds to the configuration of internal topics.

    Args:
        config: Kafka's names of configurations of topics, with their values.

    Raises:
        ValueError: If a name or value is no text, or would break what the application needs.

    Example:
        >>> checked_topic_config({"min.insync.replicas": "2"})
        {'min.insync.replicas': '2'}
    """
    for name, value in config.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise ValueError(
                f"{name!r}: {value!r} cannot be; names and values are text, as in {{'min.insync.replicas': '2'}}"
            )
        if name in _DECIDED:
            raise ValueError(f"{name!r} cannot be set for internal topics: {_DECIDED[name]}. Leave it out")
        if value.strip().lower() != _HARMLESS.get(name, value.strip().lower()):
            raise ValueError(
                f"{name!r} can only be {_HARMLESS[name]} for internal topics: records that were acknowledged would be lost"
            )
    return dict(config)
