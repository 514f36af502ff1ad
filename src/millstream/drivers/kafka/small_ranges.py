"""Reads small ranges with one assignment.

A consumer with a new assignment waits for the answer to its previous fetch, about ten milliseconds. A micro-batch of a topic
with a hundred partitions would spend a second on these waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import monotonic
from typing import Any

from confluent_kafka import Consumer, KafkaError
from confluent_kafka import TopicPartition as ClientPartition

from millstream.core.ports import OffsetRange
from millstream.drivers.kafka.clients import is_unavailable

_POLL_S = 0.1
_QUIET_S = 3.0


def groups_of(ranges: Sequence[OffsetRange], records: int) -> Iterator[list[OffsetRange]]:
    """Divide ranges, in their order, into groups that are read together.

    Yields:
        Groups in which each partition has at most one range.
    """
    group: list[OffsetRange] = []
    partitions: set[tuple[str, int]] = set()
    size = 0
    for planned in ranges:
        partition, count = (planned.topic, planned.partition), planned.end - planned.start
        if group and (partition in partitions or size + count > records):
            yield group
            group, partitions, size = [], set(), 0
        group.append(planned)
        partitions.add(partition)
        size += count
    if group:
        yield group


def collect(consumer: Consumer, ranges: Sequence[OffsetRange], at_once: int) -> list[list[Any]] | None:
    """Read all records of ranges of different partitions.

    Returns:
        The messages of each range. None after an error, or after three seconds without a message. The caller then reads each range
        separately, which reveals the cause.
    """
    consumer.assign([ClientPartition(planned.topic, planned.partition, planned.start) for planned in ranges])
    parts = {(planned.topic, planned.partition): _Part(planned) for planned in ranges}
    unfinished = {key: part for key, part in parts.items() if part.position < part.end}
    removed: set[tuple[str, int]] = set()
    heard = monotonic()
    while unfinished:
        # The call waits for the requested number of messages, so it requests at most the missing ones.
        missing = sum(part.end - part.position for part in unfinished.values())
        messages = consumer.consume(min(at_once, missing), _POLL_S)
        if not messages and monotonic() > heard + _QUIET_S:
            return None
        heard = monotonic() if messages else heard
        surplus: set[tuple[str, int]] = set()
        for message in messages:
            if _is_failure(message.error()):
                return None
            key: tuple[Any, Any] = (message.topic(), message.partition())
            if (part := unfinished.get(key)) is not None:
                part.take(message)
                if part.position >= part.end:
                    del unfinished[key]
            elif key in parts and message.error() is None:
                surplus.add(key)
        if unfinished and (surplus := surplus - removed):  # do not read beyond a range
            consumer.incremental_unassign([ClientPartition(*key) for key in surplus])
            removed |= surplus
    consumer.unassign()
    return [part.messages for part in parts.values()]


class _Part:
    def __init__(self, planned: OffsetRange) -> None:
        self.messages: list[Any] = []
        self.position, self.end = planned.start, planned.end

    def take(self, message: Any) -> None:
        if message.error() is None:
            offset = message.offset()
            if self.position <= offset < self.end:
                self.messages.append(message)
            self.position = max(self.position, offset + 1)
        elif message.error().code() == KafkaError._PARTITION_EOF:
            self.position = max(self.position, message.offset())


def _is_failure(error: KafkaError | None) -> bool:
    """Return whether an error needs investigation. The client recovers from the others."""
    return error is not None and error.code() != KafkaError._PARTITION_EOF and not is_unavailable(error)
