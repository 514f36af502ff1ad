"""Checks for global stores: their topics must exist at a start, and Millstream must plan the micro-batches of the query."""

from __future__ import annotations

from collections.abc import Mapping

from millstream.core.model.errors import TopologyError
from millstream.core.topology.layout import missing_topics
from millstream.core.topology.plan import Plan


def global_partitions(plan: Plan, existing: Mapping[str, int]) -> dict[str, int]:
    """Return the partition counts of the topics of global stores."""
    missing = [topic for topic in plan.global_part_of if topic not in existing]
    if missing:
        raise missing_topics(missing)
    return {topic: existing[topic] for topic in plan.global_part_of}


def refuse_global_stores(plan: Plan) -> None:
    """Refuse global stores in a query whose micro-batches Millstream does not plan."""
    if plan.global_parts:
        stores = ", ".join(repr(store) for part in plan.global_parts for store in part.stores)
        topics = ", ".join(map(repr, plan.global_part_of))
        raise TopologyError(
            f"the topology keeps {topics} in the global store {stores}, whose offsets must be planned with each micro-batch: "
            "run it as a millstream.Application, or join the DataFrame with the table before the transformation"
        )
