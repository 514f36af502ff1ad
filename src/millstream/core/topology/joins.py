"""Nodes of joins.

A join of two streams, or of two tables, is three nodes: one per side, which looks up its records on the other side, and one
behind both, where their results come together. So a record knows which side it came from, and an input may be joined with
itself. A join of a stream with a table is one node, because only the stream triggers results.

A side names the stores that it reads of the other. That puts both inputs into one sub-topology, whose topics have to be
co-partitioned.

**Foreign keys.** In such a join each left row is joined with the right row whose key it names.

The two rows may be in different partitions, so the join goes through two topics (KIP-213):

    left table -> Subscribe -> [subscriptions, by the right key] -> Subscriptions -+
                                             right table -> Subscribed changes   -+-> [answers, by the left key] -> Resolve -> result

``millstream.core.model.subscriptions`` says what is sent. The result is a table with a store, because the last node has to know
whether there is a result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from millstream.core.model.serdes import Serde
from millstream.core.topology.nodes import Node, TableFilter, TableMapValues
from millstream.core.topology.stores import StoreSpec, VersionedSpec, WindowSpec

Joiner = Callable[[Any, Any, Any], Any]
"""Key, left value and right value to the value of the result."""
JoinKind = Literal["inner", "left", "outer"]
"""Which side's records give a result without a partner: none, the left one's, both."""


class JoinsByKind:
    """What joins of a stream have in common: their kind says whether a record without a key has a result (KIP-962)."""

    kind: JoinKind

    @property
    def joins_null_keys(self) -> bool:
        """Whether records without a key have results."""
        return self.kind != "inner"


@dataclass(frozen=True)
class StreamTableJoin(JoinsByKind, Node):
    """Looks up each record in a table, with versions as of its time (``KStreamKTableJoin``). Stream to stream.

    Attributes:
        other: The node of the table.
        stores: The stores that the table is read from.
        joiner: Makes the results.
        kind: What becomes of records without a row.
    """

    other: str
    stores: tuple[str, ...]
    joiner: Joiner
    kind: JoinKind

    pure: ClassVar[bool] = False

    @property
    def store_names(self) -> tuple[str, ...]:
        """Names of the stores that the table is read from."""
        return self.stores


@dataclass(frozen=True)
class GraceBuffer(Node):
    """Holds records back until stream time has passed them by a grace period, and hands them on in the order of their times.

    It stands in front of a join with a versioned table, so that rows may come late (KIP-923). Stream to stream.

    Attributes:
        store: Holds the records; its serdes are bytes.
        key: Serde of the keys.
        value: Serde of the values.
        grace: How long records wait, ms of stream time.
    """

    store: StoreSpec
    key: Serde[Any]
    value: Serde[Any]
    grace: int

    pure: ClassVar[bool] = False

    @property
    def store_names(self) -> tuple[str, ...]:
        """Name of the store of the records."""
        return (self.store.name,)

    @property
    def remembered_as(self) -> str:
        """Name of the store of the records."""
        return self.store.name


@dataclass(frozen=True)
class TableJoin(Node):
    """One side of a join of two tables by their key (``KTableKTableInnerJoin`` and its like). Table to table.

    Attributes:
        other: The node of the other table.
        stores: The stores that the other table is read from.
        joiner: Makes the results.
        kind: What becomes of rows without a partner.
        left: Whether this is the left side.
    """

    other: str
    stores: tuple[str, ...]
    joiner: Joiner
    kind: JoinKind
    left: bool

    pure: ClassVar[bool] = False
    table: ClassVar[bool] = True

    @property
    def store_names(self) -> tuple[str, ...]:
        """Names of the stores that the other table is read from."""
        return self.stores


@dataclass(frozen=True)
class TableMerge(Node):
    """The result of a join of two tables; its parents are the two sides. Table to table."""

    pure: ClassVar[bool] = False
    table: ClassVar[bool] = True


def stores_of_table(nodes: Mapping[str, Node], table: str) -> tuple[str, ...]:
    """Return the names of the stores that the rows of a table are read from: its own, or those of the tables in front of it."""
    node = nodes[table]
    if isinstance(getattr(node, "store", None), StoreSpec):
        return node.store_names
    if isinstance(node, TableMerge):
        side = nodes[node.parents[0]]
        found = (*stores_of_table(nodes, side.parents[0]), *side.store_names)
    else:
        behind = (store for parent in node.parents for store in stores_of_table(nodes, parent))
        found = (*behind, *node.store_names)
    return tuple(dict.fromkeys(found))


def versions_of_table(nodes: Mapping[str, Node], table: str) -> VersionedSpec | None:
    """Return the store of the versions of a table's rows, which may be that of a table in front of it; None if there is none.

    Results have no versions (KIP-914): a table that was joined, aggregated or put into a store of its own has none.
    """
    node = nodes[table]
    if isinstance(node, (TableFilter, TableMapValues)):
        return versions_of_table(nodes, node.parents[0])
    store = getattr(node, "store", None)
    return store if isinstance(store, VersionedSpec) else None


@dataclass(frozen=True)
class JoinTimes:
    """Which records of two streams meet, and when one has stayed alone. All times are ms.

    A left record of time t meets right records with times from ``t - before`` to ``t + after``. Its window *closes* when
    the stream time of the join exceeds ``t + after + grace``; that of a right record, ``t + before + grace``.

    Attributes:
        before: How much earlier a right record may be.
        after: How much later a right record may be.
        grace: How long after its end a window stays open.
        final: Whether a record that was given a result without a partner joins nothing any more.
        interval: At least so much wall clock lies between two looks for records that stayed alone; 0 looks whenever
            stream time advances.
        prior: Whether a record meets only those that are older than itself (KIP-28, ``joinPrior``).
    """

    before: int
    after: int
    grace: int
    final: bool = True
    interval: int = 0
    prior: bool = False

    def closes(self, *, left: bool) -> int:
        """Return how long after its own time the window of a record of a side closes."""
        return (self.after if left else self.before) + self.grace


@dataclass(frozen=True)
class StreamJoin(JoinsByKind, Node):
    """One side of a join of two streams (``KStreamJoinWindow`` and ``KStreamKStreamJoin``). Stream to stream.

    Attributes:
        mine: The window store of its own records.
        other: The window store of the other side's records.
        unmatched: The store of records that have met none yet; None for an inner join.
        joiner: Makes the results.
        kind: What becomes of records without a partner.
        times: Which records meet.
        left: Whether this is the left side.
    """

    mine: WindowSpec
    other: WindowSpec
    unmatched: StoreSpec | None
    joiner: Joiner
    kind: JoinKind
    times: JoinTimes
    left: bool

    pure: ClassVar[bool] = False

    @property
    def store_names(self) -> tuple[str, ...]:
        """Names of the stores of both sides."""
        specs = (self.mine, self.other) if self.unmatched is None else (self.mine, self.other, self.unmatched)
        return tuple(spec.name for spec in specs)

    @property
    def remembered_as(self) -> str:
        """Name of the left store: both sides have one time."""
        return (self.mine if self.left else self.other).name


@dataclass(frozen=True)
class StreamMerge(Node):
    """The result of a join of two streams; its parents are the two sides. Stream to stream."""

    pure: ClassVar[bool] = False


ForeignKey = Callable[[Any, Any], Any]
"""Key and value of a left row to the key of a right row; None names none."""


@dataclass(frozen=True)
class Subscribe(Node):
    """Sends what each change of the left table asks of the right one (``SubscriptionSendProcessorSupplier``). Table to stream.

    Attributes:
        on: Gives the key of the right row.
        kind: Inner or left.
        key: Serde of the left keys.
        value: Serde of the left values, which their marks are made of.
        other_key: Serde of the right keys.
        ignores_null: Whether an inner join sends nothing for a change from or to a value that names no right row.
    """

    on: ForeignKey
    kind: JoinKind
    key: Serde[Any]
    value: Serde[Any]
    other_key: Serde[Any]
    ignores_null: bool = False

    pure: ClassVar[bool] = False


@dataclass(frozen=True)
class Subscriptions(Node):
    """Keeps the subscriptions and answers them (``SubscriptionReceiveProcessorSupplier``). Stream to stream.

    Attributes:
        store: Holds the subscriptions: closed right key and left key to mark, all of them bytes.
        other: The node of the right table.
        stores: The stores that the right table is read from.
        key: Serde of the left keys.
        other_key: Serde of the right keys.
    """

    store: StoreSpec
    other: str
    stores: tuple[str, ...]
    key: Serde[Any]
    other_key: Serde[Any]

    pure: ClassVar[bool] = False

    @property
    def store_names(self) -> tuple[str, ...]:
        """Names of the store of subscriptions, and of those of the right table."""
        return (self.store.name, *self.stores)


@dataclass(frozen=True)
class SubscribedChanges(Node):
    """Tells all subscribers of a change of a right row (``ForeignTableJoinProcessorSupplier``). Table to stream.

    Attributes:
        store: Holds the subscriptions.
        key: Serde of the left keys.
        other_key: Serde of the right keys.
    """

    store: StoreSpec
    key: Serde[Any]
    other_key: Serde[Any]

    pure: ClassVar[bool] = False

    @property
    def store_names(self) -> tuple[str, ...]:
        """Name of the store of subscriptions."""
        return (self.store.name,)


@dataclass(frozen=True)
class Resolve(Node):
    """Makes results of answers that are not stale (``ResponseJoinProcessorSupplier``). Stream to stream.

    Attributes:
        other: The node of the left table.
        stores: The stores that the left table is read from.
        results: The store of the results.
        value: Serde of the left values.
        joiner: Makes the results.
        kind: Inner or left.
    """

    other: str
    stores: tuple[str, ...]
    results: StoreSpec
    value: Serde[Any]
    joiner: Joiner
    kind: JoinKind

    pure: ClassVar[bool] = False

    @property
    def store_names(self) -> tuple[str, ...]:
        """Names of the stores of the left table, and of that of the results."""
        return (*self.stores, self.results.name)
