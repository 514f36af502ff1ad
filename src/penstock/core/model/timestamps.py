"""Timestamp extractors: what becomes of a record whose producer gave it no timestamp.

Records of very old producers have the timestamp -1. Without an extractor such a record fails, under the policy for records that cannot
be read. These functions are for ``timestamp=`` of a source.
"""

from __future__ import annotations

from penstock.core.model.errors import DeserializationError
from penstock.core.model.record import ConsumerRecord


def skip_invalid(record: ConsumerRecord, partition_time: int) -> int:
    """Leave records without a timestamp out, and count them as dropped.

    Source: ``org.apache.kafka.streams.processor.LogAndSkipOnInvalidTimestamp``.

    Example:
        >>> import penstock as ps
        >>> _ = ps.StreamsBuilder().stream("old", timestamp=ps.timestamps.skip_invalid)
    """
    return record.timestamp


def use_partition_time(record: ConsumerRecord, partition_time: int) -> int:
    """Give records without a timestamp the largest one that their partition has had so far.

    Raises:
        DeserializationError: If there was none before it.

    Source: ``org.apache.kafka.streams.processor.UsePartitionTimeOnInvalidTimestamp``.
    """
    if record.timestamp >= 0:
        return record.timestamp
    if partition_time < 0:
        raise DeserializationError(
            "the record has no timestamp, and neither has any record of its partition before it; let the producer give timestamps, "
            "or the topic (message.timestamp.type=LogAppendTime)"
        )
    return partition_time
