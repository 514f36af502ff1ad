"""Reset: the offsets from which an application starts over.

Targets are specified as in Kafka's own tools (``kafka-streams-application-reset``, ``kafka-consumer-groups``). An offset outside the
range of the topic is moved to the first or last offset, with a note.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from millstream.core.fanout.epochs import primary_of
from millstream.core.model.durations import since_epoch_ms
from millstream.core.model.errors import SettingsError
from millstream.core.model.positions import Offsets
from millstream.core.topology.internal import is_internal


@dataclass(frozen=True)
class Target:
    """The position from which to start.

    Attributes:
        value: An offset, a number of records (negative: backwards), or milliseconds since the epoch.
    """

    kind: Literal["earliest", "latest", "offset", "shift", "time", "listed"] = "earliest"
    value: int = 0
    listed: Offsets = field(default_factory=dict)


@dataclass(frozen=True)
class LogOffsets:
    """Offsets on the broker.

    Attributes:
        at_time: The first offset at or after the target's time; partitions without one are omitted.
    """

    begin: Offsets
    end: Offsets
    at_time: Offsets = field(default_factory=dict)


@dataclass(frozen=True, order=True)
class Move:
    """The current and the new position of a partition.

    Attributes:
        before: The processed position; None if unknown.
        after: The position from which the next start begins.
        note: Why it differs from the requested position, otherwise empty.
    """

    topic: str
    partition: int
    before: int | None
    after: int
    note: str = ""


def moves(target: Target, topics: Iterable[str], current: Offsets, log_offsets: LogOffsets) -> list[Move]:
    """Choose the new offsets of all partitions.

    Args:
        topics: The topics to move. All other topics keep their positions.

    Returns:
        One move per partition, sorted.

    Raises:
        SettingsError: If a partition would have to be shifted from an unknown position.

    Example:
        >>> log_offsets = LogOffsets({"t": {0: 2}}, {"t": {0: 9}})
        >>> moves(Target("shift", -100), ["t"], {"t": {0: 5}}, log_offsets)
        [Move(topic='t', partition=0, before=5, after=2, note='begins at 2')]
    """
    moved = set(topics)
    return sorted(
        _move(
            target if topic in moved else None,
            topic,
            partition,
            current.get(topic, {}).get(partition),
            log_offsets,
        )
        for topic, partitions in log_offsets.begin.items()
        for partition in partitions
    )


def with_fan_outs(topics: Iterable[str], existing: Iterable[str]) -> set[str]:
    """Return topics together with their fan-out topics: the records of a split partition move with the topic.

    Example:
        >>> sorted(with_fan_outs(["orders"], ["orders", "orders-fanout", "orders-fanout-0", "other-fanout-0"]))
        ['orders', 'orders-fanout-0']
    """
    together = set(topics)
    split = ((topic, primary_of(topic)) for topic in existing)
    return together | {topic for topic, primary in split if primary and primary.topic in together}


def _move(
    target: Target | None, topic: str, partition: int, before: int | None, log_offsets: LogOffsets
) -> Move:
    begin, end = log_offsets.begin[topic][partition], log_offsets.end[topic][partition]
    if target is None:
        wanted = begin if before is None else before
        note = "stays"
    else:
        wanted = _target_offset(target, topic, partition, before, log_offsets)
        note = ""
    if wanted < begin:
        return Move(topic, partition, before, begin, f"begins at {begin}")
    if wanted > end:
        return Move(topic, partition, before, end, f"ends at {end}")
    return Move(topic, partition, before, wanted, note)


def _target_offset(
    target: Target, topic: str, partition: int, before: int | None, log_offsets: LogOffsets
) -> int:
    begin, end = log_offsets.begin[topic][partition], log_offsets.end[topic][partition]
    if target.kind == "earliest":
        return begin
    if target.kind == "latest":
        return end
    if target.kind == "offset":
        return target.value
    if target.kind == "time":
        return log_offsets.at_time.get(topic, {}).get(partition, end)
    if target.kind == "listed":
        return target.listed.get(topic, {}).get(partition, begin if before is None else before)
    if before is None:
        raise SettingsError(
            f"topic {topic!r}, partition {partition} cannot be shifted by {target.value}: the application's position there is "
            "unknown. Choose --to-earliest, --to-latest, --to-offset or --to-datetime"
        )
    return before + target.value


def timestamp_ms(text: str) -> int:
    """Parse an ISO 8601 date and time. Without a time zone, it is UTC, as in Kafka's tools.

    Returns:
        Milliseconds since the epoch.

    Example:
        >>> timestamp_ms("1970-01-01T00:00:01.500"), timestamp_ms("1970-01-01T01:00:00+01:00")
        (1500, 0)
    """
    try:
        parsed = datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith("Z") else text)
    except ValueError:
        raise SettingsError(
            f"{text!r} is not a date and time: write ISO 8601, such as 2026-01-31T18:00:00 (UTC) or 2026-01-31T18:00:00+01:00"
        ) from None
    return since_epoch_ms(parsed)


def listed_offsets(lines: Iterable[str]) -> Offsets:
    """Parse lines of ``topic,partition,offset``, the format of ``kafka-consumer-groups --export``."""
    offsets: Offsets = {}
    for number, row in enumerate(csv.reader(lines), 1):
        if not row:
            continue
        try:
            topic, partition, offset = (cell.strip() for cell in row)
            offsets.setdefault(topic, {})[int(partition)] = int(offset)
        except ValueError:
            raise SettingsError(
                f"line {number} is {','.join(row)!r}; it should be topic,partition,offset"
            ) from None
    return offsets


def internal_topics(
    application_id: str, existing: Iterable[str], groups: Iterable[str]
) -> tuple[list[str], dict[str, str]]:
    """Return the internal topics of an application, identified by name.

    Args:
        groups: All consumer groups of the cluster. If the id of another application begins with this id and a dash, the topics of
            that application match the same pattern.

    Returns:
        The topics, and the matching topics of other groups with the group.

    Example:
        >>> internal_topics("shop", ["shop-a-repartition", "shop-eu-b-changelog", "shop-c"], ["shop", "shop-eu"])
        (['shop-a-repartition'], {'shop-eu-b-changelog': 'shop-eu'})
    """
    longer = sorted(group for group in groups if group.startswith(f"{application_id}-"))
    own: list[str] = []
    others: dict[str, str] = {}
    for topic in sorted(existing):
        owner = next((group for group in longer if is_internal(group, topic)), None)
        if owner is not None:
            others[topic] = owner
        elif is_internal(application_id, topic):
            own.append(topic)
    return own, others
