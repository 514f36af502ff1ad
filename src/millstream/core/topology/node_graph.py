"""Node graph: a topology under construction, whose nodes and stores are checked when they are added.

The DSL adds nodes directly. The public methods of ``Topology`` create nodes for users and add them in the same way.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Self

from millstream.core.model import serdes
from millstream.core.model.arguments import checked_methods
from millstream.core.model.errors import TopologyError
from millstream.core.model.serdes import Serde
from millstream.core.topology.checks import (
    check_functions,
    check_kept,
    check_node,
    checked_supplier,
    provided_stores,
)
from millstream.core.topology.global_nodes import GlobalSource
from millstream.core.topology.nodes import Node, Process, Source
from millstream.core.topology.processor import Wrap
from millstream.core.topology.stores import StoreSpec


@checked_methods
class NodeGraph:
    """Nodes and stores by name. Methods that add nodes or stores return the graph."""

    def __init__(self, *, wrap: Wrap | None = None) -> None:
        self._wrap = wrap
        self._nodes: dict[str, Node] = {}
        self._stores: dict[str, StoreSpec] = {}
        self._global_nodes: set[str] = set()

    @property
    def nodes(self) -> Mapping[str, Node]:
        """The nodes by name, parents before children."""
        return self._nodes

    @property
    def stores(self) -> Mapping[str, StoreSpec]:
        """The stores by name."""
        return self._stores

    def replace(self, node: Node) -> Self:
        """Replace the node with the same name and parents.

        Args:
            node: The new node.

        Raises:
            TopologyError: If the node is invalid.
        """
        check_functions(node)
        self._nodes[node.name] = node
        return self

    def add(self, node: Node) -> Self:
        """Add a node of any type, with the stores that belong to it. All other methods and the DSL use this method.

        Args:
            node: The node; its parents must have been added.

        Raises:
            TopologyError: If the node is invalid, or one of its stores has the name of a store of something else.
        """
        check_node(node, self._nodes, self._global_nodes)
        for store in node.own_stores:
            self._check_owner(store, node.name)
        self._stores.update((store.name, store) for store in node.own_stores)
        self._nodes[node.name] = node
        return self

    def add_store(self, store: StoreSpec) -> Self:
        """Add a store for processors. Adding an equal store again has no effect.

        Args:
            store: The store.

        Raises:
            TopologyError: If another store has the name, or an operator keeps its own content in the store of that name.
        """
        existing = self._stores.setdefault(store.name, store)
        owner = self._owner(existing)
        if existing is not store and owner is not None:
            raise TopologyError(
                f"store {store.name!r} belongs to {owner!r}. A processor may use it, with stores=[{store.name!r}] alone: do not add "
                "the store again; for a store of its own, choose another name"
            )
        if existing != store:
            raise TopologyError(
                f"two different stores have the name {store.name!r}; store names must be unique"
            )
        return self

    def _owner(self, store: StoreSpec) -> str | None:
        """Return the first node of the operator to which a store belongs; None for a store of processors."""
        return next(
            (node.name for node in self._nodes.values() if any(each is store for each in node.own_stores)),
            None,
        )

    def _check_owner(self, store: StoreSpec, node: str) -> None:
        """Check that no other operator has a store of this name. The nodes of one operator have the same object."""
        existing = self._stores.get(store.name, store)
        if existing is store:
            return
        owner = self._owner(existing)
        kept = "was added for processors" if owner is None else f"belongs to {owner!r}"
        raise TopologyError(
            f"store {store.name!r} {kept}, so {node!r} cannot keep its own content there: each would overwrite the entries of the "
            "other. Set another store=... on one of them"
        )

    def add_supplied(self, node: Process) -> Self:
        """Add a node that runs a user's class, with the stores that its supplier provides and the stores of the node.

        Args:
            node: The node.

        Raises:
            TopologyError: If the node is invalid, or another store has the name of one of these stores.
        """
        provided = self.supplied_stores(node)
        names = dict.fromkeys((*node.stores, *(store.name for store in provided)))
        self.add(dataclasses.replace(node, supplier=self._wrapped(node), stores=tuple(names)))
        for store in provided:
            self.add_store(store)
        return self

    def supplied_stores(self, node: Process) -> tuple[StoreSpec, ...]:
        """Return the stores that the supplier of a node and the wrapper provide.

        Args:
            node: The node.

        Raises:
            TopologyError: If one of them is not a store.

        Source: ``org.apache.kafka.streams.processor.ConnectedStoreProvider`` (KIP-401).
        """
        wrapped = self._wrapped(node)
        suppliers = [node.supplier] if wrapped is node.supplier else [node.supplier, wrapped]
        return tuple(store for each in suppliers for store in provided_stores(node.name, each))

    def _wrapped(self, node: Process) -> Callable[[], Any]:
        if self._wrap is None:
            return node.supplier
        return checked_supplier(node.name, self._wrap(node.name, node.supplier))

    def add_global_part(self, source: GlobalSource, keeper: Node, store: StoreSpec) -> Self:
        """Add a global store with the two nodes that fill it, for ``Topology.add_global_store`` and the DSL.

        Args:
            source: The node that reads the topic.
            keeper: The node that writes to the store.
            store: The store.

        Raises:
            TopologyError: If the nodes are invalid, or the store cannot be global.
        """
        check_kept(store, "global")
        self.add(source).add(keeper).add_store(store)
        self._global_nodes |= {source.name, keeper.name}
        return self

    def _serdes_behind(self, parents: tuple[str, ...]) -> tuple[Serde[Any], Serde[Any]]:
        """Return the serdes of the nodes' output: those of the sources if all nodes are sources with equal serdes, else the defaults."""
        nodes = [self._nodes.get(parent) for parent in parents]
        sources = [(node.key, node.value) for node in nodes if isinstance(node, Source)]
        known = sources and len(sources) == len(nodes) and all(source == sources[0] for source in sources)
        return sources[0] if known else (serdes.string, serdes.string)
