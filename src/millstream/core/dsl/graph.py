"""The graph under construction that all handles of one builder share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final, TypeAlias

from millstream.core.dsl.naming import Names, Naming
from millstream.core.model.calls import Calls
from millstream.core.model.errors import TopologyError
from millstream.core.model.serdes import Serde
from millstream.core.model.topics import checked_name
from millstream.core.topology.asynchronous import MAX_UNACKNOWLEDGED, finishing_later
from millstream.core.topology.nodes import Node, Process, Repartition, Source, StreamPartitioner, TableStore
from millstream.core.topology.patterns import merged_with
from millstream.core.topology.processor import ProcessValues, Wrap, checked_supplier
from millstream.core.topology.stores import Kept, StoreOptions, StoreSpec, key_value, versioned
from millstream.core.topology.topology import Topology

_NUMBERED_THROUGHOUT: Final = ("KSTREAM", "KTABLE")
"""How generated names of topics begin whose filter, sink and source have numbers too, not names made of the topic's."""

_PROCESSORS: Final[dict[type[Process], tuple[str, str]]] = {
    Process: ("KSTREAM-PROCESSOR", "process"),
    ProcessValues: ("KSTREAM-PROCESSVALUES", "process-values"),
}
"""How nodes of processors are numbered, and the word for them in a path."""

Parts: TypeAlias = tuple[str, str, str]
"""The names, or their beginnings, of a repartition's filter, sink and source; no filter is empty."""
STREAM_PARTS: Final[Parts] = ("KSTREAM-FILTER", "KSTREAM-SINK", "KSTREAM-SOURCE")
TABLE_PARTS: Final[Parts] = ("", "KSTREAM-SINK", "KSTREAM-SOURCE")
FOREIGN_KEY_PARTS: Final[Parts] = ("", "KTABLE-SINK", "KTABLE-SOURCE")


class Graph:
    """A topology under construction, the default serdes, and the names of what is in it.

    Attributes:
        topology: What was added so far.
        default_key: Serde of keys that nobody gave one for.
        default_value: Serde of such values.
        names: What nodes, and what they keep, are called.
        counts_null_keys: Whether repartitions count the records without a key that they leave out.
    """

    def __init__(
        self,
        default_key: Serde[Any],
        default_value: Serde[Any],
        naming: Naming,
        *,
        counts_null_keys: bool = True,
        wrap: Wrap | None = None,
    ) -> None:
        self.topology = Topology(wrap=wrap)
        self.default_key = default_key
        self.default_value = default_value
        self.names = Names(naming)
        self.counts_null_keys = counts_null_keys
        self._streams: list[Source] = []

    def name(self, kind: str, given: str | None = None) -> str:
        """Give the name of a new node: the given one, or a numbered one."""
        return self.names.node(kind, given)

    def path(self, node: str, *, rekeyed: bool = False) -> str:
        """Give the path of what comes out of a node."""
        return self.names.path(self.topology.nodes, node, rekeyed=rekeyed)

    def begin(self, node: str, path: str, name: str | None = None) -> None:
        """Let a path begin at a node, unless it began with the name that was given to the node."""
        if name is None:
            self.names.begin(node, path)

    def add(self, node: Node) -> str:
        """Add a node; give its name.

        Raises:
            TopologyError: If topics could not be named after it, or it does not fit.
        """
        checked_name(node.name, "node")
        self.topology.add(node)
        return node.name

    def read(self, source: Source) -> str:
        """Add a source, or merge it with that of a stream of the same topics; return the name of the node that reads them.

        Raises:
            TopologyError: If the topics cannot be read once more.
        """
        merged = merged_with(self._streams, source)
        if merged is not None:
            return merged.name
        self._streams.append(source)
        return self.add(source)

    def add_processor(
        self,
        kind: type[Process],
        parent: tuple[str, str],
        supplier: Callable[[], Any],
        stores: Iterable[str],
        serdes: tuple[Serde[Any] | None, Serde[Any] | None],
        *,
        name: str | None,
        key_local: bool,
        calls: Calls | None = None,
        acknowledges: bool = False,
        max_unacknowledged: int = MAX_UNACKNOWLEDGED,
    ) -> str:
        """Add a processor behind a node, whose schedules are found again by its name; give that.

        Args:
            kind: The kind of node.
            parent: Name of the node in front, and the path of what comes out of it.
            supplier: Makes the processor.
            stores: Names of the stores connected to it.
            serdes: Of its keys and of its values, if they are known.
            name: Its name, if it was given one.
            key_local: Whether it promises to be local to keys.
            calls: How its calls are made, if it issues any.
            acknowledges: Whether it says itself when a record is finished.
            max_unacknowledged: How many records may be unfinished.
        """
        counted_as, word = _PROCESSORS[kind]
        node = self.name(counted_as, name)
        if name is None:
            node = self.names.kept(node, f"{parent[1]}-{word}")
        supplied = checked_supplier(node, supplier)
        made = kind(node, parent[:1], supplied, tuple(stores), key_local=key_local)
        key, value = serdes[0] or self.default_key, serdes[1] or self.default_value
        later = finishing_later(
            made,
            calls,
            acknowledges=acknowledges,
            max_unacknowledged=max_unacknowledged,
            key=key,
            value=value,
        )
        return self.add_supplied(later)

    def add_supplied(self, node: Process) -> str:
        """Add a node that runs something of the user's, with the stores that its supplier brings along; give its name."""
        for store in self.topology.supplied_stores(node):
            self.names.give(store.name)
        self.topology.add_supplied(node)
        return node.name

    def kept_as(
        self, store: Kept | None, numbered: Callable[[], str], path: str, word: str, name: str | None = None
    ) -> StoreOptions:
        """Give the options of an operator's store; without a name it gets a generated one.

        Args:
            store: What the program gave.
            numbered: Gives what Kafka Streams calls the store if it has no name.
            path: What the operator is behind.
            word: What the operator does.
            name: The name that the program gave to the operator.
        """
        if store is None:
            number = numbered()
            if name is None or self.names.numbered:
                return StoreOptions(self.names.kept(number, f"{path}-{word}"))
            store = f"{name}-{word}"
        return self.given(store)

    def given(self, store: Kept) -> StoreOptions:
        """Give the options of a store that the program gave a name."""
        options = store if isinstance(store, StoreOptions) else StoreOptions(store)
        self.names.give(options.name)
        return options

    def add_store(self, kept: StoreOptions, key: Serde[Any], value: Serde[Any]) -> StoreSpec:
        """Add the timestamped store of a table.

        Raises:
            TopologyError: If the store is to keep versions, or to forget.
        """
        spec = self.store(kept, key, value)
        self.topology.add_state_store(spec)
        return spec

    def add_copy(self, table: str, kept: StoreOptions, key: Serde[Any], value: Serde[Any]) -> str:
        """Add a store that keeps a copy of a derived table; give its node."""
        return self.add(TableStore(f"{table}-store", (table,), self.add_store(kept, key, value)))

    def store(self, kept: StoreOptions, key: Serde[Any], value: Serde[Any]) -> StoreSpec:
        """Give the timestamped store of a table, without adding it."""
        if kept.history_retention is not None:
            raise TopologyError(
                f"store {kept.name!r}: history_retention is for tables made of a topic or a stream (table, to_table), whose "
                "versions come with their records; the rows of this table are results. Leave it out"
            )
        if kept.retention is not None:
            raise TopologyError(
                f"store {kept.name!r}: retention is for windowed aggregations; the rows of this table stay until they are "
                "deleted. Leave it out"
            )
        spec = key_value(
            kept.name,
            key,
            value,
            timestamped=True,
            **kept.storage,
        )
        return replace(spec, cache=kept.cache)

    def add_table_store(self, kept: StoreOptions, key: Serde[Any], value: Serde[Any]) -> StoreSpec:
        """Add the store of a table whose rows come as records: with versions, if they are asked for."""
        if kept.history_retention is None:
            return self.add_store(kept, key, value)
        spec = versioned(
            kept.name,
            key,
            value,
            history_retention=kept.history_retention,
            **kept.storage,
        )
        self.topology.add_state_store(spec)
        return spec

    def repartition(
        self,
        behind: str | tuple[str, ...],
        topic_name: str,
        key: Serde[Any],
        value: Serde[Any],
        partitions: int | None = None,
        *,
        drop_null_keys: bool,
        partitioner: StreamPartitioner | None = None,
        kinds: Parts = STREAM_PARTS,
    ) -> str:
        """Add a repartition behind a node, or several; give its name.

        Args:
            behind: The node.
            topic_name: Middle part of the topic's name.
            key: Serde of the keys.
            value: Serde of the values.
            partitions: Wanted number of partitions.
            drop_null_keys: Whether records without a key end here.
            partitioner: Chooses the partition; None leaves it to the key.
            kinds: What its filter, sink and source are called by numbers.
        """
        parts = self.count_repartition(kinds)
        numbered = self.names.numbered and topic_name in self.names.generated
        node = Repartition(
            f"{topic_name}-repartition",
            (behind,) if isinstance(behind, str) else behind,
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
        """Add a repartition, or go through the one that a join of the same stream has made already; return its name."""
        made = self.topology.nodes.get(node.name)
        if not isinstance(made, Repartition):
            return self.add(node)
        shared = replace(made, drop_null_keys=made.drop_null_keys and node.drop_null_keys)
        if replace(node, parts=shared.parts, drop_null_keys=shared.drop_null_keys) != shared:
            return self.add(node)  # which refuses it
        self.topology.replace(shared)
        return made.name

    def count_repartition(self, kinds: Parts = STREAM_PARTS) -> Parts:
        """Count the parts of a repartition, whether it is made or not; give the names of its filter, sink and source."""
        dropping, sending, reading = kinds
        sink = self.name(sending)
        drops = self.name(dropping) if dropping else f"{sink}-filter"
        return drops, sink, self.name(reading)
