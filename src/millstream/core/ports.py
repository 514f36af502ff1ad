"""Ports: the protocols that drivers implement.

The engine and the Spark runtime depend only on these protocols. The drivers (``millstream.drivers.lmdb``, ``rocksdb``, ``memory``,
``kafka``) implement them, and ``millstream.edge`` chooses the implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from millstream.core.model.ids import TopicPartition
from millstream.core.model.positions import Offsets
from millstream.core.model.record import Records

StoreChange = tuple[bytes, bytes | None]
"""A serialised key and its new serialised value; None deletes the key."""


Changes = Mapping[str, Sequence[StoreChange]]
"""The changes of a micro-batch by byte store, at most one per key."""


Segments = Mapping[str, Sequence[bytes]]
"""The changes of a micro-batch by byte store, encoded as segments (``millstream.drivers.segments``) with different keys."""


class ParkedChanges(NamedTuple):
    """The changes of a micro-batch, parked beside a local copy until the micro-batch is known to be committed.

    Attributes:
        changes: Changes by byte store, at most one per key.
    """

    changes: Changes
    dropped: Collection[str]


class ByteReader(Protocol):
    """The committed content of one byte store in one task, ordered by serialised key."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None."""

    def scan(
        self, low: bytes | None, high: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Iterate in key order over ``low <= key < high``; None means unbounded."""

    def approximate_count(self) -> int:
        """Return the number of keys, without reading them."""


class ByteStores(Protocol):
    """A consistent view of the committed content of a task's byte stores.

    A key-value store is one byte store of the same name. A store with time slices is one byte store per slice, named by :func:`slice_name`,
    so that an expired slice is dropped as a whole.
    """

    def open(self, name: str) -> ByteReader:
        """Return a byte store. A byte store that does not exist is empty."""


def slice_name(store: str, number: int) -> str:
    """Return the name of the byte store of a slice.

    Example:
        >>> slice_name("counts", 7)
        'counts/7'
    """
    return f"{store}/{number}"


def store_of(byte_store: str) -> str:
    """Return the name of the store to which a byte store belongs. Store names contain no slash."""
    return byte_store.partition("/")[0]


def renamed(byte_store: str, names: Mapping[str, str]) -> str:
    """Return the name of a byte store after its store was renamed; ``names`` maps old names of stores to new ones."""
    store, slash, number = byte_store.partition("/")
    return f"{names.get(store, store)}{slash}{number}"


class Version(NamedTuple):
    """The version of the committed state in a local copy.

    Attributes:
        token: The token of the attempt that committed it.
        toward: The token of a later version of which only some changes were written, otherwise empty.
    """

    number: int
    token: str
    toward: str = ""


RESTORING: Final = Version(-1, "restoring")
"""The version of a copy that is being restored from scratch."""


class LocalCopy(Protocol):
    """The local copy of the byte stores of one task in one store engine.

    It contains only committed state (see docs/concepts/state.md). One micro-batch uses it at a time. A micro-batch ends with
    :meth:`close_view`, after which any process of the host may use the copy.
    """

    exclusive: bool
    """Whether no other process can open it from its first use until :meth:`close_view`."""

    def version(self) -> Version | None:
        """Return the version of the content, or None for an empty copy."""

    def why_empty(self) -> str:
        """Return why an empty copy is empty, as text for users."""

    def apply(
        self, changes: Mapping[str, Iterable[StoreChange]], version: Version, dropped: Collection[str] = ()
    ) -> None:
        """Drop byte stores, write changes of committed micro-batches, and set their version. No view may be open.

        An engine may need several transactions. If they are interrupted, the version shows the old version in transition to the new one, so
        the copy is mistaken for neither.

        Raises:
            StoreError: If the content cannot be written, for example because the disk is full.
            CopyMovedError: If another process has written a copy that is not exclusive since :meth:`version`.
        """

    def names(self) -> frozenset[str]:
        """Return the names of the existing byte stores."""

    def wipe(self) -> None:
        """Remove all content, before a rebuild from the log."""

    def open_view(self) -> ByteStores:
        """Open a consistent view, which :meth:`close_view` ends.

        Raises:
            CopyMovedError: If another process has written a copy that is not exclusive since :meth:`version`.
        """

    def close_view(self) -> None:
        """Close the view, if one is open, and release what the process of the next micro-batch may need.

        Raises:
            StoreError: If the copy uses more memory than allowed and cannot release it.
            DamagedCopyError: If the copy turned out to be damaged; it is then empty.
        """

    def park(self, version: Version, changes: Segments, dropped: Collection[str] = ()) -> None:
        """Save the changes of an uncommitted micro-batch beside the copy.

        Raises:
            StoreError: If the changes cannot be written, for example because the disk is full.
        """

    def parked(self, version: Version) -> ParkedChanges | None:
        """Return the parked changes of exactly this version, or None if they are missing or damaged."""


DEFAULT_MEMORY_BYTES: Final = 512 << 20
"""Default memory limit for the local copies of a Python worker, in bytes."""

OpenLocalCopy = Callable[[str, int, str], LocalCopy]
"""Opens the local copy in a directory, given its memory limit in bytes and the id of the application's run (empty: its own run).

In one process, the same directory returns the same copy.
"""


class OffsetRange(NamedTuple):
    """A planned range of a partition. ``start`` is inclusive, ``end`` is exclusive."""

    topic: str
    partition: int
    start: int
    end: int


class TimedOffset(NamedTuple):
    """The offset and timestamp of a record, ms since the epoch."""

    offset: int
    timestamp_ms: int


class TimeIndex(Protocol):
    """The broker's index of timestamps. Each call is one round trip, for any number of partitions."""

    def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, TimedOffset]:
        """Return the first record at or after a time (ms) per partition. Partitions without such a record are omitted."""

    def newest(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, TimedOffset]:
        """Return the record with the largest timestamp per partition. Empty partitions are omitted."""


class TopicFacts(NamedTuple):
    """Facts that reveal whether a topic was recreated or has more partitions.

    Attributes:
        id: Topic id, assigned by the broker; empty if the broker has no topic ids.
    """

    id: str
    partitions: int


class TopicReader(TimeIndex, Protocol):
    """The planner's requests to the broker."""

    def partition_counts(self, topics: Iterable[str]) -> dict[str, int]:
        """Return the number of partitions of each existing topic."""

    def topic_facts(self, topics: Iterable[str]) -> dict[str, TopicFacts]:
        """Return id and number of partitions of each existing topic."""

    def begin_offsets(self, partitions: Mapping[str, int]) -> Offsets:
        """Return the first available offset per partition."""

    def end_offsets(self, partitions: Mapping[str, int]) -> Offsets:
        """Return the offset after the last readable record, per partition."""

    def offsets_at(self, partitions: Mapping[str, int], timestamp_ms: int) -> Offsets:
        """Return the first offset of a record at or after a time. Partitions without such a record are omitted."""

    def log_end_offsets(self, partitions: Mapping[str, int]) -> Offsets:
        """Return the offset after the last record per partition, including records of open transactions."""

    def committed_offsets(self, partitions: Mapping[str, int]) -> Offsets:
        """Return the group's committed offsets. Partitions without one are omitted."""

    def taken_offsets(self, partitions: Mapping[str, int]) -> Offsets:
        """Return the group's positions: its committed offsets, or the offsets that it has read beyond them."""

    def reset_offsets(self, partitions: Mapping[str, int]) -> Offsets:
        """Return the offsets that a reset has committed for the next start; empty if the group has committed since then."""


class Fetcher(Protocol):
    """Reads planned ranges."""

    def connect(self) -> None:
        """Connect in advance, so that the first range does not wait for the connection."""

    def fetch(self, planned: OffsetRange) -> Iterator[Records]:
        """Read a range in offset order, a few thousand records at a time."""

    def fetch_all(self, ranges: Sequence[OffsetRange]) -> Iterator[tuple[OffsetRange, Iterator[Records]]]:
        """Read ranges one after the other. Each range must be read to its end before the next."""

    def sample_bytes(self, planned: OffsetRange) -> float | None:
        """Return the average size of a few records of a range, bytes of key and value; None if they cannot be read soon."""


class ChangelogReader(Protocol):
    """Reads the internal topics of the application."""

    def extent(self, topic: str, partition: int) -> OffsetRange:
        """Return the current offset range of a partition. A partition that does not exist has an empty range."""

    def read(self, offsets: OffsetRange) -> Iterator[Records]:
        """Read the records of a range that :meth:`extent` returned."""


class BatchId(NamedTuple):
    """Identifies a micro-batch: its checkpoint, its number there, and the run of the application that planned it.

    A micro-batch that is run again keeps its id. Two copies of a checkpoint plan micro-batches of the same number, but in different runs.
    """

    checkpoint: str
    number: int
    run: str = ""


class Sender(Protocol):
    """Sends records at least once."""

    def publish(self, topic: str, records: Records) -> None:
        """Pass records to the client, which sends them in the background.

        Raises:
            ProductionError: If the broker rejected a record.
        """

    def flush(self) -> None:
        """Wait until all records that this process has published are acknowledged.

        Raises:
            ProductionError: If the broker rejected a record.
        """


class Delivery(Protocol):
    """The exactly-once output of a Spark partition in a micro-batch: ``begin``, any number of ``publish``, ``commit``.

    An aborted delivery is repeated from ``begin``.
    """

    def begin(self, batch: BatchId) -> bool:
        """Begin; return False if the micro-batch has already been delivered and must not be sent again."""

    def publish(self, topic: str, records: Records) -> None:
        """Pass records to the client.

        Raises:
            DeliveryAbortedError: If everything since ``begin`` was aborted and can be repeated.
        """

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Wait until all records are acknowledged.

        Args:
            offsets: Per partition, the offset before which everything has been processed.

        Raises:
            ProductionError: If the broker rejected a record.
            DeliveryAbortedError: If everything since ``begin`` was aborted and can be repeated, or the outcome is unknown until
                the next ``begin``.
        """

    def abort(self) -> None:
        """Abort as far as possible; never raises."""


class Publisher(Protocol):
    """Sends records exactly once."""

    def delivery(self, partition: int) -> Delivery:
        """Return the delivery of a Spark partition."""


class OffsetCommitter(Protocol):
    """Commits processed offsets to Kafka."""

    def commit(
        self,
        offsets: Mapping[TopicPartition, int],
        taken: Mapping[TopicPartition, int] = MappingProxyType({}),
    ) -> None:
        """Commit the group's offsets, and its positions beyond them."""

    def committed_offsets(self, partitions: Mapping[str, int]) -> Offsets:
        """Return the group's committed offsets. Partitions without one are omitted."""

    def renew(self, partitions: Mapping[str, int]) -> None:
        """Commit the group's committed offsets again, with their metadata."""


PartitionGrouper = Callable[[Mapping[str, int]], Sequence[frozenset[TopicPartition]]]
"""``PartitionGrouper`` of KIP-28: maps the topics of one sub-topology, with their partition counts, to partition groups, in order of
their task numbers."""


Work = Callable[[], bool]
"""A piece of work, called repeatedly until it returns False."""


class Threads(Protocol):
    """The threads of one task (KIP-408)."""

    @property
    def count(self) -> int:
        """The number of threads."""

    def run(self, work: Sequence[Work]) -> tuple[BaseException | None, ...]:
        """Run pieces of work in parallel, each in its own thread, and wait for all of them.

        Args:
            work: At most ``count`` pieces. Each is called until it returns False or raises.

        Returns:
            Per piece, the exception that ended its thread, or None if it was completed.
        """
