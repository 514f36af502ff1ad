"""Errors: every exception the package raises on purpose.

Each message says what happened, where (topic, partition, offset, stage), whose fault it is and what to do next. An error
is fully described by its class and its message, so that it can cross from a Python worker through the JVM to the user
without losing anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millstream.core.model.record import Records


class MillstreamError(Exception):
    """Base class of every error of this package.

    Args:
        message: What happened, where, whose fault it is and what to do next.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
        self.letter: tuple[str, Records] | None = None
        """The dead letter of the record that stops the application, with its topic, as long as nobody has sent it."""


class TopologyError(MillstreamError):
    """The topology is not valid; the program that builds it has to change (Kafka Streams: TopologyException)."""


class ArgumentError(TopologyError, TypeError):
    """What builds a topology was given None, or an object of a wrong type, where that means nothing."""


class SettingsError(MillstreamError):
    """A setting does not exist or has an impossible value."""


class SerdeError(MillstreamError):
    """A key or a value does not fit the serde that it was given to."""


class DeserializationError(MillstreamError):
    """The bytes of a record could not be turned into a key, a value or a timestamp (stage: deserialize)."""


class ProcessingError(MillstreamError):
    """A function or a processor of the user raised (stage: process)."""


class ProductionError(MillstreamError):
    """A result could not be serialised or was refused by the broker (stage: produce)."""


class DeliveryAbortedError(ProductionError):
    """A transaction was aborted, so that nothing of it counts; it is repeated, and fails when that does not help."""


class StoreError(MillstreamError):
    """A state store was used in a way it does not allow, or its content cannot be read."""


class DamagedCopyError(StoreError):
    """The files of a local copy are not as they were written; the copy is thrown away and rebuilt from the log."""


class CopyMovedError(StoreError):
    """Another attempt of the task has written the local copy since this one looked at its version."""


class TopicNotFoundError(MillstreamError):
    """A topic of the topology does not exist on the broker."""


class CoPartitioningError(MillstreamError):
    """Topics whose records meet in one store have different numbers of partitions."""


class BrokerUnavailableError(MillstreamError):
    """No broker answers at the bootstrap servers."""


class OffsetsLostError(MillstreamError):
    """The broker no longer has offsets that have not been processed yet."""


class NoOffsetForPartitionError(MillstreamError):
    """A partition has no committed offset to begin at, and its offset reset is "none" (Java: NoOffsetForPartitionException)."""


class TopicRecreatedError(MillstreamError):
    """A topic that is read was deleted and created again, so its offsets no longer mean what they meant."""


class IncompatibleTopologyError(MillstreamError):
    """The checkpoint belongs to a topology that cannot be continued by this one."""


class ApplicationRunningError(MillstreamError):
    """The application is already at work on this state directory, so nobody else may start or change it."""


class OtherCheckpointError(MillstreamError):
    """Kafka says that another checkpoint delivers as this application, so this one may not, or may no longer."""


class ControlError(MillstreamError):
    """An order to a running application cannot be carried out: it names what is not there, or nobody hears it."""


class StationError(MillstreamError):
    """The station that makes calls to the outside world cannot be reached or started, or does not take what it was given."""


class SparkRuntimeError(MillstreamError):
    """Spark cannot run the query, for a reason outside the topology."""


class CheckpointError(SparkRuntimeError):
    """The checkpoint is damaged: files of it are missing, cannot be read, or do not fit together."""
