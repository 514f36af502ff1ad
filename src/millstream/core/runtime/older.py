"""Older checkpoints: derives the routing of checkpoints that were written before routing was stored.

These checkpoints contain the parts with their topics, stores and the largest number of tasks that each has ever had; the numbers of
partitions of repartitions; and the positions, and thus the number of partitions of each input topic. They do not contain the assignment
of partitions to tasks. The current grouping is therefore assumed, unless it forms a different number of tasks from these partitions.
"""

from __future__ import annotations

from collections.abc import Collection

from millstream.core.model.errors import IncompatibleTopologyError
from millstream.core.topology.evolution import ComparedPart, Remembered
from millstream.core.topology.routing import BY_KEY, BY_PRODUCER, Route, Routing, check_routing


def check_older(before: Remembered, now: Routing) -> None:
    """Check that records still reach the tasks with the state of their keys, as far as an older checkpoint shows."""
    check_routing(assumed(before, now), now)
    for part in before.parts.values():
        _check_tasks(part, before, now)


def assumed(before: Remembered, now: Routing) -> Routing:
    """Return the routing of an older checkpoint, assuming the current grouping."""
    with_stores = [part for part in before.parts.values() if part.stores]
    routes = {
        topic: _assumed_route(topic, count, before, now, _origins(part, now))
        for part in with_stores
        for topic in part.topics
        if (count := _partitions(topic, before))
    }
    return Routing(routes, {store: part.topics for part in with_stores for store in part.stores})


def _partitions(topic: str, before: Remembered) -> int:
    return before.internal.get(topic) or max(before.positions.get(topic, ()), default=-1) + 1


def _origins(part: ComparedPart, now: Routing) -> set[str]:
    """Return the topics, and the marks of patterns, whose records now reach the stores of a part."""
    return {origin for store in part.stores for origin in now.reaching.get(store, ())}


def _assumed_route(
    topic: str, count: int, before: Remembered, now: Routing, origins: Collection[str]
) -> Route:
    if topic in now.routes:
        route = now.routes[topic]
        return Route((*route.tasks[:count], *range(len(route.tasks), count)), route.by)
    present = (now.routes[origin].tasks for origin in sorted(origins) if origin in now.routes)
    alike = (tasks for tasks in present if len(tasks) == count)
    return Route(next(alike, tuple(range(count))), BY_KEY if topic in before.internal else BY_PRODUCER)


def _check_tasks(part: ComparedPart, before: Remembered, now: Routing) -> None:
    """Reject a grouping that forms a different number of tasks from the previous partitions.

    A part may once have had more tasks than it has partitions now, for example if a topic was created again with fewer partitions.
    """
    origins = _origins(part, now)
    stayed = [topic for topic in part.topics if topic in origins]
    grouped = {
        topic: now.routes[topic].tasks[: _partitions(topic, before) if stayed else None]
        for topic in stayed or sorted(origins)
        if topic in now.routes
    }
    used = 1 + max((task for tasks in grouped.values() for task in tasks), default=-1)
    widest = max(map(len, grouped.values()), default=0)
    if not used or used == part.tasks or (used < part.tasks and used == widest):
        return
    raise IncompatibleTopologyError(
        f"the sub-topology with store {part.stores[0]!r} had {part.tasks} tasks when the checkpoint was written, and the "
        f"same partitions of {', '.join(map(repr, grouped))} would be in {used} now, so keys would lose their state. "
        "Restore the previous partition grouper; or give its stores new names (they start empty); or start over with "
        "`millstream reset` or another application id"
    )
