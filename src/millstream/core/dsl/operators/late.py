"""Late records: those that an operator drops because they arrived too late, as a stream for a function of the user."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from millstream.core.dsl.graph import Graph
from millstream.core.model.serdes import Serde
from millstream.core.topology.nodes import Late

if TYPE_CHECKING:
    from millstream.core.dsl.forward import KStream


LateConsumer: TypeAlias = "Callable[[KStream[Any, Any]], object]"
"""Called with a stream of late records."""


def pass_late(
    graph: Graph, node: str, serdes: tuple[Serde[Any], Serde[Any]], consumer: LateConsumer | None
) -> None:
    """Pass the stream of a node's late records to a consumer, if there is one."""
    if consumer is not None:
        consumer(graph.stream(graph.add(Late(f"{node}-late", (node,))), *serdes))
