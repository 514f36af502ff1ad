"""Asynchronous nodes: operators whose work is done by calls outside the task.

Each operator keeps its unfinished records in separate stores (:class:`Carried`), so that they continue after a restart. Only the
operator reads these stores. Their entries are whole records as Python objects.
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
from millstream.core.topology.stores import KeyValueSpec, StoreOptions, StoreSpec

MAX_UNACKNOWLEDGED: Final = 10_000
"""Default limit of unacknowledged records per task, above which the task reads no more. Each new processor receives all of them again."""
_PARTS: Final = ("-delayed", "-delayed-keys", "-parked")
"""Suffixes of the additional stores that belong to a store of unfinished records."""


@dataclass(frozen=True)
class Carried:
    """The stores for the unfinished records of an operator, and the serdes of these records.

    Attributes:
        store: Unfinished records by number.
        delayed: The delay queue: records that wait until a due time, by that time.
        delayed_keys: Index of the delay queue by key.
        parked: Records of hot keys, by key.
        key: Serde of the record keys, for dead letters and messages.
    """

    store: StoreSpec
    delayed: StoreSpec
    delayed_keys: StoreSpec
    parked: StoreSpec
    key: Serde[Any]
    value: Serde[Any]

    @property
    def stores(self) -> tuple[StoreSpec, ...]:
        return self.store, self.delayed, self.delayed_keys, self.parked

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(spec.name for spec in self.stores)


@dataclass(frozen=True)
class Asynchronous(n.Node):
    """Calls a function, plain or a coroutine function, for each record. Stream to stream.

    Attributes:
        function: The same object in each task, because a process pickles each function object once for its async worker.
    """

    function: Callable[..., Any]
    calls: Calls
    carried: Carried

    pure: ClassVar[bool] = False
    unfinished_kind: ClassVar[str] = "map_values_async or foreach_async"
    """Which operators can continue its unfinished records. Part of the checkpoint."""

    @property
    def store_names(self) -> tuple[str, ...]:
        return self.carried.names

    @property
    def own_stores(self) -> tuple[StoreSpec, ...]:
        return self.carried.stores

    @property
    def remembered_as(self) -> str:
        return self.carried.store.name


@dataclass(frozen=True)
class MapValuesAsync(Asynchronous):
    """Replaces the value with the result of the call."""

    with_key: bool = False

    local_to_key: ClassVar[bool] = True


@dataclass(frozen=True)
class ForeachAsync(Asynchronous):
    """Calls a function for its external effect and forwards nothing."""

    local_to_key: ClassVar[bool] = True


@dataclass(frozen=True)
class ProcessAsync(Asynchronous):
    """Takes from the result of the call what to write and to forward when the record retires."""

    stores: tuple[str, ...] = ()

    unfinished_kind: ClassVar[str] = "process_async"

    @property
    def store_names(self) -> tuple[str, ...]:
        return (*self.stores, *self.carried.names)


@dataclass(frozen=True, kw_only=True)
class UnfinishedProcess(n.Process):
    """Runs a processor whose records may be unfinished when ``process`` returns."""

    carried: Carried

    divisible: ClassVar[bool] = False
    unfinished_kind: ClassVar[str]
    """As of an asynchronous operator."""

    @property
    def store_names(self) -> tuple[str, ...]:
        return (*self.stores, *self.carried.names)

    @property
    def own_stores(self) -> tuple[StoreSpec, ...]:
        return self.carried.stores

    @property
    def remembered_as(self) -> str:
        return self.carried.store.name


@dataclass(frozen=True, kw_only=True)
class IssuingProcess(UnfinishedProcess):
    """Runs a processor that issues calls (``context.issue``)."""

    calls: Calls

    unfinished_kind: ClassVar[str] = "process(calls=...)"


@dataclass(frozen=True, kw_only=True)
class AcknowledgingProcess(UnfinishedProcess):
    """Runs a processor that works outside the task and acknowledges finished records itself (``context.acknowledge``).

    Attributes:
        most: Number of unfinished records in a task above which it reads no more.
    """

    most: int

    unfinished_kind: ClassVar[str] = "process(acknowledges=True)"


_KEEPING: Final = (Asynchronous, UnfinishedProcess)
"""The nodes that keep unfinished records."""


def unfinished_stores(nodes: Iterable[n.Node]) -> dict[str, str]:
    """Return the store of unfinished records by name of the operator, for the operators that have one."""
    return {node.name: node.carried.store.name for node in nodes if isinstance(node, _KEEPING)}


def kinds_of_unfinished(nodes: Iterable[n.Node]) -> dict[str, str]:
    """Return the kind of the operator by name of the store of its unfinished records."""
    return {node.carried.store.name: node.unfinished_kind for node in nodes if isinstance(node, _KEEPING)}


def all_unfinished_stores(nodes: Iterable[n.Node]) -> tuple[str, ...]:
    return tuple(name for node in nodes if isinstance(node, _KEEPING) for name in node.carried.names)


def with_additional_stores(renamed: Mapping[str, str], keepers: Collection[str]) -> dict[str, str]:
    """Return the new names of stores, including the additional stores of unfinished records.

    Args:
        keepers: Stores of unfinished records, by their new names.

    Example:
        >>> with_additional_stores({"call": "ask", "counts": "sums"}, ["ask"])["call-delayed"]
        'ask-delayed'
    """
    parts = {
        f"{old}{part}": f"{new}{part}" for old, new in renamed.items() if new in keepers for part in _PARTS
    }
    return {**parts, **renamed}


def carried(store: StoreOptions, key: Serde[Any], value: Serde[Any]) -> Carried:
    def spec(suffix: str, by: Serde[Any]) -> StoreSpec:
        return KeyValueSpec(name=f"{store.name}{suffix}", key=by, value=serdes.pickle, **store.storage)

    delayed, delayed_keys, parked = (spec(suffix, serdes.bytes) for suffix in _PARTS)
    return Carried(spec("", serdes.int64), delayed, delayed_keys, parked, key, value)


@dataclass(frozen=True)
class Completion:
    """How a processor determines that a record is finished.

    Attributes:
        calls: Options of its calls. A record is finished when its calls have ended. None if it issues no calls.
        acknowledges: Whether it acknowledges finished records itself. If it neither issues calls nor acknowledges, a record is finished
            when ``process`` returns.
        max_unacknowledged: Number of unfinished records above which no more are read, at least 1.
    """

    calls: Calls | None = None
    acknowledges: bool = False
    max_unacknowledged: int = MAX_UNACKNOWLEDGED

    def node(self, process: n.Process, serdes: tuple[Serde[Any], Serde[Any]]) -> n.Process:
        """Return the node for a processor, unchanged if its records are finished when ``process`` returns.

        Args:
            serdes: Serdes of the record keys and values, for dead letters and messages.

        Raises:
            TopologyError: If it both issues calls and acknowledges records, or the limit is below 1 or set without ``acknowledges``.
        """
        self._check(process.name)
        if self.calls is None and not self.acknowledges:
            return process
        unfinished = carried(StoreOptions(f"{process.name}-unfinished"), *serdes)
        parts = (process.name, process.parents, process.supplier, process.stores)
        if self.calls is None:
            return AcknowledgingProcess(*parts, carried=unfinished, most=self.max_unacknowledged)
        return IssuingProcess(*parts, calls=self.calls, carried=unfinished)

    def _check(self, name: str) -> None:
        most = self.max_unacknowledged
        if most != MAX_UNACKNOWLEDGED and not self.acknowledges:
            raise TopologyError(f"processor {name!r}: max_unacknowledged={most} needs acknowledges=True")
        if self.calls is not None and self.acknowledges:
            raise TopologyError(
                f"processor {name!r}: calls=... and acknowledges=True both define when a record is finished; leave one of "
                "them out"
            )
        if most < 1:
            raise TopologyError(
                f"processor {name!r}: max_unacknowledged={most} would mean that no record is ever read for it; set at "
                "least 1"
            )
        if self.calls is not None and self.calls.batch is not None:
            raise TopologyError(
                f"processor {name!r}: batch=... is not available, because a processor issues each call itself"
            )
