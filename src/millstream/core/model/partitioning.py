"""Default partitioner: the partition of a key, by Murmur2 as in Java producers, and the key ranges of a partition.

Other programs send a key to the partition that Java producers choose (``org.apache.kafka.common.utils.Utils.murmur2``, ``toPositive``).
Millstream must agree exactly: otherwise, the records of a key would be in two partitions, and its count would be wrong.

A *key range* is an interval of hashes. The low bits of the hash choose a partition and the high bits choose a key range, so the keys of
one partition spread evenly over the ranges, whatever the numbers of both are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from struct import Struct
from typing import Final, NamedTuple

HASH_BITS: Final = 32
_REMEMBERED: Final = 100_000
_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Hash bytes with Kafka's 32-bit Murmur2.

    Returns:
        The hash as an unsigned 32-bit number (Java prints the same bits as a signed one).

    Source: ``org.apache.kafka.common.utils.Utils.murmur2``.

    Example:
        >>> murmur2(b"21") == -973932308 & 0xFFFFFFFF
        True
    """
    length = len(data)
    h = _SEED ^ length
    whole = length & ~3
    for word in _word_reader(length >> 2)(data):
        k = word * _M & _MASK
        h = (h * _M ^ (k ^ k >> 24) * _M) & _MASK
    if length & 3:
        h = ((h ^ int.from_bytes(data[whole:], "little")) * _M) & _MASK
    h = ((h ^ (h >> 13)) * _M) & _MASK
    return h ^ (h >> 15)


@lru_cache
def _word_reader(count: int) -> Callable[[bytes], tuple[int, ...]]:
    """Return a function that reads a number of words from the beginning of bytes."""
    return Struct(f"<{count}I").unpack_from


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition to which a Java producer would send a key.

    Example:
        >>> partition_of(b"spark", 4)
        0
    """
    return (murmur2(key) & 0x7FFFFFFF) % partitions


class Partitions(dict[bytes, int]):
    """The partition of each key of a topic, cached.

    Args:
        count: Number of partitions of the topic, at least 1.

    Example:
        >>> Partitions(4)[b"spark"]
        0
    """

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count

    def __missing__(self, key: bytes) -> int:
        if len(self) >= _REMEMBERED:
            self.clear()
        partition = self[key] = partition_of(key, self._count)
        return partition


class KeyRange(NamedTuple):
    """One of the key ranges of a partition.

    Attributes:
        number: Number of the range, from 0.
        of: Number of ranges into which the partition is divided.

    Source: the draft proposal "Parallel processing beyond the partition count", *High Level Design*.

    Example:
        >>> str(KeyRange(1, 4)), KeyRange(1, 4).bounds
        ('1 of 4', (1073741824, 2147483648))
    """

    number: int
    of: int

    @property
    def bounds(self) -> tuple[int, int]:
        """The first hash of the range, and the first hash after it."""
        first, behind = (-(-(number << HASH_BITS) // self.of) for number in (self.number, self.number + 1))
        return first, behind

    def holds(self, key: bytes | None) -> bool:
        """Return whether a serialised key is in the range. None, the key of a record without a key, counts as the empty key."""
        return range_of(key, self.of) == self.number

    def __str__(self) -> str:
        return f"{self.number} of {self.of}"


def range_of(key: bytes | None, ranges: int) -> int:
    """Return the number of the range of a serialised key.

    Args:
        key: The key; None counts as the empty key.
        ranges: Number of ranges into which the partition is divided, at least 1.

    Example:
        >>> [range_of(key, 4) for key in (b"to", b"be", b"or", b"not")]
        [2, 0, 3, 2]
    """
    return (murmur2(key or b"") * ranges) >> HASH_BITS
