"""All commits of a group with their times, from the broker's topic ``__consumer_offsets``.

Polling the committed offset would show only some commits, without their times. The topic contains all of them. Its records are
Kafka's ``OffsetCommitKey`` (versions 0 and 1) and ``OffsetCommitValue`` (versions 3 and 4).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from millstream.testing.kafka import ConsumedRecord, EmbeddedKafka

TOPIC = "__consumer_offsets"
_KEYS_OF_OFFSETS = (0, 1)


class Commit(NamedTuple):
    """A commit of one partition.

    Attributes:
        offset: The committed offset: the first one that is not finished.
        at_us: The time of the commit at the broker, microseconds since the epoch; the broker's time is in ms, and this is its end.
    """

    partition: int
    offset: int
    at_us: int


def commits_of(kafka: EmbeddedKafka, group: str, topic: str) -> list[Commit]:
    """Return the commits of a group for a topic, in order; those of transactions only if committed.

    Args:
        kafka: The broker, which must not have compacted the commits yet.
    """
    records = kafka.consume(TOPIC, isolation="read_committed")
    return [commit for record in records for commit in commits_in(record, group, topic)]


def went_back(commits: Iterable[Commit]) -> int:
    """Return the number of commits with an offset below an earlier commit of the same partition.

    Example:
        >>> went_back([Commit(0, 5, 1), Commit(1, 3, 1), Commit(0, 5, 2), Commit(0, 4, 3)])
        1
    """
    furthest: dict[int, int] = {}
    back = 0
    for commit in commits:
        back += commit.offset < furthest.get(commit.partition, 0)
        furthest[commit.partition] = max(commit.offset, furthest.get(commit.partition, 0))
    return back


def commits_in(record: ConsumedRecord, group: str, topic: str) -> Iterator[Commit]:
    """Yield the commit in a record of ``__consumer_offsets``, if it belongs to the group and topic."""
    if record.key is None or record.value is None or _short(record.key, 0) not in _KEYS_OF_OFFSETS:
        return
    of_group, position = _text(record.key, 2)
    of_topic, position = _text(record.key, position)
    if (of_group, of_topic) != (group, topic):
        return
    (partition,) = struct.unpack_from(">i", record.key, position)
    (offset,) = struct.unpack_from(">q", record.value, 2)
    (at_ms,) = struct.unpack_from(">q", record.value, _behind_metadata(record.value))
    yield Commit(partition, offset, at_ms * 1000 + 999)


def _behind_metadata(value: bytes) -> int:
    """Return the position of the time: after version, offset, leader epoch, and a text with its length."""
    version, position = _short(value, 0), 14
    if version == 3:
        return _text(value, position)[1]
    assert version == 4, f"the broker writes offsets in version {version}, which is not known here"
    length = shift = 0
    while True:  # a variable-length number, seven bits per byte, lowest first; it is the length plus one
        length |= (value[position] & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if value[position - 1] < 0x80:
            return position + length - 1


def _short(data: bytes, position: int) -> int:
    (value,) = struct.unpack_from(">h", data, position)
    return int(value)


def _text(data: bytes, position: int) -> tuple[str, int]:
    begin = position + 2
    end = begin + _short(data, position)
    return data[begin:end].decode(), end
