"""Combines topologies into one, so that one application can run many.

The nodes, stores and topics of each topology get a prefix. So the topologies share no node, store, topic or task, like those
of separate applications. Every node is a frozen value, and `Topology.add` accepts all kinds of nodes, so the fields of the
nodes can be renamed from outside.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import millstream as ms
from millstream.core.topology.global_nodes import GlobalSource
from millstream.core.topology.nodes import Node
from millstream.core.topology.stores import StoreSpec

NAMES = {"name", "parents", "routes", "stores", "other", "parts", "closes", "topic_name", "topics", "topic"}
"""The fields of nodes that contain names, or tuples of names, of nodes, stores and topics."""

EPOCH_ON_THE_WIRE = 1
"""Added to the timestamps of written records. Most recordings begin at time 0, which librdkafka cannot write."""


def side_by_side(topologies: Mapping[str, ms.Topology]) -> ms.Topology:
    """Combine topologies, each with its prefix. Their sources subtract `EPOCH_ON_THE_WIRE` from timestamps."""
    combined = ms.Topology()
    for prefix, topology in topologies.items():
        add(combined, topology, Prefix(prefix))
    return combined


def add(combined: ms.Topology, topology: ms.Topology, prefix: Prefix) -> None:
    sources: dict[str, GlobalSource] = {}
    for node in topology.nodes.values():
        if isinstance(node, GlobalSource):
            sources[node.name] = prefix.rename_node(node)
        elif source := sources.get(next(iter(node.parents), "")):
            store = topology.stores[node.store_names[0]]
            combined.add_global_part(source, prefix.rename_node(node), prefix.rename(store))
        else:
            combined.add(prefix.rename_node(node))
    for store in topology.stores.values():
        combined.add_state_store(prefix.rename(store))


@dataclass(frozen=True)
class Prefix:
    """The prefix of the names of a topology, and functions that add it."""

    text: str
    stores: dict[str, StoreSpec] = field(default_factory=dict, compare=False)
    """The renamed stores by name, because the nodes of one operator share a store object."""

    def rename(self, named: Any) -> Any:
        """Return a name, a tuple of names, a store, or a function that returns a name, with the prefix."""
        if isinstance(named, str):
            return self.text + named
        if isinstance(named, tuple):
            return tuple(map(self.rename, named))
        if isinstance(named, StoreSpec):
            renamed = dataclasses.replace(named, name=self.rename(named.name))
            return self.stores.setdefault(named.name, renamed)
        return lambda *args: self.rename(named(*args))

    def rename_node(self, node: Node) -> Any:
        renamed = {
            node_field.name: self.rename(value)
            for node_field in dataclasses.fields(node)
            if node_field.name in NAMES or isinstance(getattr(node, node_field.name), StoreSpec)
            for value in [getattr(node, node_field.name)]
            if value is not None
        }
        if hasattr(node, "supplier"):
            renamed["supplier"] = self.wrap_supplier(node.supplier)
        if hasattr(node, "timestamp"):
            renamed["timestamp"] = node.timestamp or time_of
        return dataclasses.replace(node, **renamed)

    def wrap_supplier(self, supplier: Callable[[], ms.Processor]) -> Callable[[], ms.Processor]:
        """Return a supplier of processors that use names without the prefix."""

        def create() -> ms.Processor:
            processor = supplier()
            init = processor.init
            # The processor is the user's, so its method is replaced on the object.
            processor.init = lambda context: init(UnprefixedContext(context, self))  # type: ignore[method-assign]
            return processor

        return create


def time_of(record: ms.ConsumerRecord, _partition_time: int) -> int:
    return record.timestamp - EPOCH_ON_THE_WIRE


class UnprefixedContext:
    """The context of a processor that uses names without the prefix."""

    def __init__(self, context: ms.ProcessorContext, prefix: Prefix) -> None:
        self._context = context
        self._prefix = prefix

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    @property
    def record_metadata(self) -> ms.RecordMetadata | None:
        metadata = self._context.record_metadata
        return metadata and metadata._replace(topic=metadata.topic.removeprefix(self._prefix.text))

    def state_store(self, name: str) -> Any:
        return self._context.state_store(self._prefix.rename(name))

    def forward(self, record: ms.Record, child: str | None = None) -> None:
        self._context.forward(record, None if child is None else self._prefix.rename(child))
