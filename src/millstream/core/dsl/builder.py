"""StreamsBuilder: the entry point of a DSL program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Unpack, overload

from millstream.core.dsl.global_table import GlobalKTable
from millstream.core.dsl.graph import Graph, Handles
from millstream.core.dsl.handle import WithPythonNames
from millstream.core.dsl.kstream import KStream
from millstream.core.dsl.ktable import KTable
from millstream.core.dsl.naming import Naming, check_explicit_names
from millstream.core.dsl.operators.read_options import GlobalTableReading, StreamReading, TableReading, Topics
from millstream.core.model import serdes
from millstream.core.model.arguments import checked_methods
from millstream.core.model.errors import TopologyError
from millstream.core.model.record import K, V
from millstream.core.model.serdes import Serde
from millstream.core.topology.global_nodes import GlobalSource, GlobalTable
from millstream.core.topology.nodes import (
    OffsetReset,
    TableSource,
    TimestampExtractor,
    source_reading,
)
from millstream.core.topology.processor import Wrap
from millstream.core.topology.stores import StoreLike, StoreOptions, StoreSpec
from millstream.core.topology.topology import Topology


@checked_methods
class StreamsBuilder(WithPythonNames):
    """Builds a topology from streams and tables.

    Args:
        default_key_serde: Serde of keys for which no serde is given or known from upstream (``default.key.serde``).
        default_value_serde: The same for values (``default.value.serde``).
        names: How to name state and internal topics that have no name in the program. ``"stable"``: by their topic and the operations
            on it (``orders-count``); inserted operators do not change these names. ``"numbered"``: by the number of their operator, as in
            Kafka Streams. See "Change a topology" in the documentation.
        null_keys: Records without a key have no partition and are dropped before a repartition. ``"counted"`` counts them as
            dropped; ``"silent"`` does not, as in Kafka Streams.
        wrap: As in :class:`Topology`: ``(name, supplier) -> supplier`` for each processor and value transformer (KIP-1112).

    Raises:
        TopologyError: If ``names`` or ``null_keys`` has another value.

    Source: ``org.apache.kafka.streams.StreamsBuilder``; KIP-28, "High-level Stream DSL".

    Example:
        >>> import millstream as ms
        >>> builder = ms.StreamsBuilder()
        >>> words = builder.stream("lines").flat_map_values(str.split)
        >>> words.group_by(lambda _, word: word).count(store="counts").to_stream().to("counts", value=ms.serdes.int64)
        >>> driver = ms.testing.TopologyTestDriver(builder.build())
        >>> driver.pipe("lines", None, "to be or not to be", 0)
        >>> [(r.key, r.value) for r in driver.read("counts")]
        [('to', 1), ('be', 1), ('or', 1), ('not', 1), ('to', 2), ('be', 2)]
    """

    def __init__(
        self,
        *,
        default_key_serde: Serde[Any] = serdes.string,
        default_value_serde: Serde[Any] = serdes.string,
        names: Naming = "stable",
        null_keys: Literal["counted", "silent"] = "counted",
        wrap: Wrap | None = None,
    ) -> None:
        if null_keys not in ("counted", "silent"):
            raise TopologyError(f"null_keys must be 'counted' or 'silent', not {null_keys!r}")
        self._graph = Graph(
            Handles(KStream, KTable),
            default_key_serde,
            default_value_serde,
            names,
            counts_null_keys=null_keys == "counted",
            wrap=wrap,
        )

    @overload
    def stream(
        self, topic: Topics, *, key: Serde[K], value: Serde[V], **options: Unpack[StreamReading]
    ) -> KStream[K, V]: ...
    @overload
    def stream(
        self, topic: Topics, *, key: Serde[K], value: None = ..., **options: Unpack[StreamReading]
    ) -> KStream[K, Any]: ...
    @overload
    def stream(
        self, topic: Topics, *, key: None = ..., value: Serde[V], **options: Unpack[StreamReading]
    ) -> KStream[Any, V]: ...
    @overload
    def stream(
        self,
        topic: Topics,
        *,
        key: Serde[Any] | None = ...,
        value: Serde[Any] | None = ...,
        **options: Unpack[StreamReading],
    ) -> KStream[Any, Any]: ...
    def stream(
        self,
        topic: Topics,
        *,
        key: Serde[Any] | None = None,
        value: Serde[Any] | None = None,
        timestamp: TimestampExtractor | None = None,
        offset_reset: OffsetReset | None = None,
        fan_out: bool = False,
        name: str | None = None,
    ) -> KStream[Any, Any]:
        """Read topics as one stream of records.

        Args:
            topic: One topic or several, or a regular expression from ``re.compile(...)`` that matches whole topic names. It also matches
                topics that are created later, which are read from their beginning. Deleted topics are no longer read.
            key: Serde of the keys; None uses the builder's default.
            value: Serde of the values; None uses the builder's default.
            timestamp: ``(ConsumerRecord, partition_time_ms) -> ms``; None uses the record's own timestamp.
            offset_reset: Where to begin without committed offsets: ``"earliest"``, ``"latest"``, ``"none"`` (an error), or a timedelta,
                which is how far back to begin. None uses the application's setting.
            fan_out: Whether to read the records of split partitions as well. Without it, an application refuses a topic with fan-out.
            name: Name of the source node.

        Returns:
            The stream. Streams of the same topics, or of equal patterns, share the source of the first one.

        Raises:
            TopologyError: If a name is in use, a pattern has ``fan_out``, or a table, or a stream with other options, reads a topic, too.

        Source: ``StreamsBuilder.stream``; KIP-1106 for the timedelta.

        Example:
            >>> import re
            >>> import millstream as ms
            >>> builder = ms.StreamsBuilder()
            >>> builder.stream(re.compile("orders-.*")).to("orders")
            >>> driver = ms.testing.TopologyTestDriver(builder.build())
            >>> driver.pipe("orders-eu", "k", "v")
            >>> driver.pipe("orders-us", "k", "w")
            >>> [record.value for record in driver.read("orders")]
            ['v', 'w']
        """
        graph = self._graph
        key, value = key or graph.default_key, value or graph.default_value
        node = graph.name("KSTREAM-SOURCE", name)
        source = source_reading(node, topic, (key, value), timestamp, offset_reset, fan_out=fan_out)
        return KStream(graph, graph.read(source), key, value, rekeyed=False)

    @overload
    def table(
        self, topic: str, *, key: Serde[K], value: Serde[V], **options: Unpack[TableReading]
    ) -> KTable[K, V]: ...
    @overload
    def table(
        self, topic: str, *, key: Serde[K], value: None = ..., **options: Unpack[TableReading]
    ) -> KTable[K, Any]: ...
    @overload
    def table(
        self, topic: str, *, key: None = ..., value: Serde[V], **options: Unpack[TableReading]
    ) -> KTable[Any, V]: ...
    @overload
    def table(
        self,
        topic: str,
        *,
        key: Serde[Any] | None = ...,
        value: Serde[Any] | None = ...,
        **options: Unpack[TableReading],
    ) -> KTable[Any, Any]: ...
    def table(
        self,
        topic: str,
        *,
        key: Serde[Any] | None = None,
        value: Serde[Any] | None = None,
        store: StoreLike | None = None,
        timestamp: TimestampExtractor | None = None,
        offset_reset: OffsetReset | None = None,
        fan_out: bool = False,
        name: str | None = None,
    ) -> KTable[Any, Any]:
        """Read a topic as a table with the newest value per key; a null value deletes the key.

        Records without a key are dropped and counted.

        Args:
            topic: The topic.
            key: Serde of the keys; None uses the builder's default.
            value: Serde of the values; None uses the builder's default.
            store: Name of the store of the table, or ``ms.stores.options(..., history_retention=...)`` for a versioned
                table; None uses ``<topic>-table``.
            timestamp: As in :meth:`stream`.
            offset_reset: As in :meth:`stream`.
            fan_out: As in :meth:`stream`.
            name: Name of the node; the source is named ``<name>-source``.

        Returns:
            The table.

        Raises:
            TopologyError: If the topic is read twice or a name is in use.

        Source: ``StreamsBuilder.table``.

        Example:
            >>> import millstream as ms
            >>> builder = ms.StreamsBuilder()
            >>> table = builder.table("towns")
            >>> table.store_name
            'towns-table'
            >>> driver = ms.testing.TopologyTestDriver(builder.build())
            >>> for town in ("Bath", "York"):
            ...     driver.pipe("towns", "ann", town)
            >>> driver.store("towns-table").get("ann").value
            'York'
        """
        graph = self._graph
        key, value = key or graph.default_key, value or graph.default_value
        options, source, node = self._table_names(store, topic, name)
        graph.topology.add(
            source_reading(source, topic, (key, value), timestamp, offset_reset, fan_out=fan_out)
        )
        spec = graph.table_store(options, key, value)
        graph.add(TableSource(node, (source,), spec))
        graph.begin(node, topic if store is None else spec.name, name)
        return KTable(graph, node, key, value)

    @overload
    def global_table(
        self, topic: str, *, key: Serde[K], value: Serde[V], **options: Unpack[GlobalTableReading]
    ) -> GlobalKTable[K, V]: ...
    @overload
    def global_table(
        self, topic: str, *, key: Serde[K], value: None = ..., **options: Unpack[GlobalTableReading]
    ) -> GlobalKTable[K, Any]: ...
    @overload
    def global_table(
        self, topic: str, *, key: None = ..., value: Serde[V], **options: Unpack[GlobalTableReading]
    ) -> GlobalKTable[Any, V]: ...
    @overload
    def global_table(
        self,
        topic: str,
        *,
        key: Serde[Any] | None = ...,
        value: Serde[Any] | None = ...,
        **options: Unpack[GlobalTableReading],
    ) -> GlobalKTable[Any, Any]: ...
    def global_table(
        self,
        topic: str,
        *,
        key: Serde[Any] | None = None,
        value: Serde[Any] | None = None,
        store: StoreLike | None = None,
        timestamp: TimestampExtractor | None = None,
        name: str | None = None,
    ) -> GlobalKTable[Any, Any]:
        """Read all partitions of a topic as a table that every task can read in full.

        Records without a key are dropped and counted; a null value deletes the key.

        Args:
            topic: The topic. It is read from its beginning, and no other stream or table may read it.
            key: Serde of the keys; None uses the builder's default.
            value: Serde of the values; None uses the builder's default.
            store: Name of the store of the table; None uses ``<topic>-table``.
            timestamp: As in :meth:`stream`.
            name: As in :meth:`table`.

        Returns:
            The table.

        Raises:
            TopologyError: If the topic is read twice or a name is in use.

        Source: ``org.apache.kafka.streams.StreamsBuilder.globalTable``.
        """
        graph = self._graph
        key, value = key or graph.default_key, value or graph.default_value
        options, source, node = self._table_names(store, topic, name)
        spec = graph.store(options, key, value)
        graph.topology.add_global_part(
            GlobalSource(source, (), (topic,), key, value, timestamp),
            GlobalTable(node, (source,), spec),
            spec,
        )
        return GlobalKTable(graph, spec)

    def _table_names(
        self, store: StoreLike | None, topic: str, name: str | None
    ) -> tuple[StoreOptions, str, str]:
        """Return the options of a table's store, and the names of its source and its node."""
        graph = self._graph
        options = graph.store_options(store, lambda: graph.names.store(topic), topic, "table", name)
        source = graph.name("KSTREAM-SOURCE", None if name is None else f"{name}-source")
        return options, source, graph.name("KTABLE-SOURCE", name)

    def add_global_store(
        self,
        store: StoreSpec,
        topic: str,
        supplier: Callable[[], Any],
        *,
        key: Serde[Any] | None = None,
        value: Serde[Any] | None = None,
        timestamp: TimestampExtractor | None = None,
        name: str | None = None,
    ) -> StreamsBuilder:
        """Add a store that a processor fills from a topic and that every task can read.

        For an example, see ``Topology.add_global_store``.

        Args:
            store: As in ``Topology.add_global_store``.
            topic: As in ``Topology.add_global_store``.
            supplier: As in ``Topology.add_global_store``.
            key: Serde of the topic's keys; None uses the builder's default.
            value: Serde of the topic's values; None uses the builder's default.
            timestamp: As in :meth:`stream`.
            name: Name of the processor's node; the source is named ``<name>-source``.

        Returns:
            This builder.

        Raises:
            TopologyError: If the topic is read twice, a name is in use, or the store is of another kind.

        Source: ``StreamsBuilder.addGlobalStore``.
        """
        graph = self._graph
        graph.names.reserve(store.name)
        graph.topology.add_global_store(
            store,
            graph.name("KSTREAM-SOURCE", None if name is None else f"{name}-source"),
            topic,
            graph.name("KTABLE-SOURCE", name),
            supplier,
            key=key or graph.default_key,
            value=value or graph.default_value,
            timestamp=timestamp,
        )
        return self

    def add_state_store(self, store: StoreSpec) -> StreamsBuilder:
        """Add a store for processors. ``process(..., stores=[name])`` connects it. For an example, see ``KTable.transform_values``.

        Args:
            store: The store, such as ``ms.stores.key_value(...)``.

        Returns:
            This builder.

        Raises:
            TopologyError: If another store has its name.

        Source: ``StreamsBuilder.addStateStore``.
        """
        self._graph.names.reserve(store.name)
        self._graph.topology.add_store(store)
        return self

    def build(self, *, explicit_names: bool = False) -> Topology:
        """Finish the topology. For an example, see :class:`StreamsBuilder`.

        Args:
            explicit_names: Whether to reject stores and internal topics with generated names. An edit of the program may change a
                generated name, and the state under the old name is then no longer found.

        Returns:
            The topology. Later changes of the builder do not affect it.

        Raises:
            TopologyError: If the topology is invalid, or operators lack names.

        Source: ``StreamsBuilder.build``; KIP-1111 (``ensure.explicit.internal.resource.naming``) for ``explicit_names``.
        """
        self._graph.topology.validate()
        if explicit_names:
            check_explicit_names(self._graph.topology, self._graph.names.generated)
        return self._graph.topology.copy()
