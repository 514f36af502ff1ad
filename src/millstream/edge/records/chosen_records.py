"""Checks of options that choose records: partitions that must exist, and times that must leave something to choose."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from millstream.core.model.errors import SettingsError


def check_partitions(chosen: Collection[int], counts: Mapping[str, int]) -> None:
    """Check that each chosen partition is one of a topic.

    Args:
        counts: The number of partitions of each topic.

    Raises:
        SettingsError: If a partition exists in no topic.

    Example:
        >>> check_partitions([1, 99], {"orders": 4})
        Traceback (most recent call last):
        millstream.core.model.errors.SettingsError: there is no partition 99: topic 'orders' has the partitions 0 to 3
    """
    missing = sorted(number for number in chosen if not any(0 <= number < count for count in counts.values()))
    if missing:
        existing = ", ".join(f"topic {topic!r} has {_range(count)}" for topic, count in counts.items())
        raise SettingsError(f"there is no partition {', '.join(map(str, missing))}: {existing}")


def check_times(since_ms: int | None, until_ms: int | None) -> None:
    """Check that a time range, whose end is exclusive, is not empty.

    Raises:
        SettingsError: If its end is not after its start.
    """
    if since_ms is not None and until_ms is not None and since_ms >= until_ms:
        raise SettingsError("--until must be later than --since")


def _range(count: int) -> str:
    return "only partition 0" if count == 1 else f"the partitions 0 to {count - 1}"
