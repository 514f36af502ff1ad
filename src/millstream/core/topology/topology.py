"""Topology: the graph that a program builds, checked while it is built.

The low-level API (``add_source``, ``add_processor``, ``add_sink``, ``add_state_store``, ``connect``) corresponds to the
``TopologyBuilder`` of KIP-28. The DSL appends nodes to the same graph. Building a topology never accesses a broker, Spark or the disk.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from millstream.core.model.arguments import checked_methods
from millstream.core.model.calls import Calls
from millstream.core.model.errors import TopologyError
from millstream.core.model.serdes import Serde
from millstream.core.model.serdes import string as _string
from millstream.core.topology import describe as _describe
from millstream.core.topology import drawing as _drawing
from millstream.core.topology.async_nodes import MAX_UNACKNOWLEDGED, Completion
from millstream.core.topology.checks import check_complete, check_kept, checked_supplier, existing_names
from millstream.core.topology.global_nodes import GlobalProcess, GlobalSource
from millstream.core.topology.node_graph import NodeGraph
from millstream.core.topology.nodes import (
    OffsetReset,
    Process,
    Sink,
    StreamPartitioner,
    TimestampExtractor,
    TopicNameExtractor,
    source_reading,
)
from millstream.core.topology.patterns import resolved
from millstream.core.topology.plan import Plan
from millstream.core.topology.processor import KeepStore, Wrap
from millstream.core.topology.split import split
from millstream.core.topology.stores import StoreSpec


@checked_methods
class Topology(NodeGraph):
    """A graph of sources, processors, stores and sinks.

    Methods that change the graph return it, so that calls can be chained. Each method raises ``ArgumentError`` if an argument has a
    wrong type.

    Args:
        wrap: ``(name, supplier) -> supplier``, called for each processor and value transformer that is added. The returned supplier
            replaces the original one, for example to add behaviour to all processors. None changes nothing. Like any supplier, it may
            provide stores in an attribute ``stores``; the stores of the wrapped supplier are kept. A wrapped processor must schedule
            punctuations in ``init``.

    Source: KIP-28, "API Design" (``TopologyBuilder``); the methods of ``org.apache.kafka.streams.Topology``; KIP-1112 for ``wrap``.

    Example:
        >>> import millstream as ms
        >>> class Shout(ms.Processor):
        ...     def process(self, record):
        ...         self.context.forward(record.with_value(record.value.upper()))
        >>> topology = (
        ...     ms.Topology()
        ...     .add_source("in", "quiet")
        ...     .add_processor("shout", Shout, parents=["in"])
        ...     .add_sink("out", "loud", parents=["shout"])
        ... )
        >>> print(topology.describe())
        Topologies:
           Sub-topology: 0
            Source: in (topics: [quiet])
              --> shout
            Processor: shout (stores: [])
              --> out
              <-- in
            Sink: out (topic: loud)
              <-- shout
    """

    def __init__(self, *, wrap: Wrap | None = None) -> None:
        super().__init__(wrap=wrap)

    def copy(self) -> Topology:
        """Return an independent copy with the same nodes and stores."""
        copy = Topology(wrap=self._wrap)
        copy._nodes, copy._stores = dict(self._nodes), dict(self._stores)
        copy._global_nodes = set(self._global_nodes)
        return copy

    def add_source(
        self,
        name: str,
        topics: str | Sequence[str] | re.Pattern[str],
        *,
        key: Serde[Any] = _string,
        value: Serde[Any] = _string,
        timestamp: TimestampExtractor | None = None,
        offset_reset: OffsetReset | None = None,
        fan_out: bool = False,
    ) -> Topology:
        """Add a node that reads topics.

        Args:
            name: Unique name of the node.
            topics: One topic, several topics, or a regular expression that matches whole topic names, including topics that are created
                later. A topic can have only one source.
            key: Serde of the keys.
            value: Serde of the values.
            timestamp: Returns the timestamp of each record in ms; None uses the record's own timestamp.
            offset_reset: Where to begin without committed offsets: ``"earliest"``, ``"latest"``, ``"none"`` (an error), or a
                timedelta, which is how far back to begin. None uses the application's setting ``auto_offset_reset``.
            fan_out: Whether to read the records of split partitions as well; see :meth:`StreamsBuilder.stream`.

        Raises:
            TopologyError: If the name or a topic is in use, or an argument is invalid.
        """
        return self.add(source_reading(name, topics, (key, value), timestamp, offset_reset, fan_out=fan_out))

    def add_processor(
        self,
        name: str,
        supplier: Callable[[], Any],
        parents: str | Sequence[str],
        *,
        stores: Iterable[str] = (),
        calls: Calls | None = None,
        acknowledges: bool = False,
        max_unacknowledged: int = MAX_UNACKNOWLEDGED,
        key_local: bool = False,
    ) -> Topology:
        """Add a processor.

        Args:
            name: Unique name of the node.
            supplier: Called without arguments, returns a new ``Processor``: the class itself, or a function.
            parents: Names of the nodes whose records it processes.
            stores: Names of the stores that it may use, in addition to those that the supplier provides in its attribute ``stores``.
            calls: Options of the calls that it issues (``context.issue``); None if it issues no calls.
            acknowledges: Whether it acknowledges finished records itself (``context.acknowledge``); see ``KStream.process``.
            max_unacknowledged: As in ``KStream.process``.
            key_local: Whether it accesses only entries with the key of its record; see ``KStream.process``.

        Raises:
            TopologyError: If the name is in use, a parent is unknown, or the supplier is itself a processor.
        """
        made = checked_supplier(name, supplier), tuple(stores)
        node = Process(name, _names(parents), *made, key_local=key_local)
        completion = Completion(calls, acknowledges, max_unacknowledged)
        return self.add_supplied(completion.node(node, self._serdes_behind(node.parents)))

    def add_sink(
        self,
        name: str,
        topic: str | TopicNameExtractor,
        parents: str | Sequence[str],
        *,
        key: Serde[Any] = _string,
        value: Serde[Any] = _string,
        partitioner: StreamPartitioner | None = None,
        fan_out: bool = False,
    ) -> Topology:
        """Add a node that sends to a topic.

        Args:
            name: Unique name of the node.
            topic: A topic, or a function of key, value and ``RecordContext`` that returns a topic.
            parents: Names of the nodes whose records are sent.
            key: Serde of the keys.
            value: Serde of the values.
            partitioner: Chooses one or several partitions; see ``KStream.to``. None uses the default of Java producers (murmur2 of the
                key).
            fan_out: Whether partitions of the topic may be split by key range; see ``KStream.to``.

        Raises:
            TopologyError: If the name is in use, a parent is unknown, or a function chooses the topic of a sink with ``fan_out``.
        """
        return self.add(Sink(name, _names(parents), topic, key, value, partitioner, fan_out=fan_out))

    def add_state_store(self, store: StoreSpec, *, processors: Iterable[str] = ()) -> Topology:
        """Add a store and connect it to processors.

        Args:
            store: The result of ``ms.stores.key_value(...)`` or another specification.
            processors: Names of the processors that may use it.

        Raises:
            TopologyError: If the name is in use by another store, or a processor is unknown.

        Example:
            >>> import millstream as ms
            >>> class Count(ms.Processor):
            ...     def process(self, record):
            ...         counts = self.context.state_store("counts")
            ...         counts.put(record.key, (counts.get(record.key) or 0) + 1)
            >>> topology = ms.Topology().add_source("in", "words").add_processor("count", Count, "in")
            >>> counts = ms.stores.key_value("counts", ms.serdes.string, ms.serdes.int64)
            >>> driver = ms.testing.TopologyTestDriver(topology.add_state_store(counts, processors=["count"]))
            >>> for _ in range(2):
            ...     driver.pipe("words", "tea", "x")
            >>> driver.store("counts").get("tea")
            2
        """
        self.add_store(store)
        for processor in processors:
            self.connect(processor, store.name)
        return self

    def add_global_store(
        self,
        store: StoreSpec,
        source: str,
        topic: str,
        processor: str,
        supplier: Callable[[], Any],
        *,
        key: Serde[Any] = _string,
        value: Serde[Any] = _string,
        timestamp: TimestampExtractor | None = None,
    ) -> Topology:
        """Add a global store. Every task can read it, and a processor fills it from all partitions of a topic.

        Any processor can read it with ``context.state_store(name)``, without being connected to it.

        Args:
            store: A key-value store without ``ttl`` and without a changelog topic.
            source: Unique name of the node that reads the topic.
            topic: The topic. It is read from its beginning, and nothing else may read it.
            processor: Unique name of the processor's node.
            supplier: Returns a new processor that updates the store from each record and does nothing else: the topic is read again
                whenever a copy of the store must be filled.
            key: Serde of the topic's keys.
            value: Serde of the topic's values.
            timestamp: As in :meth:`add_source`.

        Raises:
            TopologyError: If a name or the topic is in use, or the store is of another kind.

        Source: ``org.apache.kafka.streams.Topology.addGlobalStore``.

        Example:
            >>> import millstream as ms
            >>> class Keep(ms.Processor):
            ...     def process(self, record):
            ...         self.context.state_store("prices").put(record.key, record.value)
            >>> prices = ms.stores.key_value("prices", ms.serdes.string, ms.serdes.string)
            >>> topology = ms.Topology().add_global_store(prices, "from", "prices", "keep", Keep).add_source("in", "orders")
            >>> driver = ms.testing.TopologyTestDriver(topology.add_sink("out", "copies", "in"))
            >>> driver.pipe("prices", "tea", "3")
            >>> driver.store("prices").get("tea")
            '3'
        """
        keeper = GlobalProcess(processor, (source,), checked_supplier(processor, supplier), (store.name,))
        keeper = dataclasses.replace(keeper, supplier=self._wrapped(keeper))
        return self.add_global_part(GlobalSource(source, (), (topic,), key, value, timestamp), keeper, store)

    def add_read_only_state_store(
        self,
        store: StoreSpec,
        source: str,
        topic: str,
        processor: str,
        supplier: Callable[[], Any],
        *,
        key: Serde[Any] = _string,
        value: Serde[Any] = _string,
        timestamp: TimestampExtractor | None = None,
    ) -> Topology:
        """Add a store that one processor fills from a topic, partition by partition, and that all other processors only read.

        Other processors are connected to it like to any store. Unlike with a global store, each task has only the entries of its own
        partition.

        Args:
            store: A key-value store without a changelog topic: its topic is its changelog.
            source: Unique name of the node that reads the topic.
            topic: The topic. Nothing else may read it.
            processor: Unique name of the processor's node.
            supplier: Returns a new processor that updates the store from each record.
            key: Serde of the topic's keys.
            value: Serde of the topic's values.
            timestamp: As in :meth:`add_source`.

        Raises:
            TopologyError: If a name or the topic is in use, or the store is of another kind.

        Source: ``org.apache.kafka.streams.Topology.addReadOnlyStateStore`` (KIP-813).

        Example:
            >>> import millstream as ms
            >>> class Keep(ms.Processor):
            ...     def process(self, record):
            ...         self.context.state_store("prices").put(record.key, record.value)
            >>> class Price(ms.Processor):
            ...     def process(self, record):
            ...         price = self.context.state_store("prices").get(record.key)
            ...         self.context.forward(record.with_value(price))
            >>> topology = ms.Topology()
            >>> prices = ms.stores.key_value("prices", ms.serdes.string, ms.serdes.string)
            >>> topology = topology.add_read_only_state_store(prices, "from", "prices", "keep", Keep)
            >>> topology = topology.add_source("in", "orders").add_processor("price", Price, "in", stores=["prices"])
            >>> topology = topology.add_sink("out", "priced", "price")
            >>> driver = ms.testing.TopologyTestDriver(topology)
            >>> driver.pipe("prices", "tea", "3")
            >>> driver.pipe("orders", "tea", "order")
            >>> [record.value for record in driver.read("priced")]
            ['3']
        """
        check_kept(store, "read-only")
        self.add_source(source, topic, key=key, value=value, timestamp=timestamp)
        keeper = KeepStore(processor, (source,), checked_supplier(processor, supplier), (store.name,))
        return self.add_supplied(keeper).add_store(store)

    def connect(self, processor: str, *stores: str) -> Topology:
        """Connect a processor to stores.

        Args:
            processor: Name of the processor.
            stores: Names of the stores, at least one.

        Raises:
            TopologyError: If the processor or a store is unknown, or no store is named.

        Source: ``Topology.connectProcessorAndStateStores``.
        """
        node = self._nodes.get(processor)
        if not isinstance(node, Process):
            raise TopologyError(f"there is no processor {processor!r} to connect stores to; add it first")
        for store in stores:
            if store not in self._stores:
                raise TopologyError(
                    f"processor {processor!r} uses store {store!r}, which does not exist; add it with "
                    f"add_state_store(...){existing_names(self._stores)}"
                )
        if not stores:
            raise TopologyError(f"connect({processor!r}) names no store; pass at least one")
        self._nodes[processor] = dataclasses.replace(
            node, stores=tuple(dict.fromkeys((*node.stores, *stores)))
        )
        return self

    def validate(self) -> None:
        """Run the checks that need the whole topology. ``plan`` and the drivers call it.

        Raises:
            TopologyError: If there is no source, a store is missing or unused, or a global store is used like a store of a task.
        """
        check_complete(self._nodes, self._stores, self._global_nodes)

    def plan(
        self,
        application_id: str = "application",
        *,
        through_shuffle: bool = True,
        existing: Collection[str] = (),
    ) -> Plan:
        """Check the topology and split it into sub-topologies, without connecting to anything.

        Args:
            application_id: Prefix of internal topics.
            through_shuffle: Whether Spark's shuffle may replace repartition topics.
            existing: Names of the existing topics, for sources with a pattern.

        Returns:
            The plan; ``print(plan)`` shows it.

        Raises:
            TopologyError: If the topology is invalid.
        """
        self.validate()
        nodes = resolved(self._nodes, existing, application_id)
        return split(application_id, nodes, self._stores, through_shuffle=through_shuffle)

    def describe(self) -> str:
        """Describe the topology as text, as ``Topology.describe`` (KIP-120) does. For an example, see :class:`Topology`."""
        return _describe.text(self.plan())

    def mermaid(self) -> str:
        """Draw the topology as a Mermaid flow chart."""
        return _drawing.mermaid(self.plan())

    def dot(self) -> str:
        """Draw the topology in Graphviz' DOT language."""
        return _drawing.dot(self.plan())

    def svg(self) -> str:
        """Draw the topology as SVG, for notebooks."""
        return _drawing.svg(self.plan())

    def __repr__(self) -> str:
        return f"<Topology of {len(self._nodes)} nodes and {len(self._stores)} stores>"

    def _repr_html_(self) -> str:
        return self.svg()


def _names(parents: str | Sequence[str]) -> tuple[str, ...]:
    return (parents,) if isinstance(parents, str) else tuple(parents)
