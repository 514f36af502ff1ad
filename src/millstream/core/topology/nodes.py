"""Nodes: the building blocks of a topology.

A node defines *what* happens, not how. It is a frozen value with a name and the names of its parents;
``millstream.core.engine.compile`` defines how it runs. There are two kinds of edges: *streams* of records, and *tables* of changes (a
key with its new and its old value). A comment above each group of nodes states its input and output.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar, TypeAlias

from millstream.core.model.errors import TopologyError
from millstream.core.model.record import RecordContext
from millstream.core.model.serdes import Serde
from millstream.core.model.timestamps import ConsumerRecord
from millstream.core.topology.folds import Fold
from millstream.core.topology.stores import StoreSpec

TimestampExtractor = Callable[[ConsumerRecord, int], int]
"""Maps a record and the partition time (ms) to a timestamp (ms). A negative result drops the record (``TimestampExtractor``)."""
OffsetReset: TypeAlias = "str | timedelta"
"""``"earliest"``, ``"latest"``, ``"none"`` (an error), or a duration before now (KIP-1106)."""
TopicNameExtractor = Callable[[Any, Any, RecordContext], str]
"""Maps key, value and context to the topic to which a record is sent (``TopicNameExtractor``)."""
StreamPartitioner = Callable[[str, Any, Any, int], "int | Iterable[int] | None"]
"""Maps topic, key, value and number of partitions to a partition, or to several that each receive the record. None chooses by key; an
empty result drops the record (``StreamPartitioner``, KIP-837)."""


@dataclass(frozen=True)
class Node:
    """Base class of nodes.

    Attributes:
        name: Unique name in the topology.
    """

    name: str
    parents: tuple[str, ...]

    pure: ClassVar[bool] = True
    """Whether the node keeps no state and no schedule, so that it may run before Spark's shuffle."""
    table: ClassVar[bool] = False
    """Whether the output consists of changes instead of records."""
    local_to_key: ClassVar[bool] = False
    """Whether a node that is not pure depends only on the records of one key and the time of the partition, so that key ranges may divide
    it."""
    divisible: ClassVar[bool] = False
    """Whether a start may divide the stores of the node among more key ranges, because each entry belongs to one record key."""

    @property
    def store_names(self) -> tuple[str, ...]:
        """Names of the node's stores: the specifications among its fields, and the names in a field ``stores``."""
        names: list[str] = []
        for attribute, value in vars(self).items():
            if isinstance(value, StoreSpec):
                names.append(value.name)
            elif attribute == "stores":
                names += value
        return tuple(names)

    @property
    def own_stores(self) -> tuple[StoreSpec, ...]:
        """The stores that belong to the node, or to its operator if that has several nodes: the specifications among its fields."""
        return tuple(value for value in vars(self).values() if isinstance(value, StoreSpec))

    @property
    def global_store_names(self) -> tuple[str, ...]:
        return ()

    @property
    def remembered_as(self) -> str:
        """Name under which the node finds its persistent data after a restart: the name of its own store, if it has one."""
        return self.name

    @property
    def joins_null_keys(self) -> bool:
        """Whether the node is a left or outer join of a stream, which has results for records without a key (KIP-962)."""
        return False

    @property
    def closes_idle(self) -> bool:
        """Whether the wall clock advances time while the input is idle, so that the task must know whether it is idle."""
        return False


@dataclass(frozen=True)
class KeyedNode(Node):
    """Base of nodes that are not pure, and that key ranges may divide."""

    pure: ClassVar[bool] = False
    local_to_key: ClassVar[bool] = True


# Sources and sinks.


@dataclass(frozen=True)
class Source(Node):
    """Reads topics (``addSource``).

    Attributes:
        topics: Names of the topics. For a source with a resolved pattern, the existing topics that match.
        timestamp: Returns the timestamp of each record; None uses the record's own timestamp.
        offset_reset: Where to begin without committed offsets: ``"earliest"``, ``"latest"``, ``"none"``, or how far back; None uses
            the application's setting.
        pattern: Matches the whole names of the topics; None for a source with named topics.
        fan_out: Whether it also reads the fan-out topics of split partitions. They follow the named topics as soon as they exist.
    """

    topics: tuple[str, ...]
    key: Serde[Any]
    value: Serde[Any]
    timestamp: TimestampExtractor | None = None
    offset_reset: OffsetReset | None = None
    pattern: re.Pattern[str] | None = None
    fan_out: bool = False


def source_reading(
    name: str,
    topics: str | Sequence[str] | re.Pattern[str],
    serdes: tuple[Serde[Any], Serde[Any]],
    timestamp: TimestampExtractor | None,
    offset_reset: OffsetReset | None,
    *,
    fan_out: bool = False,
) -> Source:
    """Return a source that reads one topic, several topics, or all topics that match a pattern.

    Raises:
        TopologyError: If a source with a pattern would read fan-out topics.
    """
    if isinstance(topics, re.Pattern):
        if fan_out:
            raise TopologyError(
                f"source {name!r} reads the topics that match {topics.pattern!r}, so fan_out=True does not fit: name the topics"
            )
        return Source(name, (), (), *serdes, timestamp, offset_reset, topics)
    named = (topics,) if isinstance(topics, str) else tuple(topics)
    return Source(name, (), named, *serdes, timestamp, offset_reset, fan_out=fan_out)


@dataclass(frozen=True)
class Sink(Node):
    """Sends to a topic, or to a topic chosen by a function (``addSink``).

    Attributes:
        partitioner: Chooses the partition; None chooses by key.
        window_bytes: Number of bytes at the end of a serialised key that do not affect the partition (``WindowedStreamPartitioner``).
        fan_out: Whether partitions of the topic may be split by key range.

    Raises:
        TopologyError: If a function chooses the topics of a sink with ``fan_out``.
    """

    topic: str | TopicNameExtractor
    key: Serde[Any]
    value: Serde[Any]
    partitioner: StreamPartitioner | None = None
    window_bytes: int = 0
    fan_out: bool = False

    def __post_init__(self) -> None:
        if self.fan_out and not isinstance(self.topic, str):
            raise TopologyError(
                f"sink {self.name!r} sends to topics that a function chooses, so fan_out=True does not fit: name the topic"
            )


@dataclass(frozen=True)
class Repartition(Node):
    """Sends records to the partition of their key; the border between two sub-topologies (``repartition``).

    Attributes:
        topic_name: Middle part of the name of the internal topic, ``<application id>-<topic_name>-repartition``.
        partitions: Number of partitions; None takes it from the topics joined with it, or from upstream topics.
        drop_null_keys: Whether records without a key are dropped, unless a left or outer join follows.
        partitioner: Chooses the partition; None chooses by key.
        parts: Names of the filter, the sink and the source that replace it; None derives them from its name.
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
        return self.parts or (f"{self.name}-filter", f"{self.name}-sink", f"{self.name}-source")


# Stream to stream, stateless.


@dataclass(frozen=True)
class Filter(Node):
    """Keeps the records for which the predicate equals ``keep``."""

    predicate: Callable[[Any, Any], object]
    keep: bool = True


@dataclass(frozen=True)
class WithKey(Node):
    """Keeps the records with a key, which determines their partition. ``counted`` counts the others as dropped."""

    counted: bool


@dataclass(frozen=True)
class Map(Node):
    mapper: Callable[[Any, Any], tuple[Any, Any]]


@dataclass(frozen=True)
class MapValues(Node):
    mapper: Callable[..., Any]
    with_key: bool = False


@dataclass(frozen=True)
class SelectKey(Node):
    mapper: Callable[[Any, Any], Any]


@dataclass(frozen=True)
class FlatMap(Node):
    mapper: Callable[[Any, Any], Any]


@dataclass(frozen=True)
class FlatMapValues(Node):
    mapper: Callable[..., Any]
    with_key: bool = False


@dataclass(frozen=True)
class Peek(Node):
    """Calls a function for its side effect; the record is forwarded unchanged."""

    action: Callable[[Any, Any], object]


@dataclass(frozen=True)
class Pass(Node):
    """Forwards records unchanged, where streams merge and where a branch begins."""


@dataclass(frozen=True)
class Branch(Node):
    """Forwards each record to the first branch whose predicate is true.

    Attributes:
        predicates: One per branch, in order; None is always true (the default branch).
    """

    predicates: tuple[Callable[[Any, Any], object] | None, ...]
    routes: tuple[str, ...]


# Stream to stream, by a user-defined processor.


@dataclass(frozen=True)
class Process(Node):
    """Runs a processor (``addProcessor``).

    Attributes:
        key_local: Whether the processor is declared to access only entries with the key of its record.
    """

    supplier: Callable[[], Any]
    stores: tuple[str, ...] = ()
    key_local: bool = field(default=False, kw_only=True)

    pure: ClassVar[bool] = False
    divisible: ClassVar[bool] = True


# Stream to table.


@dataclass(frozen=True)
class Materialised(KeyedNode):
    """Base of nodes that keep their table in a store."""

    store: StoreSpec

    table: ClassVar[bool] = True


@dataclass(frozen=True)
class TableSource(Materialised):
    """Turns a stream into a table with the newest value per key; a null value deletes the key (``KTableSource``)."""

    divisible: ClassVar[bool] = True


@dataclass(frozen=True)
class Aggregate(Materialised):
    """Aggregates a grouped stream per key (``KStreamAggregate``, ``KStreamReduce``).

    Attributes:
        initializer: Creates the first aggregate of a key; None uses the first value (reduce).
        aggregator: Maps key, value and aggregate to the new aggregate; None deletes the key.
        fits: Whether every aggregate is known to fit the store's value serde, as a count does.
        fold: The built-in aggregation, if the aggregator is not a user function.
    """

    initializer: Callable[[], Any] | None
    aggregator: Callable[[Any, Any, Any], Any]
    fits: bool = False
    fold: Fold | None = None

    divisible: ClassVar[bool] = True


@dataclass(frozen=True)
class Cogroup(Materialised):
    """The table of several stream aggregations, which are its parents, in one store (``cogroup``, KIP-150)."""


@dataclass(frozen=True)
class TableAggregate(Materialised):
    """Aggregates a grouped table per key from its changes (``KTableAggregate``, ``KTableReduce``).

    The input is a stream whose values are changes, the output of :class:`GroupTable`.
    """

    initializer: Callable[[], Any] | None
    adder: Callable[[Any, Any, Any], Any]
    subtractor: Callable[[Any, Any, Any], Any]

    divisible: ClassVar[bool] = True


# Table to table.


@dataclass(frozen=True)
class TableFilter(Node):
    """Keeps the rows for which the predicate equals ``keep``; all others become tombstones (``KTableFilter``)."""

    predicate: Callable[[Any, Any], object]
    keep: bool = True

    table: ClassVar[bool] = True


@dataclass(frozen=True)
class TableMapValues(Node):
    """Maps each value to a new value; tombstones are forwarded unchanged (``KTableMapValues``)."""

    mapper: Callable[..., Any]
    with_key: bool = False

    table: ClassVar[bool] = True


@dataclass(frozen=True)
class TableStore(Materialised):
    """Keeps a copy of a derived table in a separate store."""

    divisible: ClassVar[bool] = True


# Table to stream.


@dataclass(frozen=True)
class ToStream(Node):
    """Turns the changes of a table into records; a deleted row is a null value (``KTableToStream``)."""


@dataclass(frozen=True)
class GroupTable(Node):
    """Re-keys the rows of a table; the output is a stream of changes (``KTableRepartitionMap``).

    Attributes:
        key: Serde of the new keys. Keys are the same if their bytes are: ``1 == True`` in Python.
    """

    selector: Callable[[Any, Any], tuple[Any, Any]]
    key: Serde[Any]


@dataclass(frozen=True)
class Late(Node):
    """Forwards the late records of its parent. To stream; not in Kafka Streams."""
