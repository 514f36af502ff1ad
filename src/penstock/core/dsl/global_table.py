"""GlobalKTable: a table that every task sees whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from penstock.core.dsl.graph import Graph
from penstock.core.model.arguments import checked_methods
from penstock.core.model.errors import TopologyError
from penstock.core.topology.global_nodes import GlobalJoin
from penstock.core.topology.joins import Joiner, JoinKind
from penstock.core.topology.stores import StoreSpec

if TYPE_CHECKING:
    from penstock.core.dsl.joinable import JoinableStream

K = TypeVar("K")
V = TypeVar("V")


@checked_methods
class GlobalKTable(Generic[K, V]):
    """The newest value per key of a topic, all partitions of it, for every task. Made by ``StreamsBuilder.global_table``.

    A stream is joined with it on any key, without being repartitioned. Processors read it as the store
    :attr:`store_name`.

    Source: ``org.apache.kafka.streams.kstream.GlobalKTable``.
    """

    def __init__(self, graph: Graph, store: StoreSpec) -> None:
        self._graph = graph
        self._store = store

    @property
    def store_name(self) -> str:
        """Name of the store that holds the table (``queryableStoreName``)."""
        return self._store.name


def join_global(
    stream: JoinableStream[Any, Any],
    table: GlobalKTable[Any, Any],
    selector: Callable[[Any, Any], Any],
    joiner: Joiner,
    kind: JoinKind,
    name: str | None,
) -> str:
    """Add the join of a stream with a global table; give its node.

    Args:
        stream: The stream.
        table: The global table.
        selector: Key and value of a record to the key of a row.
        joiner: Key, value and row to the new value.
        kind: inner, or left: records without a row are kept.
        name: Name of the node; None generates one, ``KSTREAM-LEFTJOIN-...`` for both kinds, as Kafka Streams does.

    Raises:
        TopologyError: If the table was made by another builder.
    """
    graph = stream._graph
    if table._graph is not graph:
        raise TopologyError(
            f"the global table {table.store_name!r} belongs to another StreamsBuilder; make stream and table with the same"
        )
    made = graph.name("KSTREAM-LEFTJOIN", name)
    return graph.add(GlobalJoin(made, (stream._node,), table._store, selector, joiner, kind))
