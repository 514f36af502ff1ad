"""Nodes of joins.

A join of two streams, or of two tables, has three nodes: one per side, which looks up its records on the other side, and one after both
sides, which merges the results. Each result can therefore be attributed to a side, and an input may be joined with itself. A join of a
stream with a table is one node, because only the stream triggers results.

Each side names the stores of the other side that it reads. This puts both inputs into one sub-topology, whose topics must be
co-partitioned.

**Foreign keys.** In a foreign-key join each left row is joined with the right row whose key it references.

The two rows may be in different partitions, so the join uses two topics (KIP-213):

    left table -> Subscribe -> [subscriptions, by the right key] -> Subscriptions -+
                                             right table -> Subscribed changes   -+-> [answers, by the left key] -> Resolve -> result

``millstream.core.model.subscriptions`` defines the messages. The result is a table with a store, because the last node must know
whether a result exists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from millstream.core.model.serdes import Serde
from millstream.core.topology.nodes import KeyedNode, Node, TableFilter, TableMapValues
from millstream.core.topology.stores import StoreSpec, VersionedSpec, WindowSpec

Joiner = Callable[[Any, Any, Any], Any]
"""Maps key, left value and right value to the value of the result."""
JoinKind = Literal["inner", "left", "outer"]
"""The side whose records have a result without a partner: none, the left one, or both."""


def joiner_with_key(joiner: Callable[..., Any], *, with_key: bool) -> Joiner:
    """Return a joiner that takes the key; the given joiner takes it only if ``with_key`` is set."""
    return joiner if with_key else lambda key, left, right: joiner(left, right)


class JoinsByKind:
    """Base of stream joins: the kind defines whether a record without a key has a result (KIP-962)."""

    kind: JoinKind

    @property
    def joins_null_keys(self) -> bool:
        return self.kind != "inner"


@dataclass(frozen=True)
class StreamTableJoin(JoinsByKind, KeyedNode):
    """Joins each record with a row of a table, in a versioned table as of the record's time (``KStreamKTableJoin``). Stream to stream.

    Attributes:
        other: Name of the node of the table.
        joiner: Maps the value and the row to the value of the result; if ``with_key`` is set, it takes the key before them.
        kind: What happens to records without a row.
    """

    other: str
    stores: tuple[str, ...]
    joiner: Callable[..., Any]
    kind: JoinKind
    with_key: bool

    divisible: ClassVar[bool] = True


@dataclass(frozen=True)
class GraceBuffer(KeyedNode):
    """Buffers records until stream time has passed their timestamps by a grace period, and forwards them in timestamp order.

    Placed before a join with a versioned table, so that rows may arrive late (KIP-923). Stream to stream.

    Attributes:
        store: The buffer; its serdes are bytes.
    """

    store: StoreSpec
    key: Serde[Any]
    value: Serde[Any]
    grace: int

    @property
    def remembered_as(self) -> str:
        return self.store.name


@dataclass(frozen=True)
class TableJoin(KeyedNode):
    """One side of a join of two tables by their key (``KTableKTableInnerJoin`` and others). Table to table.

    Attributes:
        kind: What happens to rows without a partner.
    """

    other: str
    stores: tuple[str, ...]
    joiner: Joiner
    kind: JoinKind
    left: bool

    table: ClassVar[bool] = True
    divisible: ClassVar[bool] = True


@dataclass(frozen=True)
class TableMerge(KeyedNode):
    """The result of a join of two tables; its parents are the two sides. Table to table."""

    table: ClassVar[bool] = True


def stores_of_table(nodes: Mapping[str, Node], table: str) -> tuple[str, ...]:
    """Return the stores from which a table is read: its own store, or the stores of the tables from which it is derived."""
    node = nodes[table]
    if isinstance(getattr(node, "store", None), StoreSpec):
        return node.store_names
    if isinstance(node, TableMerge):
        side = nodes[node.parents[0]]
        stores = (*stores_of_table(nodes, side.parents[0]), *side.store_names)
    else:
        upstream = (store for parent in node.parents for store in stores_of_table(nodes, parent))
        stores = (*upstream, *node.store_names)
    return tuple(dict.fromkeys(stores))


def versions_of_table(nodes: Mapping[str, Node], table: str) -> VersionedSpec | None:
    """Return the store with the versions of a table, possibly the store of a table from which it is derived, or None.

    Results have no versions (KIP-914): a table that was joined, aggregated or materialised in another store has none.
    """
    node = nodes[table]
    if isinstance(node, (TableFilter, TableMapValues)):
        return versions_of_table(nodes, node.parents[0])
    store = getattr(node, "store", None)
    return store if isinstance(store, VersionedSpec) else None


@dataclass(frozen=True)
class JoinTimes:
    """The time conditions of a join of two streams, in ms.

    A left record with time t is joined with right records with times from ``t - before`` to ``t + after``. Its window *closes* when
    the stream time of the join exceeds ``t + after + grace``. The window of a right record closes at ``t + before + grace``.

    Attributes:
        final: Whether a record that had a result without a partner is no longer joined.
        interval: Minimum wall-clock time between two checks for unmatched records; 0 checks whenever stream time advances.
        prior: Whether a record is joined only with older records (KIP-28, ``joinPrior``).
    """

    before: int
    after: int
    grace: int
    final: bool = True
    interval: int = 0
    prior: bool = False

    def closes(self, *, left: bool) -> int:
        """Return how long after the time of a record its window closes, ms."""
        return (self.after if left else self.before) + self.grace


@dataclass(frozen=True)
class StreamJoin(JoinsByKind, KeyedNode):
    """One side of a join of two streams (``KStreamJoinWindow`` and ``KStreamKStreamJoin``). Stream to stream.

    Attributes:
        mine: The window store with the records of this side.
        other: The window store with the records of the other side.
        unmatched: The store of records that have no partner yet; None for an inner join.
        kind: What happens to records without a partner.
    """

    mine: WindowSpec
    other: WindowSpec
    unmatched: StoreSpec | None
    joiner: Joiner
    kind: JoinKind
    times: JoinTimes
    left: bool

    @property
    def remembered_as(self) -> str:
        """Name of the left store, because both sides share one stream time."""
        return (self.mine if self.left else self.other).name


@dataclass(frozen=True)
class StreamMerge(KeyedNode):
    """The result of a join of two streams; its parents are the two sides. Stream to stream."""


ForeignKey = Callable[[Any, Any], Any]
"""Maps key and value of a left row to the key of a right row; None references no row."""


@dataclass(frozen=True)
class Subscribe(KeyedNode):
    """Sends the request for each change of the left table to the right one (``SubscriptionSendProcessorSupplier``). Table to stream.

    Attributes:
        value: Serde of the left values, from which marks are computed.
        ignores_null: Whether an inner join sends nothing when the old or the new value of a change references no right row.
    """

    on: ForeignKey
    kind: JoinKind
    key: Serde[Any]
    value: Serde[Any]
    other_key: Serde[Any]
    ignores_null: bool = False


@dataclass(frozen=True)
class Subscriptions(KeyedNode):
    """Stores the subscriptions and answers them (``SubscriptionReceiveProcessorSupplier``). Stream to stream.

    Attributes:
        store: The subscriptions: closed right key and left key to mark, all of them bytes.
        stores: Names of the stores from which the right table is read.
    """

    store: StoreSpec
    other: str
    stores: tuple[str, ...]
    key: Serde[Any]
    other_key: Serde[Any]


@dataclass(frozen=True)
class SubscribedChanges(KeyedNode):
    """Sends a change of a right row to all its subscribers (``ForeignTableJoinProcessorSupplier``). Table to stream."""

    store: StoreSpec
    key: Serde[Any]
    other_key: Serde[Any]


@dataclass(frozen=True)
class Resolve(KeyedNode):
    """Computes results from answers that are not stale (``ResponseJoinProcessorSupplier``). Stream to stream.

    Attributes:
        stores: Names of the stores from which the left table is read.
    """

    other: str
    stores: tuple[str, ...]
    results: StoreSpec
    value: Serde[Any]
    joiner: Joiner
    kind: JoinKind
