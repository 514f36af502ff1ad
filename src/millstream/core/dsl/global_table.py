"""GlobalKTable: a table that every task can read in full."""

from __future__ import annotations

from typing import ClassVar, Generic

from millstream.core.dsl.graph import Graph
from millstream.core.dsl.handle import WithPythonNames
from millstream.core.model.arguments import checked_methods
from millstream.core.model.record import K, V
from millstream.core.topology.stores import StoreSpec


@checked_methods
class GlobalKTable(WithPythonNames, Generic[K, V]):
    """The newest value per key of all partitions of a topic, available to every task. Returned by ``StreamsBuilder.global_table``.

    A stream can be joined with it by any key, without a repartition. Processors read it as the store :attr:`store_name`.

    Source: ``org.apache.kafka.streams.kstream.GlobalKTable``.
    """

    advice_if_refused: ClassVar[str] = (
        "; only a stream can be joined with a global table: join table.to_stream() with it, or read its topic with table()"
    )

    def __init__(self, graph: Graph, store: StoreSpec) -> None:
        self._graph = graph
        self._store = store

    @property
    def store_name(self) -> str:
        """Name of the store of the table (``queryableStoreName``).

        Source: ``GlobalKTable.queryableStoreName``.
        """
        return self._store.name
