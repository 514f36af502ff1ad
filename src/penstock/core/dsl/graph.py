"""The graph under construction that all handles of one builder share."""

from __future__ import annotations

from typing import Any

from penstock.core.model.errors import TopologyError
from penstock.core.model.serdes import Serde
from penstock.core.plan.nodes import Node, Repartition, StreamPartitioner
from penstock.core.plan.stores import Kept, StoreOptions, StoreSpec, key_value, versioned
from penstock.core.plan.topology import Topology


def kept_as(store: Kept | None, default: str) -> StoreOptions:
    """Give the options of an operator's store; without a name it gets the default one."""
    return store if isinstance(store, StoreOptions) else StoreOptions(store or default)


class Graph:
    """A topology under construction, the default serdes, and the counter that names nodes.

    Generated names are those of Kafka Streams (``KSTREAM-FILTER-0000000003``). State is never found by a generated name
    unless the program left the name out.

    Attributes:
        topology: What was added so far.
        default_key: Serde of keys that nobody gave one for.
        default_value: Serde of such values.
        generated: The names that were generated.
        counts_null_keys: Whether repartitions count the records without a key that they leave out.
    """

    def __init__(
        self, default_key: Serde[Any], default_value: Serde[Any], *, counts_null_keys: bool = True
    ) -> None:
        self.topology = Topology()
        self.default_key = default_key
        self.default_value = default_value
        self.generated: set[str] = set()
        self.counts_null_keys = counts_null_keys
        self._count = 0

    def name(self, kind: str, given: str | None) -> str:
        """Give the name of a new node: the given one, or a generated one."""
        number = self._count
        self._count += 1
        if given is not None:
            return given
        name = f"{kind}-{number:010d}"
        self.generated.add(name)
        return name

    def add(self, node: Node) -> str:
        """Add a node; give its name."""
        self.topology.add(node)
        return node.name

    def add_store(self, store: Kept | None, default: str, key: Serde[Any], value: Serde[Any]) -> StoreSpec:
        """Add the timestamped store of a table; without a name it gets the default one.

        Raises:
            TopologyError: If the store is to keep versions, or to forget.
        """
        spec = self.store(store, default, key, value)
        self.topology.add_state_store(spec)
        return spec

    def store(self, store: Kept | None, default: str, key: Serde[Any], value: Serde[Any]) -> StoreSpec:
        """Give the timestamped store of a table, without adding it."""
        kept = kept_as(store, default)
        if kept.history_retention_ms is not None:
            raise TopologyError(
                f"store {kept.name!r}: history_retention is for tables made of a topic or a stream (table, to_table), whose "
                "versions come with their records; the rows of this table are results. Leave it out"
            )
        if kept.retention_ms is not None:
            raise TopologyError(
                f"store {kept.name!r}: retention is for windowed aggregations; the rows of this table stay until they are "
                "deleted. Leave it out"
            )
        return key_value(
            kept.name, key, value, timestamped=True, engine=kept.engine, changelog=kept.changelog
        )

    def add_table_store(
        self, store: Kept | None, default: str, key: Serde[Any], value: Serde[Any]
    ) -> StoreSpec:
        """Add the store of a table whose rows come as records: with versions, if they are asked for."""
        if not isinstance(store, StoreOptions) or store.history_retention_ms is None:
            return self.add_store(store, default, key, value)
        spec = versioned(
            store.name,
            key,
            value,
            history_retention=store.history_retention_ms,
            engine=store.engine,
            changelog=store.changelog,
        )
        self.topology.add_state_store(spec)
        return spec

    def repartition(
        self,
        parent: str,
        topic_name: str,
        key: Serde[Any],
        value: Serde[Any],
        partitions: int | None,
        *,
        drop_null_keys: bool,
        partitioner: StreamPartitioner | None = None,
        name: str | None = None,
    ) -> str:
        """Add a repartition behind a node; give its name, which is that of the topic if no other is given."""
        counted = self.counts_null_keys
        return self.add(
            Repartition(
                name or topic_name,
                (parent,),
                topic_name,
                key,
                value,
                partitions,
                drop_null_keys,
                counted,
                partitioner,
            )
        )
