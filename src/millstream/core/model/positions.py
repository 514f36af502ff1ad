"""Positions as JSON: a number per topic and partition, as ``{topic: {"partition": number}}``, because JSON keys are strings.

Spark's checkpoint and messages between processes use this form for offsets, end offsets and times.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millstream.core.model.ids import TopicPartition

Offsets = dict[str, dict[int, int]]
"""Offset by topic and partition."""


def nested(flat: Mapping[TopicPartition, int]) -> Offsets:
    """Convert numbers by partition to numbers by topic and partition, sorted."""
    offsets: Offsets = {}
    for partition, number in sorted(flat.items()):
        offsets.setdefault(partition.topic, {})[partition.partition] = number
    return offsets


def flat(offsets: Offsets) -> dict[TopicPartition, int]:
    """Convert numbers by topic and partition to numbers by partition."""
    return {
        TopicPartition(topic, partition): number
        for topic, partitions in offsets.items()
        for partition, number in partitions.items()
    }


def positions_to_json(offsets: Offsets) -> dict[str, dict[str, int]]:
    """Convert positions to JSON-compatible data. Partitions are sorted; topics keep their order.

    Example:
        >>> positions_to_json({"t": {1: 7, 0: 5}})
        {'t': {'0': 5, '1': 7}}
    """
    return {topic: {str(p): n for p, n in sorted(numbers.items())} for topic, numbers in offsets.items()}


def positions_from_json(data: Mapping[str, Any]) -> Offsets:
    """Decode the result of :func:`positions_to_json`.

    Example:
        >>> positions_from_json({"t": {"0": 5, "1": 7}})
        {'t': {0: 5, 1: 7}}
    """
    return {topic: {int(p): n for p, n in numbers.items()} for topic, numbers in data.items()}
