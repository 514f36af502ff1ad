"""Suppression: ``KTable.suppress``."""

from __future__ import annotations

import dataclasses
from typing import Any

from millstream.core.dsl.graph import Graph
from millstream.core.dsl.handle import TableHandle
from millstream.core.model import serdes
from millstream.core.model.errors import TopologyError
from millstream.core.model.serdes import Serde
from millstream.core.model.suppressed import Suppressed, held_serde
from millstream.core.topology.stores import StoreLike, StoreOptions, StoreSpec
from millstream.core.topology.window_nodes import Closing, Suppress, check_no_versions, closing_of


def suppress(
    table: TableHandle[Any, Any], suppressed: Suppressed, store: StoreLike | None, name: str | None
) -> str:
    """Add the buffer of a table's updates, and return the node of the buffer."""
    graph, nodes = table._graph, table._graph.topology.nodes
    check_no_versions(nodes, table._node)
    path = table._path
    node = graph.name("KTABLE-SUPPRESS") if name is None else graph.names.uncounted(name)
    closing = None if suppressed.limit_ms is not None else closing_of(nodes, table._node)
    key, value = table._serdes()
    if store is None and name is not None:
        store = f"{name}-store"
    options = graph.store_options(store, lambda: graph.names.store("KTABLE-SUPPRESS"), path, "suppress")
    times = _store(graph, options, "-places", serdes.int64) if closing is None else None
    return graph.add(
        Suppress(
            node,
            (table._node,),
            key,
            value,
            suppressed,
            suppressed.limit_ms or 0 if closing is None else closing.wait_ms,
            _store(graph, options, "", held_serde(key, value, until_close=closing is not None)),
            times,
            () if closing is None else _closed_together(closing, node, suppressed),
        )
    )


def _store(graph: Graph, options: StoreOptions, suffix: str, value: Serde[Any]) -> StoreSpec:
    spec = graph.store(options, serdes.bytes, value)
    return dataclasses.replace(spec, name=graph.names.part(options.name, suffix), timestamped=False)


def _closed_together(closing: Closing, node: str, suppressed: Suppressed) -> tuple[str, ...]:
    """Return the aggregations whose windows also close while the input is idle, so that both nodes reject the same late records."""
    if suppressed.close_idle_after_ms is None:
        return ()
    if closing.apart:
        raise TopologyError(
            f"{node!r}: close_idle_after needs the windowed aggregation in the same task, but there is a topic between "
            "them; suppress the table before it is written to the topic"
        )
    return closing.aggregations
