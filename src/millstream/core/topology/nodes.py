"""Nodes: what a topology is made of.

A node says *what* happens, never how: it is a frozen value with a name and the names of its parents. How it runs is in
``millstream.core.engine.compile``. Two kinds of edges leave a node: *streams* of records, and *tables* of changes (a key with
its new and its old value); the comment of each group of nodes says which it takes and which it gives.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, TypeAlias

from millstream.core.model.record import ConsumerRecord, RecordContext
from millstream.core.model.serdes import Serde
from millstream.core.topology.folds import Fold
from millstream.core.topology.stores import StoreSpec

TimestampExtractor = Callable[[ConsumerRecord, int], int]
"""Record and partition time (ms) to timestamp (ms); a negative result drops the record (``TimestampExtractor``)."""
OffsetReset: TypeAlias = "str | timedelta"
"""``"earliest"``, ``"latest"``, ``"none"`` (an error), or how far back before now (KIP-1106)."""
TopicNameExtractor = Callable[[Any, Any, RecordContext], str]
"""Key, value and context to the topic a record is sent to (``TopicNameExtractor``)."""
StreamPartitioner = Callable[[str, Any, Any, int], "int | Iterable[int] | None"]
"""Topic, key, value and number of partitions to a partition, or to several that each get the record; None leaves it to the key, and
no partition at all drops the record (``StreamPartitioner``, KIP-837)."""


@dataclass(frozen=True)
class Node:
    """Something records flow through.

    Attributes:
        name: Unique in its topology.
        parents: Names of the nodes whose output comes in.
    """

    name: str
    parents: tuple[str, ...]

    pure: ClassVar[bool] = True
    """Whether the node keeps no state and no schedule, so that it may run before Spark's shuffle."""
    table: ClassVar[bool] = False
    """Whether changes, not records, leave the node."""

    @property
    def store_names(self) -> tuple[str, ...]:
        """Names of the stores the node uses."""
        return ()

    @property
    def global_store_names(self) -> tuple[str, ...]:
        """Names of the global stores that the node is known to read."""
        return ()

    @property
    def remembered_as(self) -> str:
        """Name under which the node finds again what it remembers over restarts: that of its store, if it has one of its own."""
        return self.name

    @property
    def joins_null_keys(self) -> bool:
        """Whether it is a left or outer join of a stream, which gives records without a key a result (KIP-962)."""
        return False

    @property
    def closes_idle(self) -> bool:
        """Whether the wall clock takes over when its input is idle, so that its task must know when that is."""
        return False


# Ends: records come in from topics and leave to topics.


@dataclass(frozen=True)
class Source(Node):
    """Reads topics (``addSource``).

    Attributes:
        topics: Their names; those that exist and match, for a source with a pattern that has been resolved.
        key: Serde of the keys.
        value: Serde of the values.
        timestamp: Gives each record's timestamp; None takes its own.
        offset_reset: Where to begin without committed offsets: ``"earliest"``, ``"latest"``, ``"none"``, or how far back; None is the
            application's setting.
        pattern: Matches the whole names of the topics; None for a source that names them.
    """

    topics: tuple[str, ...]
    key: Serde[Any]
    value: Serde[Any]
    timestamp: TimestampExtractor | None = None
    offset_reset: OffsetReset | None = None
    pattern: re.Pattern[str] | None = None


def source_reading(
    name: str,
    topics: str | Sequence[str] | re.Pattern[str],
    key: Serde[Any],
    value: Serde[Any],
    timestamp: TimestampExtractor | None = None,
    offset_reset: OffsetReset | None = None,
) -> Source:
    """Return a source of one topic, of several, or of those that match a pattern."""
    pattern = topics if isinstance(topics, re.Pattern) else None
    named: tuple[str, ...] = ()
    if not isinstance(topics, re.Pattern):
        named = (topics,) if isinstance(topics, str) else tuple(topics)
    return Source(name, (), named, key, value, timestamp, offset_reset, pattern)


@dataclass(frozen=True)
class Sink(Node):
    """Sends to a topic, or to the topic that a function chooses (``addSink``).

    Attributes:
        topic: The topic, or the function.
        key: Serde of the keys.
        value: Serde of the values.
        partitioner: Chooses the partition; None leaves it to the key.
        window_bytes: How many bytes at the end of a serialised key do not choose its partition (``WindowedStreamPartitioner``).
    """

    topic: str | TopicNameExtractor
    key: Serde[Any]
    value: Serde[Any]
    partitioner: StreamPartitioner | None = None
    window_bytes: int = 0


@dataclass(frozen=True)
class Repartition(Node):
    """Sends records to where their key belongs: the border between two sub-topologies (``repartition``).

    Attributes:
        topic_name: Middle part of the internal topic's name, ``<application id>-<topic_name>-repartition``.
        partitions: Wanted number of partitions; None takes it from what it is joined with or came from.
        drop_null_keys: Whether records without a key end here, unless a left or outer join is behind it.
        count_null_keys: Whether those are counted as dropped.
        partitioner: Chooses the partition; None leaves it to the key.
        parts: Names of the filter, the sink and the source that it becomes; None makes them of its own name.
    """

    topic_name: str
    key: Serde[Any]
    value: Serde[Any]
    partitions: int | None = None
    drop_null_keys: bool = False
    count_null_keys: bool = True
    partitioner: StreamPartitioner | None = None
    parts: tuple[str, str, str] | None = None

    @property
    def part_names(self) -> tuple[str, str, str]:
        """Names of the filter, the sink and the source that it becomes."""
        return self.parts or (f"{self.name}-filter", f"{self.name}-sink", f"{self.name}-source")


# Stream to stream, without state.


@dataclass(frozen=True)
class Filter(Node):
    """Keeps the records whose predicate is ``keep``."""

    predicate: Callable[[Any, Any], object]
    keep: bool = True


@dataclass(frozen=True)
class WithKey(Node):
    """Keeps the records that have a key, which belong to a partition.

    Attributes:
        counted: Whether the others are counted as dropped.
    """

    counted: bool


@dataclass(frozen=True)
class Map(Node):
    """One record to one record, key and value."""

    mapper: Callable[[Any, Any], tuple[Any, Any]]


@dataclass(frozen=True)
class MapValues(Node):
    """One value to one value."""

    mapper: Callable[..., Any]
    with_key: bool = False


@dataclass(frozen=True)
class SelectKey(Node):
    """A new key for each record."""

    mapper: Callable[[Any, Any], Any]


@dataclass(frozen=True)
class FlatMap(Node):
    """One record to any number of records."""

    mapper: Callable[[Any, Any], Any]


@dataclass(frozen=True)
class FlatMapValues(Node):
    """One value to any number of values."""

    mapper: Callable[..., Any]
    with_key: bool = False


@dataclass(frozen=True)
class Peek(Node):
    """A side effect per record; the record goes on unchanged."""

    action: Callable[[Any, Any], object]


@dataclass(frozen=True)
class Pass(Node):
    """Hands records on: where streams merge, and where a branch begins."""


@dataclass(frozen=True)
class Branch(Node):
    """Hands each record to the first branch whose predicate holds.

    Attributes:
        predicates: One per branch, in order; None always holds (the default branch).
        routes: The child node of each branch.
    """

    predicates: tuple[Callable[[Any, Any], object] | None, ...]
    routes: tuple[str, ...]


# Stream to stream, by a processor of the user.


@dataclass(frozen=True)
class Process(Node):
    """Runs a processor (``addProcessor``)."""

    supplier: Callable[[], Any]
    stores: tuple[str, ...] = ()

    pure: ClassVar[bool] = False

    @property
    def store_names(self) -> tuple[str, ...]:
        """Names of the stores connected to the processor."""
        return self.stores


# Stream to table.


@dataclass(frozen=True)
class Materialised(Node):
    """Keeps its table in a store."""

    store: StoreSpec

    pure: ClassVar[bool] = False
    table: ClassVar[bool] = True

    @property
    def store_names(self) -> tuple[str, ...]:
        """Name of the store that holds the table."""
        return (self.store.name,)


@dataclass(frozen=True)
class TableSource(Materialised):
    """The newest value per key becomes a table; a null value deletes (``KTableSource``)."""


@dataclass(frozen=True)
class Aggregate(Materialised):
    """Aggregates a grouped stream per key (``KStreamAggregate``, ``KStreamReduce``).

    Attributes:
        initializer: Makes the first aggregate of a key; None takes the first value itself (reduce).
        aggregator: Key, value and aggregate to the new aggregate; None deletes the key.
        fits: Whether every aggregate is known to fit the store's value serde, as a count does.
        fold: What the aggregator does, if it is no function of the user.
    """

    initializer: Callable[[], Any] | None
    aggregator: Callable[[Any, Any, Any], Any]
    fits: bool = False
    fold: Fold | None = None


@dataclass(frozen=True)
class Cogroup(Materialised):
    """The table that several aggregations of streams keep in one store; they are its parents (``cogroup``, KIP-150)."""


@dataclass(frozen=True)
class TableAggregate(Materialised):
    """Aggregates a grouped table per key from its changes (``KTableAggregate``, ``KTableReduce``).

    Takes a stream whose values are changes, as :class:`GroupTable` gives them.
    """

    initializer: Callable[[], Any] | None
    adder: Callable[[Any, Any, Any], Any]
    subtractor: Callable[[Any, Any, Any], Any]


# Table to table.


@dataclass(frozen=True)
class TableFilter(Node):
    """Keeps the rows whose predicate is ``keep``; the others become tombstones (``KTableFilter``)."""

    predicate: Callable[[Any, Any], object]
    keep: bool = True

    table: ClassVar[bool] = True


@dataclass(frozen=True)
class TableMapValues(Node):
    """One value to one value; tombstones pass unmapped (``KTableMapValues``)."""

    mapper: Callable[..., Any]
    with_key: bool = False

    table: ClassVar[bool] = True


@dataclass(frozen=True)
class TableStore(Materialised):
    """Keeps a copy of a derived table in a store of its own."""


# Table to stream.


@dataclass(frozen=True)
class ToStream(Node):
    """The changes of a table as records; a deleted row is a null value (``KTableToStream``)."""


@dataclass(frozen=True)
class GroupTable(Node):
    """Re-keys the rows of a table; gives a stream of changes (``KTableRepartitionMap``)."""

    selector: Callable[[Any, Any], tuple[Any, Any]]


@dataclass(frozen=True)
class Late(Node):
    """The late records of its parent, which hands it these and nothing else. To stream; not in Kafka Streams."""
