"""Global nodes: the parts of a topology whose state every task sees.

A *global store* holds the same content for all tasks of an application: that of one topic, all partitions of it. A
*global part* is the pair of nodes that fills it: a source, and behind it the node that maintains the store. Nothing comes
out of a global part: it makes no tasks, sends nothing, and its topic is not an input of anybody. Nodes elsewhere only read
the store, so reading it is no edge of the graph and brings nobody into one sub-topology (Kafka Streams:
``addGlobalStore``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from millstream.core.topology.joins import Joiner, JoinKind, JoinsByKind
from millstream.core.topology.nodes import Node, Process, Source, TableSource
from millstream.core.topology.stores import StoreSpec


@dataclass(frozen=True)
class GlobalSource(Source):
    """Reads the topic of a global store from its beginning."""

    pure: ClassVar[bool] = False


@dataclass(frozen=True)
class GlobalTable(TableSource):
    """Keeps the newest value per key of a global topic; a null value deletes (``KTableSource`` of a ``GlobalKTable``)."""


@dataclass(frozen=True)
class GlobalProcess(Process):
    """Runs the processor that maintains a global store (``addGlobalStore``)."""


@dataclass(frozen=True)
class GlobalJoin(JoinsByKind, Node):
    """Joins each record with the row of a global table that a function names (``KStreamGlobalKTableJoin``).

    Not pure, although it keeps nothing: it reads a store, and before Spark's shuffle there are none.

    Attributes:
        store: The store of the global table.
        selector: Key and value of the record to the key of the row.
        joiner: Key, value and row to the new value.
        kind: inner, or left: a record without a row is joined with None instead of being left out.
    """

    store: StoreSpec
    selector: Callable[[Any, Any], Any]
    joiner: Joiner
    kind: JoinKind

    pure: ClassVar[bool] = False

    @property
    def global_store_names(self) -> tuple[str, ...]:
        """Name of the store that is read."""
        return (self.store.name,)
