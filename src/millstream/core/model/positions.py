"""Positions as JSON: a number per topic and partition, which JSON can only have as ``{topic: {"partition": number}}``.

Offsets, ends and times all travel so, in Spark's checkpoint and between processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millstream.core.model.ids import TopicPartition

Offsets = dict[str, dict[int, int]]
"""Topic to partition to offset."""


def nested(flat: Mapping[TopicPartition, int]) -> Offsets:
    """Give numbers by partition as numbers by topic, in order."""
    found: Offsets = {}
    for at, number in sorted(flat.items()):
        found.setdefault(at.topic, {})[at.partition] = number
    return found


def flat(offsets: Offsets) -> dict[TopicPartition, int]:
    """Give numbers by topic as numbers by partition."""
    return {
        TopicPartition(topic, partition): number
        for topic, partitions in offsets.items()
        for partition, number in partitions.items()
    }


def positions_to_json(offsets: Offsets) -> dict[str, dict[str, int]]:
    """Give numbers by topic as what JSON can say; partitions are in order, topics as they came.

    Example:
        >>> positions_to_json({"t": {1: 7, 0: 5}})
        {'t': {'0': 5, '1': 7}}
    """
    return {topic: {str(p): n for p, n in sorted(numbers.items())} for topic, numbers in offsets.items()}


def positions_from_json(data: Mapping[str, Any]) -> Offsets:
    """Read what :func:`positions_to_json` gave.

    Example:
        >>> positions_from_json({"t": {"0": 5, "1": 7}})
        {'t': {0: 5, 1: 7}}
    """
    return {topic: {int(p): n for p, n in numbers.items()} for topic, numbers in data.items()}
