"""Global stores on Spark: not there yet, so a topology that has one is refused before anything connects."""

from __future__ import annotations

from penstock.core.model.errors import TopologyError
from penstock.core.plan.split import Plan


def refuse_global_stores(plan: Plan) -> None:
    """Refuse a topology that Spark cannot run.

    Raises:
        TopologyError: If it has a global store.
    """
    if plan.global_parts:
        stores = ", ".join(repr(store) for part in plan.global_parts for store in part.stores)
        topics = ", ".join(map(repr, plan.global_part_of))
        raise TopologyError(
            f"the topology keeps {topics} in the global store {stores}, and global stores do not run on Spark yet: "
            "TopologyTestDriver has them; until then, repartition the stream by the table's key and read both in a processor "
            "with a store"
        )
