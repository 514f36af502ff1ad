"""Topologies side by side in one: what an application can run in the place of many.

The nodes, stores and topics of each topology get a prefix, so that they are as far apart as those of two applications: they
share no node, no store and no topic, so they share no task either. Every node is a frozen value, and `Topology.add` takes
values of any kind; so a topology is renamed from outside, field by field.
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
"""The fields of nodes that hold names, or tuples of names, of nodes, stores and topics."""

EPOCH_ON_THE_WIRE = 1
"""How much later records are written than they are: librdkafka cannot write the time 0, which most recordings begin with."""


def side_by_side(topologies: Mapping[str, ms.Topology]) -> ms.Topology:
    """Put topologies into one, each under its prefix; their sources take `EPOCH_ON_THE_WIRE` back."""
    together = ms.Topology()
    for prefix, topology in topologies.items():
        add(together, topology, Prefix(prefix))
    return together


def add(together: ms.Topology, topology: ms.Topology, prefix: Prefix) -> None:
    sources: dict[str, GlobalSource] = {}
    for node in topology.nodes.values():
        if isinstance(node, GlobalSource):
            sources[node.name] = prefix.of_node(node)
        elif source := sources.get(next(iter(node.parents), "")):
            store = topology.stores[node.store_names[0]]
            together.add_global_part(source, prefix.of_node(node), prefix.of(store))
        else:
            together.add(prefix.of_node(node))
    for store in topology.stores.values():
        together.add_state_store(prefix.of(store))


@dataclass(frozen=True)
class Prefix:
    """What the names of a topology begin with when it stands beside others."""

    text: str
    stores: dict[str, StoreSpec] = field(default_factory=dict, compare=False)
    """The renamed stores: the nodes of one operator have the same object."""

    def of(self, named: Any) -> Any:
        """Return a name, a tuple of names, a store, or a function that returns a name, with the prefix."""
        if isinstance(named, str):
            return self.text + named
        if isinstance(named, tuple):
            return tuple(map(self.of, named))
        if isinstance(named, StoreSpec):
            renamed = dataclasses.replace(named, name=self.of(named.name))
            return self.stores.setdefault(named.name, renamed)
        return lambda *args: self.of(named(*args))

    def of_node(self, node: Node) -> Any:
        renamed = {
            each.name: self.of(value)
            for each in dataclasses.fields(node)
            if each.name in NAMES or isinstance(getattr(node, each.name), StoreSpec)
            for value in [getattr(node, each.name)]
            if value is not None
        }
        if hasattr(node, "supplier"):
            renamed["supplier"] = self.of_supplier(node.supplier)
        if hasattr(node, "timestamp"):
            renamed["timestamp"] = node.timestamp or time_of
        return dataclasses.replace(node, **renamed)

    def of_supplier(self, supplier: Callable[[], ms.Processor]) -> Callable[[], ms.Processor]:
        """Return a supplier whose processors see the names without the prefix."""

        def made() -> ms.Processor:
            processor = supplier()
            init = processor.init
            processor.init = lambda context: init(Inside(context, self))  # type: ignore[method-assign]
            return processor

        return made


def time_of(record: ms.ConsumerRecord, _partition_time: int) -> int:
    return record.timestamp - EPOCH_ON_THE_WIRE


class Inside:
    """The context of a processor that knows the names without the prefix."""

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
        return self._context.state_store(self._prefix.of(name))

    def forward(self, record: ms.Record, child: str | None = None) -> None:
        self._context.forward(record, None if child is None else self._prefix.of(child))
