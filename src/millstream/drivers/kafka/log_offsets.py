"""Offsets of logs: the answers of the admin client, whose special cases look like other answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confluent_kafka import OFFSET_END, IsolationLevel, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient, OffsetSpec


def requested(
    admin: AdminClient, wanted: dict[ClientPartition, OffsetSpec], timeout_s: float, *, read_committed: bool
) -> dict[ClientPartition, Any]:
    """Request offsets, and return the answers as they are.

    Raises:
        KafkaException: If a topic does not exist, or no broker answers in time.
    """
    isolation = IsolationLevel.READ_COMMITTED if read_committed else IsolationLevel.READ_UNCOMMITTED
    futures = admin.list_offsets(wanted, isolation_level=isolation, request_timeout=timeout_s)
    try:
        return {partition: future.result() for partition, future in futures.items()}
    except KafkaException as error:
        # The client reports topics that do not exist, if it has never known them, like a broker that does not answer.
        if error.args[0].code() == KafkaError._NOENT:
            known = admin.list_topics(timeout=timeout_s).topics
            for topic in {partition.topic for partition in wanted} - known.keys():
                raise KafkaException(
                    KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, f"no topic {topic!r}")
                ) from error
        raise


def found(answers: Mapping[ClientPartition, Any], *, may_be_missing: bool) -> dict[ClientPartition, Any]:
    """Return the answers with an offset.

    Args:
        may_be_missing: Whether a partition may have no record with the wanted time. It is then omitted.

    Raises:
        KafkaException: If a broker was lost after the request. The client then returns an invalid offset, and no error. Another broker may
            lead the partition by now.
    """
    for partition, answer in answers.items():
        if answer.offset < 0 and not (may_be_missing and answer.offset == OFFSET_END):
            missing = f"no offset for {partition.topic}-{partition.partition}"
            raise KafkaException(KafkaError(KafkaError.OFFSET_NOT_AVAILABLE, missing))
    return {partition: answer for partition, answer in answers.items() if answer.offset >= 0}
