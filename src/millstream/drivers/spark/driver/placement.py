"""Placement: spreads tasks evenly over Spark's shuffle partitions.

Spark sends a row to the partition determined by its hash of the grouping key. Each task therefore has a grouping key with a suitable
hash: candidates are tried until the hash modulo 64 is the task's number. This spreads tasks evenly over any power of two up to 64
shuffle partitions, and well enough over other numbers. Spark finds a task's state by the grouping key. The key therefore depends only on
the task, not on the number of cores, partitions or other tasks.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from millstream.core.model.errors import TopologyError
from millstream.core.model.ids import TaskId

_MASK = 0xFFFFFFFF
_SPREAD = 64
_CANDIDATES = 1 << 10
_SUBTOPOLOGIES = 1 << 8
_PARTITIONS = 1 << 14


def _rotate_left(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (32 - bits))) & _MASK


def spark_hash(value: int) -> int:
    """Hash an int column like Spark's ``hash`` function (Murmur3_x86_32.hashInt, seed 42)."""
    k = (_rotate_left((value & _MASK) * 0xCC9E2D51 & _MASK, 15) * 0x1B873593) & _MASK
    h = (_rotate_left(42 ^ k, 13) * 5 + 0xE6546B64) & _MASK
    h ^= 4
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) & _MASK
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) & _MASK
    h ^= h >> 16
    return h - (1 << 32) if h & 0x80000000 else h


def grouping_keys(tasks: Iterable[TaskId]) -> dict[TaskId, int]:
    """Return a distinct grouping key for each task.

    Raises:
        TopologyError: If there are too many sub-topologies or partitions for distinct keys.
    """
    return {task: _key(task) for task in tasks}


def spark_partition(task: TaskId, partitions: int) -> int:
    """Return the Spark partition that runs a task.

    Example:
        >>> [spark_partition(TaskId(0, number), 4) for number in range(6)]
        [0, 1, 2, 3, 0, 1]
    """
    return spark_hash(_key(task)) % partitions


@cache
def _key(task: TaskId) -> int:
    if task.subtopology >= _SUBTOPOLOGIES or task.partition >= _PARTITIONS:
        raise TopologyError(
            f"task {task} cannot be placed: a query supports at most {_SUBTOPOLOGIES} sub-topologies of {_PARTITIONS} "
            "partitions. Use topics with fewer partitions, or divide the topology into several applications"
        )
    wanted = (task.subtopology + task.partition) % _SPREAD
    first = (task.subtopology * _PARTITIONS + task.partition) * _CANDIDATES
    candidates = (_signed(candidate) for candidate in range(first, first + _CANDIDATES))
    return next((key for key in candidates if spark_hash(key) % _SPREAD == wanted), _signed(first))


def _signed(value: int) -> int:
    return ((value + (1 << 31)) & _MASK) - (1 << 31)
