"""Errors: every exception that the package raises deliberately.

Each message states what happened, where (topic, partition, offset, stage), who is responsible and what to do next. An error consists
only of its class and message, so it passes without loss from a Python worker through the JVM to the user.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millstream.core.model.record import Records


class MillstreamError(Exception):
    """Base class of all errors of this package.

    Args:
        message: What happened, where, who is responsible and what to do next.

    Source: ``org.apache.kafka.streams.errors.StreamsException``.

    Example:
        >>> import millstream as ms
        >>> try:
        ...     ms.StreamsBuilder().build()
        ... except ms.MillstreamError as error:
        ...     type(error).__name__
        'TopologyError'
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
        self.letter: tuple[str, Records] | None = None
        """The dead letter of the record that stops the application, with its topic, until it has been sent."""


class TopologyError(MillstreamError):
    """The topology is invalid; correct the program that builds it (Kafka Streams: TopologyException)."""


class ArgumentError(TopologyError, TypeError):
    """An argument for building a topology is None or has a wrong type.

    Source: Java's ``NullPointerException`` and ``IllegalArgumentException`` of the DSL.
    """


class SettingsError(MillstreamError):
    """A setting does not exist or has an invalid value (Kafka: ConfigException)."""


class SerdeError(MillstreamError):
    """A key or a value does not fit its serde (Kafka: SerializationException)."""


class UnavailableError(MillstreamError):
    """A serde could not reach its schema registry. The record is not the cause, so no error policy applies."""


class DeserializationError(MillstreamError):
    """The bytes of a record could not be deserialised as a key, a value or a timestamp (stage: deserialize).

    Source: the exceptions that ``DeserializationExceptionHandler`` receives (KIP-161).
    """


class ProcessingError(MillstreamError):
    """A user function or processor raised an exception (stage: process).

    Source: the exceptions that ``ProcessingExceptionHandler`` receives (KIP-1033).
    """


class ProductionError(MillstreamError):
    """A result could not be serialised, or the broker rejected it (stage: produce).

    Source: the exceptions that ``ProductionExceptionHandler`` receives (KIP-210).
    """


class DeliveryAbortedError(ProductionError):
    """A transaction was aborted and has no effect. It is retried, and the error is raised if the retry also fails."""


class FanOutError(MillstreamError):
    """A partition cannot be split or merged, or a record cannot be sent to a split partition."""


class StoreError(MillstreamError):
    """A state store was used incorrectly, or its content cannot be read (Kafka Streams: InvalidStateStoreException)."""


class DamagedCopyError(StoreError):
    """The files of a local copy are damaged; the copy is deleted and rebuilt from the log."""


class CopyMovedError(StoreError):
    """Another attempt of the task has written to the local copy since this attempt read its version."""


class QueryError(StoreError):
    """A query names no method of the store, or an argument does not fit the method (Kafka Streams: UnknownQuery, KIP-796)."""


class TopicNotFoundError(MillstreamError):
    """A topic of the topology does not exist on the broker (Kafka Streams: MissingSourceTopicException)."""


class CoPartitioningError(MillstreamError):
    """Topics whose records reach the same store have different numbers of partitions."""


class BrokerUnavailableError(MillstreamError):
    """No broker responds at the bootstrap servers (Kafka: TimeoutException)."""


class OffsetsLostError(MillstreamError):
    """The broker has deleted records that have not been processed yet (Kafka: OffsetOutOfRangeException)."""


class NoOffsetForPartitionError(MillstreamError):
    """A partition has no committed offset, and its offset reset is "none" (Java: NoOffsetForPartitionException)."""


class TopicRecreatedError(MillstreamError):
    """An input topic was deleted and created again, so its offsets are no longer valid."""


class IncompatibleTopologyError(MillstreamError):
    """The checkpoint belongs to an incompatible topology, which this one cannot continue."""


class ApplicationRunningError(MillstreamError):
    """Another process already runs the application, on any host, or uses its state directory (Kafka Streams: LockException)."""


class OtherCheckpointError(MillstreamError):
    """According to Kafka, another checkpoint delivers for this application, so this one may not, or no longer.

    Source: the cases in which Kafka raises ``ProducerFencedException``.
    """


class ControlError(MillstreamError):
    """A command for a running application failed: it names something that does not exist, or the application does not respond."""


class AsyncWorkerError(MillstreamError):
    """The async worker cannot be reached or started, or rejects a call."""


class SparkRuntimeError(MillstreamError):
    """Spark cannot run the query, for a reason outside the topology."""


class CheckpointError(SparkRuntimeError):
    """The checkpoint is damaged: files are missing, unreadable or inconsistent (Kafka Streams: TaskCorruptedException)."""


def lost_offsets(topic: str, partition: int, wanted: int, first: int) -> OffsetsLostError:
    """Return the error for records that the broker deleted before they were processed.

    Args:
        topic: Name of the topic.
        partition: Number of the partition.
        wanted: Offset of the next record to process.
        first: First offset that the broker still has.
    """
    return OffsetsLostError(
        f"the broker no longer has offset {wanted} of topic {topic!r}, partition {partition}: its first offset is {first}. "
        "Records that were not processed yet have been deleted (retention.ms, retention.bytes or DeleteRecords), or the "
        "topic was recreated. To continue without them, set on_lost_offsets='skip', which continues at the first available offset; to keep records longer, raise the topic's retention"
    )


def shorter_topic(topic: str, partition: int, end: int, wanted: int) -> OffsetsLostError:
    """Return the error for a partition that ends before what was read or planned.

    Args:
        topic: Name of the topic.
        partition: Number of the partition.
        end: End offset of the partition.
        wanted: Offset that was read or planned.
    """
    return OffsetsLostError(
        f"topic {topic!r}, partition {partition} ends at offset {end}, but offsets up to {wanted} have been processed or "
        "planned: the topic has lost its newest records (an unclean leader election, a restored backup), was recreated, "
        "or bootstrap_servers names another cluster. To continue at the current end, set on_lost_offsets='skip'; to "
        "start over, use `millstream reset`"
    )
