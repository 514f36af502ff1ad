"""Topics: valid names, and the configuration of internal topics that users may set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from millstream.core.model.errors import TopologyError

_DECIDED: Final[Mapping[str, str]] = {
    "cleanup.policy": "a repartition topic must not lose records with equal keys, and a changelog keeps the newest record of each key",
    "message.timestamp.type": "the times of records have to stay as they are (CreateTime)",
    "retention.ms": "processed records of repartition topics are purged (repartition_purge_interval_ms), and changelogs keep entries "
    "as long as their store does (its retention)",
    "retention.bytes": "records that are still needed would be deleted",
    "min.compaction.lag.ms": "it is the history_retention of versioned stores",
}
_HARMLESS: Final[Mapping[str, str]] = {"unclean.leader.election.enable": "false"}


def checked_topic_config(config: Mapping[str, str]) -> dict[str, str]:
    """Return the user's configuration of internal topics after checking it.

    Raises:
        ValueError: If a name or value is not a str, or the configuration would break the application.

    Example:
        >>> checked_topic_config({"min.insync.replicas": "2"})
        {'min.insync.replicas': '2'}
    """
    for name, value in config.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise ValueError(
                f"{name!r}: {value!r} is invalid; names and values must be strings, as in {{'min.insync.replicas': '2'}}"
            )
        if name in _DECIDED:
            raise ValueError(f"{name!r} cannot be set for internal topics: {_DECIDED[name]}. Leave it out")
        if value.strip().lower() != _HARMLESS.get(name, value.strip().lower()):
            raise ValueError(
                f"{name!r} can only be {_HARMLESS[name]} for internal topics: otherwise, acknowledged records could be "
                "lost"
            )
    return dict(config)


_ALLOWED = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def checked_name(name: str, what: str) -> str:
    """Return a name if it can be part of a topic name, by the rules of ``Named`` in Kafka Streams.

    Raises:
        TopologyError: If the name is empty, too long or contains other characters.
    """
    if (
        not isinstance(name, str)
        or not 0 < len(name) < 250
        or not _ALLOWED.issuperset(name)
        or name in (".", "..")
    ):
        raise TopologyError(
            f"{name!r} cannot be the name of {'an' if what[0] in 'aeiou' else 'a'} {what}: use 1 to 249 letters, digits, '.', '_' or '-', "
            "because topic names are made from it"
        )
    return name
