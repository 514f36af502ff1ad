"""How a suppressed table is put into the graph; the face is ``KTable.suppress``."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from millstream.core.dsl.graph import Graph
from millstream.core.model import serdes
from millstream.core.model.errors import TopologyError
from millstream.core.model.serdes import Serde
from millstream.core.model.suppressed import Suppressed, held
from millstream.core.topology.stores import Kept, StoreOptions, StoreSpec
from millstream.core.topology.windowed import Closing, Suppress, check_no_versions, closing_of

if TYPE_CHECKING:
    from millstream.core.dsl.ktable import KTable


def suppressing(table: KTable[Any, Any], suppressed: Suppressed, store: Kept | None, name: str | None) -> str:
    """Add what holds the updates of a table back; give its node."""
    graph, nodes = table._graph, table._graph.topology.nodes
    check_no_versions(nodes, table._node)
    path = graph.path(table._node)
    node = graph.name("KTABLE-SUPPRESS") if name is None else graph.names.uncounted(name)
    closing = None if suppressed.limit_ms is not None else closing_of(nodes, table._node)
    key, value = table._key or graph.default_key, table._value or graph.default_value
    if store is None and name is not None:
        store = f"{name}-store"
    kept = graph.kept_as(store, lambda: graph.names.store("KTABLE-SUPPRESS"), path, "suppress")
    places = _store(graph, kept, "-places", serdes.int64) if closing is None else None
    return graph.add(
        Suppress(
            node,
            (table._node,),
            key,
            value,
            suppressed,
            suppressed.limit_ms or 0 if closing is None else closing.wait_ms,
            _store(graph, kept, "", held(key, value)),
            places,
            () if closing is None else _closed_together(closing, node, suppressed),
        )
    )


def _store(graph: Graph, kept: StoreOptions, part: str, value: Serde[Any]) -> StoreSpec:
    spec = graph.store(kept, serdes.bytes, value)
    spec = dataclasses.replace(spec, name=graph.names.part(kept.name, part), timestamped=False)
    graph.topology.add_state_store(spec)
    return spec


def _closed_together(closing: Closing, node: str, suppressed: Suppressed) -> tuple[str, ...]:
    """Give the aggregations whose windows are closed too when the input is idle, so that late records stay out of both."""
    if suppressed.close_idle_after_ms is None:
        return ()
    if closing.apart:
        raise TopologyError(
            f"{node!r}: close_idle_after needs the windowed aggregation in the same task, but a topic lies between them; "
            "suppress the table before it is written there"
        )
    return closing.aggregations
