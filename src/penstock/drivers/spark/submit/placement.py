"""Placement: tasks spread evenly over Spark's shuffle partitions.

Spark sends a row to the partition that its own hash of the grouping key says. So each task gets a grouping key whose hash
is the partition it should be on: candidates are tried until one fits. A task's key depends on nothing but the task and the
number of partitions, so that it is the same after a restart and when other tasks come or go.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.core.model.ids import TaskId

_MASK = 0xFFFFFFFF
_CANDIDATES = 1 << 8
_PARTITIONS_PER_SUBTOPOLOGY = 1 << 16


def _rotated(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (32 - bits))) & _MASK


def spark_hash(value: int, seed: int = 42) -> int:
    """Hash an int column as Spark's ``hash`` function does (Murmur3_x86_32.hashInt).

    Returns:
        The hash as a signed 32-bit number; tests compare it with Spark's own.
    """
    k = (_rotated((value & _MASK) * 0xCC9E2D51 & _MASK, 15) * 0x1B873593) & _MASK
    h = (_rotated(seed ^ k, 13) * 5 + 0xE6546B64) & _MASK
    h ^= 4
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) & _MASK
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) & _MASK
    h ^= h >> 16
    return h - (1 << 32) if h & 0x80000000 else h


def grouping_keys(tasks: Iterable[TaskId], shuffle_partitions: int) -> dict[TaskId, int]:
    """Give each task the grouping key that puts it on its shuffle partition.

    Args:
        tasks: The tasks.
        shuffle_partitions: Number of shuffle partitions of the query.

    Returns:
        An int per task, different for all tasks.
    """
    return {task: _key(task, shuffle_partitions) for task in tasks}


def _key(task: TaskId, shuffle_partitions: int) -> int:
    wanted = (task.subtopology + task.partition) % shuffle_partitions
    first = (task.subtopology * _PARTITIONS_PER_SUBTOPOLOGY + task.partition) * _CANDIDATES
    for candidate in range(first, first + _CANDIDATES):
        signed = ((candidate + (1 << 31)) & _MASK) - (1 << 31)
        if spark_hash(signed) % shuffle_partitions == wanted:
            return signed
    return ((first + (1 << 31)) & _MASK) - (1 << 31)
