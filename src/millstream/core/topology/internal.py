"""Internal topics: the names and configuration of the topics that an application creates.

All names begin with the application id, so that one rule of a secured cluster covers them and `millstream reset` finds them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from millstream.core.topology.stores import SlicedSpec, StoreSpec, VersionedSpec

_TIMES: Final[Mapping[str, str]] = {"message.timestamp.type": "CreateTime"}
"""Records keep their own timestamps, whatever the default of the broker."""

_SMALL_SEGMENT: Final = str(50 << 20)
"""The size of a segment of a topic whose old records are soon not needed any more, bytes."""

REPARTITION_CONFIG: Final[Mapping[str, str]] = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "segment.bytes": _SMALL_SEGMENT,
    **_TIMES,
}
"""Configuration of a repartition topic: unread records are never deleted, and the broker frees the space of purged records one segment
at a time."""

COMMITS_CONFIG: Final[Mapping[str, str]] = {"cleanup.policy": "compact", "segment.bytes": _SMALL_SEGMENT}
"""Configuration of the commits topic: only the latest value of each mark and of each task snapshot is needed. The broker compacts only
closed segments."""

DRIVER_CONFIG: Final[Mapping[str, str]] = {"cleanup.policy": "delete"}
"""Configuration of the topic by which a driver is elected. It never contains records."""

_OF_FOREIGN_KEYS: Final = re.compile(r"-KTABLE-FK-JOIN-SUBSCRIPTION-(REGISTRATION|RESPONSE)-\d+-topic$")
"""Names that Kafka Streams generates for the topics of foreign-key joins, the only repartition topics with another suffix."""

_DAY_MS: Final = 86_400_000
_LONGEST_MS: Final = (1 << 63) - 1
"""The longest duration that a broker accepts."""


def repartition_topic(application_id: str, name: str) -> str:
    """Return the name of a repartition topic, by the rules of Kafka Streams.

    Example:
        >>> repartition_topic("shop", "counts")
        'shop-counts-repartition'
        >>> repartition_topic("shop", "KTABLE-FK-JOIN-SUBSCRIPTION-RESPONSE-0000000014-topic")
        'shop-KTABLE-FK-JOIN-SUBSCRIPTION-RESPONSE-0000000014-topic'
    """
    whole = f"{application_id}-{name}"
    return whole if _OF_FOREIGN_KEYS.search(whole) else f"{whole}-repartition"


def changelog_topic(application_id: str, store: str) -> str:
    """Return the name of a store's changelog topic, by the rules of Kafka Streams."""
    return f"{application_id}-{store}-changelog"


def commits_topic(application_id: str) -> str:
    """Return the name of the topic, and of the consumer group, with an application's commits."""
    return f"{application_id}-commits"


def driver_topic(application_id: str) -> str:
    """Return the name of the topic, and of the consumer group, by which one of several drivers is elected."""
    return f"{application_id}-driver"


def is_internal(application_id: str, topic: str) -> bool:
    """Return whether a topic has the name of an internal topic of an application.

    Source: ``StreamsResetter.matchesInternalTopicFormat``.

    Example:
        >>> is_internal("shop", "shop-counts-changelog"), is_internal("shop", "shop-orders")
        (True, False)
    """
    if topic in (commits_topic(application_id), driver_topic(application_id)):
        return True
    ends = topic.endswith(("-repartition", "-changelog")) or _OF_FOREIGN_KEYS.search(topic) is not None
    return topic.startswith(f"{application_id}-") and ends


def repartition_config(given: Mapping[str, str]) -> dict[str, str]:
    """Return the configuration of a repartition topic.

    Source: ``RepartitionTopicConfig``.
    """
    return {**REPARTITION_CONFIG, **given}


def changelog_config(spec: StoreSpec, given: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the configuration of a store's changelog topic.

    Args:
        spec: The store. Its own configuration takes precedence over ``given``.

    Source: ``WindowedChangelogTopicConfig``, ``VersionedChangelogTopicConfig``, ``UnwindowedUnversionedChangelogTopicConfig``;
    as there, a day is added to the retention (``windowstore.changelog.additional.retention.ms``).
    """
    return {**_changelog(spec), **_TIMES, **(given or {}), **spec.changelog_config}


def _changelog(spec: StoreSpec) -> dict[str, str]:
    if not isinstance(spec, SlicedSpec):
        return {"cleanup.policy": "compact"}
    retention = str(min(spec.retention_ms + _DAY_MS, _LONGEST_MS))
    if isinstance(spec, VersionedSpec):
        return {"cleanup.policy": "compact", "min.compaction.lag.ms": retention}
    return {"cleanup.policy": "compact,delete", "retention.ms": retention}


def wrong_config(wanted: Mapping[str, str], actual: Mapping[str, str]) -> dict[str, str]:
    """Return the entries that must change in the configuration of an existing internal topic because results would be wrong.

    Args:
        actual: Configuration of the topic, including the broker's defaults. Unknown entries are assumed to be right.

    Example:
        >>> wrong_config(REPARTITION_CONFIG, {"cleanup.policy": "compact", "message.timestamp.type": "CreateTime"})
        {'cleanup.policy': 'delete'}
    """
    matter = ("cleanup.policy", "message.timestamp.type")
    known = [name for name in matter if name in wanted and name in actual]
    return {name: wanted[name] for name in known if not _fits(wanted[name], actual[name])}


def _fits(wanted: str, actual: str) -> bool:
    """Return whether a value is sufficient. A topic that is compacted but not deleted from keeps more than enough."""
    return set(actual.split(",")) == set(wanted.split(",")) or (actual == "compact" and "compact" in wanted)
