"""Asynchronous nodes: those whose work is done by calls outside the task.

Each keeps its unfinished records in a store of its own (:class:`Carried`), so that they go on after a restart. Nobody else
reads that store; its entries are whole records as Python objects.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from millstream.core.model import serdes
from millstream.core.model.calls import Calls
from millstream.core.model.errors import TopologyError
from millstream.core.model.serdes import Serde
from millstream.core.topology import nodes as n
from millstream.core.topology.stores import StoreOptions, StoreSpec, key_value

MAX_UNACKNOWLEDGED: Final = 10_000
"""How many records a processor that acknowledges has in a task before no more are read; each new processor is given all of them."""
_PARTS: Final = ("-delayed", "-delayed-keys", "-parked")
"""What the names of the stores end with that lie beside a store of unfinished records."""


@dataclass(frozen=True)
class Carried:
    """What keeps the unfinished records of an operator.

    Attributes:
        store: The store, by number of the record.
        delayed: The store of those that wait for a time, by that time.
        delayed_keys: The store that finds those by their keys.
        parked: The store of those of hot keys, by key.
        key: Serde of the records' keys, for dead letters and messages.
        value: Serde of their values, likewise.
    """

    store: StoreSpec
    delayed: StoreSpec
    delayed_keys: StoreSpec
    parked: StoreSpec
    key: Serde[Any]
    value: Serde[Any]

    @property
    def stores(self) -> tuple[StoreSpec, ...]:
        """All of them."""
        return self.store, self.delayed, self.delayed_keys, self.parked

    @property
    def names(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(spec.name for spec in self.stores)


@dataclass(frozen=True)
class Asynchronous(n.Node):
    """Calls a function for each record. Stream to stream.

    Attributes:
        function: The user's; a coroutine function, or a plain one.
        calls: How it is called.
        carried: What keeps unfinished records.
    """

    function: Callable[..., Any]
    calls: Calls
    carried: Carried

    pure: ClassVar[bool] = False

    @property
    def store_names(self) -> tuple[str, ...]:
        """Names of the stores of unfinished records."""
        return self.carried.names

    @property
    def remembered_as(self) -> str:
        """Name of the store of unfinished records."""
        return self.carried.store.name


@dataclass(frozen=True)
class MapValuesAsync(Asynchronous):
    """The result of the call is the new value."""

    with_key: bool = False


@dataclass(frozen=True)
class ForeachAsync(Asynchronous):
    """The call is made for its effect outside; nothing goes on."""


@dataclass(frozen=True)
class ProcessAsync(Asynchronous):
    """The call says what to write and to forward when the record retires.

    Attributes:
        stores: The stores it uses.
    """

    stores: tuple[str, ...] = ()

    @property
    def store_names(self) -> tuple[str, ...]:
        """Names of the stores it uses, and of those of unfinished records."""
        return (*self.stores, *self.carried.names)


@dataclass(frozen=True, kw_only=True)
class UnfinishedProcess(n.Process):
    """Runs a processor whose records may not be finished when ``process`` returns.

    Attributes:
        carried: What keeps unfinished records.
    """

    carried: Carried

    @property
    def store_names(self) -> tuple[str, ...]:
        """Names of the stores connected to the processor, and of those of unfinished records."""
        return (*self.stores, *self.carried.names)

    @property
    def remembered_as(self) -> str:
        """Name of the store of unfinished records."""
        return self.carried.store.name


@dataclass(frozen=True, kw_only=True)
class IssuingProcess(UnfinishedProcess):
    """Runs a processor that issues calls (``context.issue``)."""

    calls: Calls


@dataclass(frozen=True, kw_only=True)
class AcknowledgingProcess(UnfinishedProcess):
    """Runs a processor that does work of its own elsewhere, and says when a record is finished (``context.acknowledge``).

    Attributes:
        most: While so many are unfinished in a task, no more records are read for it.
    """

    most: int


def kept_by(nodes: Iterable[n.Node]) -> dict[str, str]:
    """Return the name of the store of unfinished records of each operator that has one, by the operator's name."""
    keeping = (Asynchronous, UnfinishedProcess)
    return {node.name: node.carried.store.name for node in nodes if isinstance(node, keeping)}


def with_their_parts(renamed: Mapping[str, str], keepers: Collection[str]) -> dict[str, str]:
    """Return new names of stores, with those of what belongs to a store of unfinished records.

    Args:
        renamed: New name per old name.
        keepers: The stores of unfinished records, under their new names.

    Example:
        >>> with_their_parts({"call": "ask", "counts": "sums"}, ["ask"])["call-delayed"]
        'ask-delayed'
    """
    parts = {
        f"{old}{part}": f"{new}{part}" for old, new in renamed.items() if new in keepers for part in _PARTS
    }
    return {**parts, **renamed}


def carried(store: StoreOptions, key: Serde[Any], value: Serde[Any]) -> Carried:
    """Return what keeps the unfinished records of an operator.

    Args:
        store: Name of the store and how it is kept.
        key: Serde of the records' keys.
        value: Serde of their values.
    """

    def kept(part: str, by: Serde[Any]) -> StoreSpec:
        name = f"{store.name}{part}"
        return key_value(
            name,
            by,
            serdes.pickle,
            **store.storage,
        )

    delayed, delayed_keys, parked = (kept(part, serdes.bytes) for part in _PARTS)
    return Carried(kept("", serdes.int64), delayed, delayed_keys, parked, key, value)


def finishing_later(
    node: n.Process,
    calls: Calls | None,
    *,
    acknowledges: bool,
    max_unacknowledged: int,
    key: Serde[Any],
    value: Serde[Any],
) -> n.Process | IssuingProcess | AcknowledgingProcess:
    """Return the node of a processor whose records may not be finished when ``process`` returns; the node itself if they are.

    Args:
        node: The node.
        calls: How it calls; None if it issues no calls.
        acknowledges: Whether it says itself when a record is finished.
        max_unacknowledged: While so many are not, no more are read; 1 or more.
        key: Serde of its records' keys, for dead letters and messages.
        value: Serde of their values, likewise.

    Raises:
        TopologyError: If it is to issue calls and to acknowledge records, or it may not have one record, or has a limit without acknowledging.
    """
    if max_unacknowledged != MAX_UNACKNOWLEDGED and not acknowledges:
        raise TopologyError(
            f"processor {node.name!r}: max_unacknowledged={max_unacknowledged} is for a processor that acknowledges; "
            "give acknowledges=True too"
        )
    if calls is None and not acknowledges:
        return node
    if calls is not None and acknowledges:
        raise TopologyError(
            f"processor {node.name!r}: calls=... and acknowledges=True are two ways to say when a record is finished; leave one out"
        )
    kept = carried(StoreOptions(f"{node.name}-unfinished"), key, value)
    parts = (node.name, node.parents, node.supplier, node.stores)
    if calls is None:
        if max_unacknowledged < 1:
            raise TopologyError(
                f"processor {node.name!r}: with max_unacknowledged={max_unacknowledged} no record would ever be read for it; "
                "give 1 or more"
            )
        return AcknowledgingProcess(*parts, carried=kept, most=max_unacknowledged)
    if calls.batch is not None:
        raise TopologyError(
            f"processor {node.name!r}: batch=... is for functions that every record goes to; a processor issues each call itself"
        )
    return IssuingProcess(*parts, calls=calls, carried=kept)
