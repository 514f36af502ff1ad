"""Ports: the shapes that drivers fill in. Nothing here does anything.

The engine and the Spark runtime are written against these protocols; the drivers (``millstream.drivers.lmdb``, ``rocksdb``,
``memory``, ``kafka``) implement them, and ``millstream.edge`` decides which implementation is used.
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
"""The changes of a batch by byte store, each key at most once."""


class ParkedChanges(NamedTuple):
    """The changes of a batch, parked beside a local copy until the batch is known to be committed.

    Attributes:
        changes: By byte store, each key at most once.
        dropped: Byte stores that are dropped.
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
        """Iterate in key order over ``low <= key < high``; None leaves a side open."""

    def approximate_count(self) -> int:
        """Return the number of keys, without reading them."""


class ByteStores(Protocol):
    """One consistent view of the committed content of a task's byte stores.

    A key-value store is one byte store of the same name. A store that is kept in slices of time is one byte store per slice,
    named by :func:`slice_name`, so that a slice that has expired is dropped as a whole.
    """

    def open(self, name: str) -> ByteReader:
        """Return a byte store; one that does not exist is empty."""


def slice_name(store: str, number: int) -> str:
    """Return the name of the byte store of a slice.

    Example:
        >>> slice_name("counts", 7)
        'counts/7'
    """
    return f"{store}/{number}"


def store_of(byte_store: str) -> str:
    """Return the name of the store that a byte store belongs to: no store's name has a slash."""
    return byte_store.partition("/")[0]


class Version(NamedTuple):
    """The committed state in a local copy.

    Attributes:
        token: The token of the attempt that committed it.
        toward: The token of a later version to which only some changes were written; else empty.
    """

    number: int
    token: str
    toward: str = ""


RESTORING: Final = Version(-1, "restoring")
"""The version of a copy that is being restored from nothing."""


class LocalCopy(Protocol):
    """The local copy of byte stores of one task, kept by one engine.

    It only ever holds committed state (see docs/concepts/state.md). It is used by one batch at a time; a batch ends with
    :meth:`close_view`, after which any process of the host may use it.
    """

    exclusive: bool
    """Whether no other process can have it open from its first use to :meth:`close_view`."""

    def version(self) -> Version | None:
        """Return the version of the content; None for an empty copy."""

    def why_empty(self) -> str:
        """Return why an empty copy is empty, as text for people."""

    def apply(
        self, changes: Mapping[str, Iterable[StoreChange]], version: Version, dropped: Collection[str] = ()
    ) -> None:
        """Drop byte stores, write changes of committed batches, and set their version. No view may be open.

        An engine may need several transactions. An interruption between them leaves the old version on its way to the new
        one, so the copy is not mistaken for either.

        Raises:
            StoreError: If the content cannot be written, for example because the disk is full.
            CopyMovedError: If another process has written a copy that is not exclusive since :meth:`version`.
        """

    def names(self) -> frozenset[str]:
        """Return the names of the existing byte stores."""

    def wipe(self) -> None:
        """Remove everything, before a rebuild from the log."""

    def open_view(self) -> ByteStores:
        """Open one consistent view; :meth:`close_view` ends it.

        Raises:
            CopyMovedError: If another process has written a copy that is not exclusive since :meth:`version`.
        """

    def close_view(self) -> None:
        """Close the view, if one is open, and release what the next batch's process may need.

        Raises:
            StoreError: If the copy takes more memory than allowed, and cannot release it.
            DamagedCopyError: If the copy turned out to be damaged; it is empty now.
        """

    def park(self, version: Version, changes: Changes, dropped: Collection[str] = ()) -> None:
        """Save the changes of an uncommitted batch beside the copy.

        Raises:
            StoreError: If they cannot be written, for example because the disk is full.
        """

    def parked(self, version: Version) -> ParkedChanges | None:
        """Return the parked changes of exactly this version; None if they are missing or damaged."""


OpenLocalCopy = Callable[[str, int, str], LocalCopy]
"""Opens the local copy in a directory, given its memory limit in bytes and the id of the application's run (empty: its own run).

In one process, the same directory gives the same copy.
"""


class OffsetRange(NamedTuple):
    """A planned range of a partition: ``start`` is included, ``end`` is not."""

    topic: str
    partition: int
    start: int
    end: int


class TimedOffset(NamedTuple):
    """A record by its offset and timestamp, ms since the epoch."""

    offset: int
    timestamp_ms: int


class TimeIndex(Protocol):
    """The broker's index of timestamps. Each call is one round trip for any number of partitions."""

    def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, TimedOffset]:
        """Return the first record at or after a time (ms) per partition; partitions without one are omitted."""

    def newest(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, TimedOffset]:
        """Return the record with the largest timestamp per partition; empty partitions are omitted."""


class TopicFacts(NamedTuple):
    """Identifies a topic, also when it is recreated or gets more partitions.

    Attributes:
        id: The broker's id of the topic; empty if the broker has no ids.
        partitions: Number of partitions.
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
        """Return the first offset that the broker still has, per partition."""

    def end_offsets(self, partitions: Mapping[str, int]) -> Offsets:
        """Return the offset after the last readable record, per partition."""

    def offsets_at(self, partitions: Mapping[str, int], timestamp_ms: int) -> Offsets:
        """Return the first offset of a record at or after a time; partitions without one are omitted."""

    def log_end_offsets(self, partitions: Mapping[str, int]) -> Offsets:
        """Return the offset after the last record, including those of open transactions, per partition."""

    def committed_offsets(self, partitions: Mapping[str, int]) -> Offsets:
        """Return the group's committed offsets; partitions without one are omitted."""

    def taken_offsets(self, partitions: Mapping[str, int]) -> Offsets:
        """Return the group's positions: its committed offsets, or how far it has read beyond them."""

    def reset_offsets(self, partitions: Mapping[str, int]) -> Offsets:
        """Return the offsets that a reset has committed for the next start; empty if the group has committed since."""


class Fetcher(Protocol):
    """Reads planned ranges."""

    def connect(self) -> None:
        """Connect, so that the first range does not wait for it."""

    def fetch(self, planned: OffsetRange) -> Iterator[Records]:
        """Read a range in offset order, a few thousand records at a time."""

    def fetch_all(self, ranges: Sequence[OffsetRange]) -> Iterator[tuple[OffsetRange, Iterator[Records]]]:
        """Read ranges one after the other; each is read to its end before the next."""

    def sample_bytes(self, planned: OffsetRange) -> float | None:
        """Return the average size of a few records of a range, bytes of key and value; None if they cannot be read soon."""


class ChangelogReader(Protocol):
    """Reads the internal topics of the application."""

    def extent(self, topic: str, partition: int) -> OffsetRange:
        """Return the current offset range of a partition; empty if it does not exist."""

    def read(self, offsets: OffsetRange) -> Iterator[Records]:
        """Read the records of a range that :meth:`extent` returned."""


class BatchId(NamedTuple):
    """Identifies a micro-batch: its checkpoint, its number there, and the run of the application that planned it.

    A batch that is run again keeps its id. Two copies of a checkpoint plan batches of one number, but in different runs.
    """

    checkpoint: str
    number: int
    run: str = ""


class Sender(Protocol):
    """Sends records at least once."""

    def publish(self, topic: str, records: Records) -> None:
        """Pass records to the client, which sends them in the background.

        Raises:
            ProductionError: If the broker refused a record.
        """

    def flush(self) -> None:
        """Wait until all records that this process has published are acknowledged.

        Raises:
            ProductionError: If the broker refused a record.
        """


class Delivery(Protocol):
    """The exactly-once output of a Spark partition in a micro-batch: ``begin``, any number of ``publish``, ``commit``.

    A delivery that was aborted is repeated from ``begin``.
    """

    def begin(self, batch: BatchId) -> bool:
        """Begin; return False if the batch was delivered before and must not be sent again."""

    def publish(self, topic: str, records: Records) -> None:
        """Pass records to the client.

        Raises:
            ProductionError: If the broker refused a record.
            DeliveryAbortedError: If everything since ``begin`` was aborted and can be repeated.
        """

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Wait until everything is acknowledged.

        Args:
            offsets: Per partition, the offset before which everything has been processed.

        Raises:
            ProductionError: If the broker refused a record.
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
    """Commits what has been processed to Kafka."""

    def commit(
        self,
        offsets: Mapping[TopicPartition, int],
        taken: Mapping[TopicPartition, int] = MappingProxyType({}),
    ) -> None:
        """Commit the group's offsets, and its positions beyond them."""

    def committed_offsets(self, partitions: Mapping[str, int]) -> Offsets:
        """Return the group's committed offsets; partitions without one are omitted."""


PartitionGrouper = Callable[[Mapping[str, int]], Sequence[frozenset[TopicPartition]]]
"""KIP-28's ``PartitionGrouper``: topics of one sub-topology with their partition counts -> partition groups, in the order
of their task numbers."""


Work = Callable[[], bool]
"""A piece of work; called repeatedly until it returns False."""


class Threads(Protocol):
    """The threads of one task (KIP-408)."""

    @property
    def count(self) -> int:
        """The number of threads."""

    def run(self, work: Sequence[Work]) -> tuple[BaseException | None, ...]:
        """Run pieces of work in parallel, each in its own thread, and wait for all of them.

        Args:
            work: At most ``count`` pieces; each is called until it returns False or raises.

        Returns:
            Per piece, the exception that ended its thread; None if it was completed.
        """
