"""Late streams: the records that an operator leaves out because they came too late, handed to a function of the user."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from millstream.core.dsl.graph import Graph
from millstream.core.model.serdes import Serde
from millstream.core.topology.nodes import Late

if TYPE_CHECKING:
    from millstream.core.dsl.kstream import KStream


OfLate: TypeAlias = "Callable[[KStream[Any, Any]], object]"
"""What is called with a stream of late records."""


def with_late(
    graph: Graph,
    node: str,
    key: Serde[Any] | None,
    value: Serde[Any] | None,
    consumer: OfLate | None,
) -> None:
    """Hand the stream of a node's late records to a function, if there is one."""
    from millstream.core.dsl.kstream import KStream  # a stream has late records, which are a stream

    if consumer is not None:
        late = graph.add(Late(f"{node}-late", (node,)))
        consumer(KStream(graph, late, key, value, rekeyed=False))
