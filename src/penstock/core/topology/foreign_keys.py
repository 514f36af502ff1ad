"""Nodes of a foreign-key join: each left row is joined with the right row whose key it names.

The two rows may be in different partitions, so the join goes through two topics (KIP-213):

    left table -> Subscribe -> [subscriptions, by the right key] -> Subscriptions -+
                                             right table -> Subscribed changes   -+-> [answers, by the left key] -> Resolve -> result

``penstock.core.model.subscriptions`` says what is sent. The result is a table with a store, because the last node has to know
whether there is a result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from penstock.core.model.serdes import Serde
from penstock.core.topology.joins import Joiner, JoinKind
from penstock.core.topology.nodes import Node
from penstock.core.topology.specs import StoreSpec

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
