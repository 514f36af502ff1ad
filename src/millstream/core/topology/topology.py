"""Topology: the graph that a program builds, checked while it is built.

The low-level API (``add_source``, ``add_processor``, ``add_sink``, ``add_state_store``, ``connect``) is KIP-28's
``TopologyBuilder``; the DSL appends nodes to the same graph. Building a topology never accesses a broker, Spark or the disk.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from millstream.core.model.arguments import checked_methods
from millstream.core.model.calls import Calls
from millstream.core.model.errors import TopologyError
from millstream.core.model.serdes import Serde
from millstream.core.model.serdes import string as _string
from millstream.core.model.topics import checked_name
from millstream.core.topology import describe as _describe
from millstream.core.topology import drawing as _drawing
from millstream.core.topology.asynchronous import (
    MAX_UNACKNOWLEDGED,
    Asynchronous,
    UnfinishedProcess,
    finishing_later,
)
from millstream.core.topology.checks import check_kept, check_plain, check_reset
from millstream.core.topology.global_nodes import GlobalProcess, GlobalSource
from millstream.core.topology.nodes import (
    Node,
    OffsetReset,
    Process,
    Sink,
    Source,
    StreamPartitioner,
    TimestampExtractor,
    TopicNameExtractor,
    source_reading,
)
from millstream.core.topology.patterns import check_overlap, resolved
from millstream.core.topology.plan import Plan
from millstream.core.topology.processor import KeepStore, Wrap, checked_supplier, provided_stores
from millstream.core.topology.split import split
from millstream.core.topology.stores import StoreSpec


@checked_methods
class Topology:
    """A graph of sources, processors, stores and sinks.

    Args:
        wrap: ``(name, supplier) -> supplier``, called for each processor and value transformer that is added; the returned supplier
            replaces the original one, for example to add behaviour to all processors. None changes nothing. It may provide stores
            in an attribute ``stores``, like any supplier; the stores of the wrapped supplier are kept. A wrapped processor must
            schedule punctuations in ``init``.

    Source: KIP-28, "API Design" (``TopologyBuilder``); ``org.apache.kafka.streams.Topology``.

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
        self._wrap = wrap
        self._nodes: dict[str, Node] = {}
        self._stores: dict[str, StoreSpec] = {}
        self._global_nodes: set[str] = set()

    def copy(self) -> Topology:
        """Return an independent copy with the same nodes and stores."""
        copy = Topology(wrap=self._wrap)
        copy._nodes, copy._stores = dict(self._nodes), dict(self._stores)
        copy._global_nodes = set(self._global_nodes)
        return copy

    @property
    def nodes(self) -> Mapping[str, Node]:
        """The nodes by name, parents before children."""
        return self._nodes

    @property
    def stores(self) -> Mapping[str, StoreSpec]:
        """The stores by name."""
        return self._stores

    def add_source(
        self,
        name: str,
        topics: str | Sequence[str] | re.Pattern[str],
        *,
        key: Serde[Any] = _string,
        value: Serde[Any] = _string,
        timestamp: TimestampExtractor | None = None,
        offset_reset: OffsetReset | None = None,
    ) -> Topology:
        """Add a node that reads topics.

        Args:
            name: Unique name of the node.
            topics: One or several topics, or a regular expression that matches their whole names, including topics that are created
                later; a topic can have one source only.
            key: Serde of the keys.
            value: Serde of the values.
            timestamp: Returns each record's timestamp in ms; None uses the record's own.
            offset_reset: Where to begin without committed offsets: ``"earliest"``, ``"latest"``, ``"none"`` (an error), or a
                timedelta, which is how far back to begin; None uses the application's setting ``auto_offset_reset``.

        Returns:
            This topology.

        Raises:
            TopologyError: If the name or a topic is in use, or an argument is invalid.
        """
        return self.add(source_reading(name, topics, key, value, timestamp, offset_reset))

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
            stores: Names of the stores it may use, in addition to those that the supplier provides in its attribute ``stores``.
            calls: Options of the calls that it issues (``context.issue``); None if it issues none.
            acknowledges: Whether it reports finished records itself (``context.acknowledge``); see ``KStream.process``.
            max_unacknowledged: As in ``KStream.process``.
            key_local: Whether it promises to touch nothing but the entries of its record's key; see ``KStream.process``.

        Returns:
            This topology.

        Raises:
            TopologyError: If the name is in use, a parent is unknown, or the supplier is itself a processor.
        """
        made = checked_supplier(name, supplier), tuple(stores)
        node = Process(name, _names(parents), *made, key_local=key_local)
        return self.add_supplied(
            finishing_later(
                node,
                calls,
                acknowledges=acknowledges,
                max_unacknowledged=max_unacknowledged,
                serdes=self._serdes_behind(node.parents),
            )
        )

    def add_supplied(self, node: Process) -> Topology:
        """Add a node that runs a user's class, with the stores that its supplier provides, and its own.

        Raises:
            TopologyError: If the node is invalid, or another store has the name of one of these.
        """
        provided = self.supplied_stores(node)
        names = dict.fromkeys((*node.stores, *(store.name for store in provided)))
        if isinstance(node, UnfinishedProcess):
            for store in node.carried.stores:
                self.add_state_store(store)
        self.add(dataclasses.replace(node, supplier=self._wrapped(node), stores=tuple(names)))
        for store in provided:
            self.add_state_store(store)
        return self

    def supplied_stores(self, node: Process) -> tuple[StoreSpec, ...]:
        """Return the stores that the supplier of a node and its wrapper provide.

        Raises:
            TopologyError: If they are not stores.
        """
        suppliers = dict.fromkeys([node.supplier, self._wrapped(node)])
        return tuple(store for each in suppliers for store in provided_stores(node.name, each))

    def _wrapped(self, node: Process) -> Callable[[], Any]:
        if self._wrap is None:
            return node.supplier
        return checked_supplier(node.name, self._wrap(node.name, node.supplier))

    def add_sink(
        self,
        name: str,
        topic: str | TopicNameExtractor,
        parents: str | Sequence[str],
        *,
        key: Serde[Any] = _string,
        value: Serde[Any] = _string,
        partitioner: StreamPartitioner | None = None,
    ) -> Topology:
        """Add a node that sends to a topic.

        Args:
            name: Unique name of the node.
            topic: A topic, or a function of key, value and ``RecordContext`` that returns one.
            parents: Names of the nodes whose records are sent.
            key: Serde of the keys.
            value: Serde of the values.
            partitioner: Chooses one or several partitions, see ``KStream.to``; None uses the default of Java producers (murmur2 of the
                key).

        Returns:
            This topology.

        Raises:
            TopologyError: If the name is in use or a parent is unknown.
        """
        return self.add(Sink(name, _names(parents), topic, key, value, partitioner))

    def add_state_store(self, store: StoreSpec, *, processors: Iterable[str] = ()) -> Topology:
        """Add a store, and connect it to processors.

        Args:
            store: The result of ``ms.stores.key_value(...)`` or another specification.
            processors: Names of processors that may use it.

        Returns:
            This topology.

        Raises:
            TopologyError: If the name is in use by another store, or a processor is unknown.
        """
        known = self._stores.setdefault(store.name, store)
        if known != store:
            raise TopologyError(
                f"two different stores are called {store.name!r}; a store's name must be unique"
            )
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
        """Add a global store, which every task can read and a processor fills from all partitions of a topic.

        Any processor reads it with ``context.state_store(name)``, without a connection to it.

        Args:
            store: A key-value store without ``ttl`` and without a changelog topic.
            source: Unique name of the node that reads the topic.
            topic: The topic; it is read from its beginning, and nothing else may read it.
            processor: Unique name of the processor's node.
            supplier: Returns a new processor that updates the store from each record, and does nothing else: the topic is read again
                whenever a copy of the store must be filled.
            key: Serde of the topic's keys.
            value: Serde of the topic's values.
            timestamp: As in :meth:`add_source`.

        Returns:
            This topology.

        Raises:
            TopologyError: If a name or the topic is in use, or the store is of another kind.

        Source: ``org.apache.kafka.streams.Topology.addGlobalStore``.
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
        """Add a store that one processor fills from a topic, partition by partition, and that all others only read.

        Others are connected to it like to any store. Unlike with a global store, each task has the entries of its own partition only.

        Args:
            store: A key-value store without a changelog topic: its topic is its changelog.
            source: Unique name of the node that reads the topic.
            topic: The topic; nothing else may read it.
            processor: Unique name of the processor's node.
            supplier: Returns a new processor that updates the store from each record.
            key: Serde of the topic's keys.
            value: Serde of the topic's values.
            timestamp: As in :meth:`add_source`.

        Returns:
            This topology.

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
        return self.add_supplied(keeper).add_state_store(store)

    def add_global_part(self, source: GlobalSource, keeper: Node, store: StoreSpec) -> Topology:
        """Add a global store with the two nodes that fill it; used by :meth:`add_global_store` and the DSL.

        Raises:
            TopologyError: If the nodes are invalid, or the store cannot be global.
        """
        check_kept(store, "global")
        self.add_state_store(store)
        self.add(source).add(keeper)
        self._global_nodes |= {source.name, keeper.name}
        return self

    def connect(self, processor: str, *stores: str) -> Topology:
        """Connect a processor to stores (``connectProcessorAndStateStores``).

        Raises:
            TopologyError: If the processor or a store is unknown, or no store is named.
        """
        node = self._nodes.get(processor)
        if not isinstance(node, Process):
            raise TopologyError(f"there is no processor {processor!r} to connect stores to; add it first")
        for store in stores:
            if store not in self._stores:
                raise TopologyError(
                    f"processor {processor!r} is to use store {store!r}, which does not exist; "
                    f"add it with add_state_store(...){_nearby(store, self._stores)}"
                )
        if not stores:
            raise TopologyError(f"connect({processor!r}) names no store to connect; give it at least one")
        self._nodes[processor] = dataclasses.replace(
            node, stores=tuple(dict.fromkeys((*node.stores, *stores)))
        )
        return self

    def replace(self, node: Node) -> Topology:
        """Replace the node of the same name and parents.

        Raises:
            TopologyError: If the node is invalid.
        """
        check_plain(node.name, vars(node).values())
        self._nodes[node.name] = node
        return self

    def add(self, node: Node) -> Topology:
        """Add a node of any type; used by all other methods and by the DSL.

        Raises:
            TopologyError: If the node is invalid.
        """
        if not isinstance(node.name, str) or not node.name:
            raise TopologyError(f"{node.name!r} cannot be the name of a node: give it some text")
        if node.name in self._nodes:
            raise TopologyError(f"two nodes are called {node.name!r}; a node's name must be unique")
        if isinstance(node, Source):
            check_reset(node)
            self._check_topics(node)
        elif not node.parents:
            raise TopologyError(f"node {node.name!r} has no parents, so no record can ever reach it")
        if isinstance(node, Sink) and isinstance(node.topic, str):
            checked_name(node.topic, "topic")
        if not isinstance(node, Asynchronous):
            check_plain(node.name, vars(node).values())
        for parent in node.parents:
            self._check_parent(node, parent)
        self._nodes[node.name] = node
        return self

    def _serdes_behind(self, parents: tuple[str, ...]) -> tuple[Serde[Any], Serde[Any]]:
        """Return the serdes of the nodes' output: those of sources, if all nodes are sources that agree, else the default ones."""
        nodes = [self._nodes.get(parent) for parent in parents]
        sources = [(node.key, node.value) for node in nodes if isinstance(node, Source)]
        known = sources and len(sources) == len(nodes) and all(one == sources[0] for one in sources)
        return sources[0] if known else (_string, _string)

    def _check_topics(self, node: Source) -> None:
        if not node.topics and node.pattern is None:
            raise TopologyError(f"source {node.name!r} reads no topic")
        sources = [other for other in self._nodes.values() if isinstance(other, Source)]
        for topic in node.topics:
            checked_name(topic, "topic")
            for other in sources:
                if topic in other.topics:
                    raise TopologyError(
                        f"topic {topic!r} has two sources, {other.name!r} and {node.name!r}; "
                        "read it once and give its stream to both places"
                    )
        check_overlap(node, sources)

    def _check_parent(self, node: Node, name: str) -> None:
        parent = self._nodes.get(name)
        if parent is None:
            raise TopologyError(
                f"node {node.name!r} has the parent {name!r}, which does not exist; "
                f"add parents before their children{_nearby(name, self._nodes)}"
            )
        if name in self._global_nodes:
            raise TopologyError(
                f"node {node.name!r} has the parent {name!r}, which fills a global store; nothing else comes out of it"
            )
        if isinstance(parent, Sink):
            raise TopologyError(
                f"node {node.name!r} has the sink {name!r} as its parent; nothing comes out of a sink"
            )

    def validate(self) -> None:
        """Run the checks that need the whole topology.

        Raises:
            TopologyError: If there is no source, a store is missing or unused, or a global store is used as if it were a task's
                own.
        """
        if not any(isinstance(node, Source) for node in self._nodes.values()):
            raise TopologyError(
                "the topology has no source, so it would never do anything; begin with stream(...)"
            )
        used = {store for node in self._nodes.values() for store in node.store_names}
        for node in self._nodes.values():
            for store in node.store_names:
                if store not in self._stores:
                    raise TopologyError(
                        f"{node.name!r} uses store {store!r}, which was never added; add it with add_state_store(...)"
                        f"{_nearby(store, self._stores)}"
                    )
        self._check_global_stores()
        for store in self._stores:
            if store not in used:
                raise TopologyError(
                    f"store {store!r} is connected to no processor; connect it or leave it out"
                )

    def _check_global_stores(self) -> None:
        keepers = [self._nodes[name] for name in self._nodes if name in self._global_nodes]
        keeper_of = {store: keeper.name for keeper in keepers for store in keeper.store_names}
        for node in self._nodes.values():
            for store in node.store_names:
                if keeper_of.get(store, node.name) != node.name:
                    raise TopologyError(
                        f"{node.name!r} uses store {store!r} as its own, but that is a global store, filled from its topic; "
                        "a processor reads a global store without being connected to it, and no other table can be in it"
                    )

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
        """Describe the topology as text, like Kafka Streams' ``Topology.describe()``."""
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


def _nearby(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    return f" (there are: {', '.join(names)})" if names else ""
