"""Internal topics: those an application makes for itself. How they are called, and how they are configured.

All begin with the application's id, so that one rule of a secured cluster covers them, and `millstream reset` finds them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from millstream.core.topology.stores import SlicedSpec, StoreSpec, VersionedSpec

_TIMES: Final[Mapping[str, str]] = {"message.timestamp.type": "CreateTime"}
"""The times of records stay as they are, whatever the broker's default is."""

REPARTITION_CONFIG: Final[Mapping[str, str]] = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "segment.bytes": str(50 << 20),
    **_TIMES,
}
"""How a repartition topic is created: nothing is deleted that may not have been read yet, and the broker frees the space of
what was purged a segment at a time."""

COMMITS_CONFIG: Mapping[str, str] = {"cleanup.policy": "compact"}
"""How the topic of commits is created: of each mark and each task's snapshot the last one counts."""

_OF_FOREIGN_KEYS: Final = re.compile(r"-KTABLE-FK-JOIN-SUBSCRIPTION-(REGISTRATION|RESPONSE)-\d+-topic$")
"""Kafka Streams' generated names of the topics of foreign-key joins, the only repartitions that end in another word."""

_DAY_MS: Final = 86_400_000
_LONGEST_MS: Final = (1 << 63) - 1
"""The longest time that a broker takes."""


def repartition_topic(application_id: str, name: str) -> str:
    """Return the name of an internal topic, as Kafka Streams has it.

    Example:
        >>> repartition_topic("shop", "counts")
        'shop-counts-repartition'
        >>> repartition_topic("shop", "KTABLE-FK-JOIN-SUBSCRIPTION-RESPONSE-0000000014-topic")
        'shop-KTABLE-FK-JOIN-SUBSCRIPTION-RESPONSE-0000000014-topic'
    """
    whole = f"{application_id}-{name}"
    return whole if _OF_FOREIGN_KEYS.search(whole) else f"{whole}-repartition"


def changelog_topic(application_id: str, store: str) -> str:
    """Return the name of a store's changelog topic, as Kafka Streams does.

    Example:
        >>> changelog_topic("shop", "counts")
        'shop-counts-changelog'
    """
    return f"{application_id}-{store}-changelog"


def commits_topic(application_id: str) -> str:
    """Return the name of the topic, and of the group, that say what an application has committed.

    Example:
        >>> commits_topic("shop")
        'shop-commits'
    """
    return f"{application_id}-commits"


def is_internal(application_id: str, topic: str) -> bool:
    """Return whether a topic looks like one that an application has made for itself.

    Source: ``StreamsResetter.matchesInternalTopicFormat``.

    Example:
        >>> is_internal("shop", "shop-counts-changelog"), is_internal("shop", "shop-orders")
        (True, False)
    """
    if topic == commits_topic(application_id):
        return True
    ends = topic.endswith(("-repartition", "-changelog")) or _OF_FOREIGN_KEYS.search(topic) is not None
    return topic.startswith(f"{application_id}-") and ends


def repartition_config(given: Mapping[str, str]) -> dict[str, str]:
    """Return how a repartition topic is created with what the user adds.

    Args:
        given: What the user adds for all internal topics.

    Source: ``RepartitionTopicConfig``.

    Example:
        >>> repartition_config({"segment.bytes": "1000000"})["segment.bytes"]
        '1000000'
    """
    return {**REPARTITION_CONFIG, **given}


def changelog_config(spec: StoreSpec, given: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return how a store's changelog topic is created.

    Args:
        spec: The store; what it says itself goes before what is given for all.
        given: What the user adds for all internal topics.

    Source: ``WindowedChangelogTopicConfig``, ``VersionedChangelogTopicConfig``, ``UnwindowedUnversionedChangelogTopicConfig``;
    a day is added to the retention, as there (``windowstore.changelog.additional.retention.ms``).
    """
    return {**_changelog(spec), **_TIMES, **(given or {}), **spec.changelog_config}


def _changelog(spec: StoreSpec) -> dict[str, str]:
    if not isinstance(spec, SlicedSpec):
        return {"cleanup.policy": "compact"}
    kept = str(min(spec.retention_ms + _DAY_MS, _LONGEST_MS))
    if isinstance(spec, VersionedSpec):
        return {"cleanup.policy": "compact", "min.compaction.lag.ms": kept}
    return {"cleanup.policy": "compact,delete", "retention.ms": kept}


def wrong_config(wanted: Mapping[str, str], found: Mapping[str, str]) -> dict[str, str]:
    """Return what has to change in the configuration of an internal topic that exists, because results would be wrong.

    Args:
        wanted: How it would be created.
        found: How it is, the broker's defaults included; what is unknown is taken for right.

    Example:
        >>> wrong_config(REPARTITION_CONFIG, {"cleanup.policy": "compact", "message.timestamp.type": "CreateTime"})
        {'cleanup.policy': 'delete'}
    """
    matter = ("cleanup.policy", "message.timestamp.type")
    return {name: wanted[name] for name in matter if name in found and not _fits(wanted[name], found[name])}


def _fits(wanted: str, found: str) -> bool:
    """Return whether a value does what another should; a topic that is compacted and never deleted from keeps more than enough."""
    return set(found.split(",")) == set(wanted.split(",")) or (found == "compact" and "compact" in wanted)
