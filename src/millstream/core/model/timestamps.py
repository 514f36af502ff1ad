"""Timestamp extractors for records whose producer set no timestamp.

Records from very old producers have the timestamp -1. Without an extractor, such a record fails, under the policy for records that
cannot be deserialised. Pass these functions as ``timestamp=`` of a source.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from millstream.core.model.errors import DeserializationError
from millstream.core.model.record import Headers

__all__ = ["skip_invalid", "use_partition_time", "wall_clock"]


class ConsumerRecord(NamedTuple):
    """A deserialised record as read from Kafka, for timestamp extractors.

    Source: ``org.apache.kafka.clients.consumer.ConsumerRecord``.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: Any
    value: Any
    headers: Headers


def skip_invalid(record: ConsumerRecord, partition_time: int) -> int:
    """Drop records without a timestamp, and count them as dropped.

    Args:
        record: The record as read.
        partition_time: Ignored.

    Returns:
        The timestamp of the record, ms since the epoch; negative for a record to drop.

    Source: ``org.apache.kafka.streams.processor.LogAndSkipOnInvalidTimestamp``.

    Example:
        >>> import millstream as ms
        >>> _ = ms.StreamsBuilder().stream("old", timestamp=ms.timestamps.skip_invalid)
    """
    return record.timestamp


def wall_clock(record: ConsumerRecord, partition_time: int) -> int:
    """Set the timestamp of each record to the wall-clock time at which its micro-batch began, whatever its own timestamp.

    A replayed micro-batch sets the same timestamps. Records that a task buffers until a later micro-batch receive the time of the
    micro-batch that processes them.

    Args:
        record: Ignored.
        partition_time: Ignored.

    Returns:
        The time, ms since the epoch. Sources recognise this function and supply the time; they do not call it.

    Source: ``org.apache.kafka.streams.processor.WallclockTimestampExtractor``.

    Example:
        >>> import millstream as ms
        >>> builder = ms.StreamsBuilder()
        >>> builder.stream("in", timestamp=ms.timestamps.wall_clock).to("out")
        >>> with ms.testing.TopologyTestDriver(builder.build(), wall_clock_ms=7) as driver:
        ...     driver.pipe("in", "k", "v", timestamp=1)
        ...     driver.read("out")
        [Record(key='k', value='v', timestamp=7, headers=())]
    """
    raise NotImplementedError("a task uses the wall clock instead of this function and never calls it")


def use_partition_time(record: ConsumerRecord, partition_time: int) -> int:
    """Set the timestamp of records without one to the largest timestamp of their partition so far.

    Args:
        record: The record as read.
        partition_time: The largest timestamp of the partition so far, ms since the epoch; -1 before the first record.

    Returns:
        The timestamp of the record, or else the partition time, ms since the epoch.

    Raises:
        DeserializationError: If there is no such timestamp.

    Source: ``org.apache.kafka.streams.processor.UsePartitionTimeOnInvalidTimestamp``.

    Example:
        >>> import millstream as ms
        >>> _ = ms.StreamsBuilder().stream("old", timestamp=ms.timestamps.use_partition_time)
    """
    if record.timestamp >= 0:
        return record.timestamp
    if partition_time < 0:
        raise DeserializationError(
            "neither this record nor an earlier one of its partition has a timestamp; configure the producer to set timestamps, or "
            "the topic (message.timestamp.type=LogAppendTime)"
        )
    return partition_time
