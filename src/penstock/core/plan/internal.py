"""Internal topics: those an application makes for itself. How they are called, and how they are configured.

All begin with the application's id, so that one rule of a secured cluster covers them, and `penstock reset` finds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.core.plan.specs import SlicedSpec, StoreSpec, VersionedSpec

REPARTITION_CONFIG: Mapping[str, str] = {"retention.ms": "-1"}
"""How a repartition topic is created: nothing is deleted that may not have been read yet."""

COMMITS_CONFIG: Mapping[str, str] = {"cleanup.policy": "compact"}
"""How the topic of commits is created: of each mark and each task's snapshot the last one counts."""

_DAY_MS: Final = 86_400_000
_LONGEST_MS: Final = (1 << 63) - 1
"""The longest time that a broker takes."""


def repartition_topic(application_id: str, name: str) -> str:
    """Give the name of an internal topic, as Kafka Streams does.

    Example:
        >>> repartition_topic("shop", "counts")
        'shop-counts-repartition'
    """
    return f"{application_id}-{name}-repartition"


def changelog_topic(application_id: str, store: str) -> str:
    """Give the name of a store's changelog topic, as Kafka Streams does.

    Example:
        >>> changelog_topic("shop", "counts")
        'shop-counts-changelog'
    """
    return f"{application_id}-{store}-changelog"


def commits_topic(application_id: str) -> str:
    """Give the name of the topic, and of the group, that say what an application has committed.

    Example:
        >>> commits_topic("shop")
        'shop-commits'
    """
    return f"{application_id}-commits"


def is_internal(application_id: str, topic: str) -> bool:
    """Tell whether a topic looks like one that an application has made for itself.

    Example:
        >>> is_internal("shop", "shop-counts-changelog"), is_internal("shop", "shop-orders")
        (True, False)
    """
    begins = topic.startswith(f"{application_id}-") and topic.endswith(("-repartition", "-changelog"))
    return begins or topic == commits_topic(application_id)


def changelog_config(spec: StoreSpec) -> dict[str, str]:
    """Give how a store's changelog topic is created.

    Source: ``WindowedChangelogTopicConfig``, ``VersionedChangelogTopicConfig``, ``UnwindowedUnversionedChangelogTopicConfig``;
    a day is added to the retention, as there (``windowstore.changelog.additional.retention.ms``).
    """
    if isinstance(spec, VersionedSpec):
        return {"cleanup.policy": "compact", "min.compaction.lag.ms": str(spec.retention_ms + _DAY_MS)}
    if isinstance(spec, SlicedSpec):
        kept = min(spec.retention_ms + _DAY_MS, _LONGEST_MS)
        return {"cleanup.policy": "compact,delete", "retention.ms": str(kept)}
    return {"cleanup.policy": "compact"}
