"""Divisions: the sub-topologies whose state a start divides among more key ranges than the checkpoint has."""

from __future__ import annotations

from millstream.core.state.division.shares import Division
from millstream.core.topology.evolution import Remembered
from millstream.core.topology.plan import Plan


def divisions(plan: Plan, before: Remembered) -> dict[int, Division]:
    """Return how the state of tasks is divided, by number of the sub-topology.

    Args:
        plan: The plan, with the numbers of sub-topologies that the checkpoint has.
        before: The topology of the checkpoint; its routing must fit the plan.
    """
    routes = {} if before.routing is None else before.routing.routes
    found = {}
    for sub in plan.subtopologies:
        known = {routes[topic].ranges for topic in sub.source_topics if topic in routes}
        if sub.stores and sub.id in before.parts and known and sub.ranges > max(known):
            found[sub.id] = Division(max(known), sub.ranges)
    return found
