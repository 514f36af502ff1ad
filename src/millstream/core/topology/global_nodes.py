"""Global nodes: the parts of a topology whose state is visible to every task.

A *global store* has the same content for all tasks of an application: the content of one topic, with all its partitions. A *global
part* is the pair of nodes that fills it: a source, followed by the node that maintains the store. A global part has no output: it forms
no tasks, sends nothing, and its topic is not an input of another node. Other nodes only read the store, so reading it is not an edge of
the graph and does not join sub-topologies (Kafka Streams: ``addGlobalStore``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from millstream.core.topology.join_nodes import Joiner, JoinKind, JoinsByKind
from millstream.core.topology.nodes import KeyedNode, Process, Source, TableSource
from millstream.core.topology.stores import StoreSpec


@dataclass(frozen=True)
class GlobalSource(Source):
    """Reads the topic of a global store from its beginning."""

    pure: ClassVar[bool] = False


@dataclass(frozen=True)
class GlobalTable(TableSource):
    """Keeps the newest value per key of a global topic; a null value deletes the key (``KTableSource`` of a ``GlobalKTable``)."""


@dataclass(frozen=True)
class GlobalProcess(Process):
    """Runs the processor that maintains a global store (``addGlobalStore``)."""


@dataclass(frozen=True)
class GlobalJoin(JoinsByKind, KeyedNode):
    """Joins each record with a row of a global table. A function returns the key of the row (``KStreamGlobalKTableJoin``).

    Not pure, although it keeps no state: it reads a store, and no stores are available before Spark's shuffle.

    Attributes:
        selector: Maps key and value of the record to the key of the row.
        kind: inner, or left: a record without a row is joined with None instead of being dropped.
    """

    store: StoreSpec
    selector: Callable[[Any, Any], Any]
    joiner: Joiner
    kind: JoinKind

    @property
    def store_names(self) -> tuple[str, ...]:
        return ()

    @property
    def global_store_names(self) -> tuple[str, ...]:
        return (self.store.name,)
