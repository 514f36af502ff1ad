"""Late records: what an operator leaves out because it came too late, as a stream."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.topology.nodes import Node


@dataclass(frozen=True)
class Late(Node):
    """The late records of its parent, which hands it these and nothing else. To stream; not in Kafka Streams."""
