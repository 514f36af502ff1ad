"""Graph: the topology under construction that all handles of a builder share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from millstream.core.dsl.naming import Names, Naming
from millstream.core.model.errors import TopologyError
from millstream.core.model.serdes import Serde
from millstream.core.model.topics import checked_name
from millstream.core.topology.nodes import (
    Late,
    Node,
    Process,
    Repartition,
    Source,
    StreamPartitioner,
    TableStore,
)
from millstream.core.topology.patterns import merged_with
from millstream.core.topology.processor import Wrap
from millstream.core.topology.stores import KeyValueSpec, StoreLike, StoreOptions, StoreSpec, VersionedSpec
from millstream.core.topology.topology import Topology

if TYPE_CHECKING:
    from millstream.core.dsl.forward import KStream, KTable

_NUMBERED_THROUGHOUT: Final = ("KSTREAM", "KTABLE")
"""Prefixes of generated names of topics whose filter, sink and source have their own numbers."""

Parts: TypeAlias = tuple[str, str, str]
"""Names, or prefixes of the names, of a repartition's filter, sink and source; "" for no filter."""
STREAM_PARTS: Final[Parts] = ("KSTREAM-FILTER", "KSTREAM-SINK", "KSTREAM-SOURCE")
TABLE_PARTS: Final[Parts] = ("", "KSTREAM-SINK", "KSTREAM-SOURCE")
FOREIGN_KEY_PARTS: Final[Parts] = ("", "KTABLE-SINK", "KTABLE-SOURCE")

LateConsumer: TypeAlias = "Callable[[KStream[Any, Any]], object]"
"""Called with a stream of late records."""


class Handles(NamedTuple):
    """The classes of the handles that a graph creates. ``StreamsBuilder``, which imports them, passes them."""

    stream: type[KStream[Any, Any]]
    table: type[KTable[Any, Any]]


class Graph:
    """A topology under construction, with its default serdes and names.

    Attributes:
        default_key: Serde of keys for which no other serde is known.
        default_value: Serde of values for which no other serde is known.
        names: The names of nodes, stores and internal topics.
        counts_null_keys: Whether repartitions count the records without a key that they drop.
    """

    def __init__(
        self,
        handles: Handles,
        default_key: Serde[Any],
        default_value: Serde[Any],
        naming: Naming,
        *,
        counts_null_keys: bool = True,
        wrap: Wrap | None = None,
    ) -> None:
        self._handles = handles
        self.topology = Topology(wrap=wrap)
        self.default_key = default_key
        self.default_value = default_value
        self.names = Names(naming)
        self.counts_null_keys = counts_null_keys
        self._streams: list[Source] = []

    def stream(
        self, node: str, key: Serde[Any] | None, value: Serde[Any] | None, *, rekeyed: bool = False
    ) -> KStream[Any, Any]:
        """Return the stream of a node's output."""
        return self._handles.stream(self, node, key, value, rekeyed=rekeyed)

    def table(self, node: str, key: Serde[Any] | None, value: Serde[Any] | None) -> KTable[Any, Any]:
        """Return the table of a node's output."""
        return self._handles.table(self, node, key, value)

    def streams_have(self, method: str) -> bool:
        """Return whether streams have a method."""
        return hasattr(self._handles.stream, method)

    def pass_late(
        self, node: str, serdes: tuple[Serde[Any], Serde[Any]], consumer: LateConsumer | None
    ) -> None:
        """Pass a stream of the records that a node drops as late to the consumer, if there is one."""
        if consumer is not None:
            consumer(self.stream(self.add(Late(f"{node}-late", (node,))), *serdes))

    def check_same(self, other: Graph, what: str) -> None:
        """Reject an operator whose inputs, named by ``what`` in the error, are parts of two topologies."""
        if other is not self:
            raise TopologyError(f"{what} belong to different builders; create them with the same builder")

    def name(self, kind: str, given: str | None = None) -> str:
        """Return the name of a new node: the given name, or a numbered one."""
        return self.names.node(kind, given)

    def path(self, node: str, *, rekeyed: bool = False) -> str:
        """Return the path of a node's output."""
        return self.names.path(self.topology.nodes, node, rekeyed=rekeyed)

    def begin(self, node: str, path: str, name: str | None = None) -> None:
        """Begin a path at a node, unless the node has a name in the program, which has already begun a path."""
        if name is None:
            self.names.begin(node, path)

    def add(self, node: Node) -> str:
        """Add a node and return its name.

        Raises:
            TopologyError: If the node is invalid, or its name is not a valid topic name.
        """
        checked_name(node.name, "node")
        self.topology.add(node)
        return node.name

    def read(self, source: Source) -> str:
        """Add a source, or merge it with the source of a stream of the same topics; return the name of the node that reads them.

        Raises:
            TopologyError: If the topics cannot be read a second time.
        """
        merged = merged_with(self._streams, source)
        if merged is not None:
            return merged.name
        self._streams.append(source)
        return self.add(source)

    def add_supplied(self, node: Process) -> str:
        """Add a node that runs a user's class, with the stores that its supplier provides, and return the name of the node."""
        for store in self.topology.supplied_stores(node):
            self.names.reserve(store.name)
        self.topology.add_supplied(node)
        return node.name

    def store_options(
        self,
        store: StoreLike | None,
        numbered: Callable[[], str],
        path: str,
        operation: str,
        name: str | None = None,
    ) -> StoreOptions:
        """Return the options of an operator's store, with a generated name if neither the store nor the operator has a name in the program.

        Args:
            store: The store in the program.
            numbered: Returns the name that Kafka Streams gives to an unnamed store.
            path: The path upstream of the operator.
            operation: The word for the operator in the name.
            name: Name of the operator in the program.
        """
        if store is None:
            number = numbered()
            if name is None or self.names.numbered:
                return StoreOptions(self.names.generate(number, f"{path}-{operation}"))
            store = f"{name}-{operation}"
        return self.named_store(store)

    def named_store(self, store: StoreLike) -> StoreOptions:
        """Return the options of a store that has a name in the program."""
        options = store if isinstance(store, StoreOptions) else StoreOptions(store)
        self.names.reserve(options.name)
        return options

    def add_copy(self, table: str, options: StoreOptions, key: Serde[Any], value: Serde[Any]) -> str:
        """Add a store with a copy of a derived table, and return the node of the copy."""
        return self.add(TableStore(f"{table}-store", (table,), self.store(options, key, value)))

    def store(self, options: StoreOptions, key: Serde[Any], value: Serde[Any]) -> StoreSpec:
        """Return the timestamped store of a table. It is added with its node.

        Raises:
            TopologyError: If the options are not valid for such a store.
        """
        check_no_history(options)
        check_no_retention(options)
        return KeyValueSpec(
            name=options.name,
            key=key,
            value=value,
            timestamped=True,
            **options.storage,
            cache=options.cache,
        )

    def table_store(self, options: StoreOptions, key: Serde[Any], value: Serde[Any]) -> StoreSpec:
        """Return the store of a table whose rows arrive as records, with versions if the options request them."""
        if options.history_retention is None:
            return self.store(options, key, value)
        check_no_retention(options)
        return VersionedSpec(
            name=options.name,
            key=key,
            value=value,
            history_retention=options.history_retention,
            **options.storage,
        )

    def repartition(
        self,
        parents: str | tuple[str, ...],
        topic_name: str,
        key: Serde[Any],
        value: Serde[Any],
        partitions: int | None = None,
        *,
        drop_null_keys: bool,
        partitioner: StreamPartitioner | None = None,
        kinds: Parts = STREAM_PARTS,
    ) -> str:
        """Add a repartition and return its name."""
        parts = self.count_repartition(kinds)
        numbered = self.names.numbered and topic_name in self.names.generated
        node = Repartition(
            f"{topic_name}-repartition",
            (parents,) if isinstance(parents, str) else parents,
            topic_name,
            key,
            value,
            partitions,
            drop_null_keys,
            self.counts_null_keys,
            partitioner,
            parts if numbered and topic_name.startswith(_NUMBERED_THROUGHOUT) else None,
        )
        return self._shared(node) if numbered else self.add(node)

    def _shared(self, node: Repartition) -> str:
        """Add a repartition, or reuse the one that another join of the same stream has added, and return its name."""
        existing = self.topology.nodes.get(node.name)
        if not isinstance(existing, Repartition):
            return self.add(node)
        shared = replace(existing, drop_null_keys=existing.drop_null_keys and node.drop_null_keys)
        if replace(node, parts=shared.parts, drop_null_keys=shared.drop_null_keys) != shared:
            return self.add(node)  # raises the error
        self.topology.replace(shared)
        return existing.name

    def count_repartition(self, kinds: Parts = STREAM_PARTS) -> Parts:
        """Use up the numbers of a repartition's parts, as Kafka Streams does even for a shared one, and return the names of the parts."""
        dropping, sending, reading = kinds
        sink = self.name(sending)
        drops = self.name(dropping) if dropping else f"{sink}-filter"
        return drops, sink, self.name(reading)


def check_no_history(options: StoreOptions) -> None:
    """Refuse ``history_retention`` for a store whose entries are not versions."""
    if options.history_retention is not None:
        raise TopologyError(
            f"store {options.name!r}: history_retention applies only to tables that are read from a topic or a stream "
            "(table, to_table), where each record is a version; the content of this store is computed. Leave it out"
        )


def check_no_retention(options: StoreOptions) -> None:
    """Refuse ``retention`` for a store whose entries do not expire, or expire at times that the operator determines."""
    if options.retention is not None:
        raise TopologyError(
            f"store {options.name!r}: retention applies only to windowed aggregations; entries of this store stay as long as the operator "
            "needs them. Leave it out"
        )
