"""Older checkpoints: what those say of the routing that were made before it was remembered.

They have the parts with their topics, their stores and the largest number of tasks each ever had, the numbers of partitions of
repartitions, and the positions, so the number of partitions of each topic that was read. Which partition was in which task
they do not have. So the present grouping is taken for theirs, unless it makes another number of tasks of their partitions.
"""

from __future__ import annotations

from collections.abc import Collection

from millstream.core.model.errors import IncompatibleTopologyError
from millstream.core.topology.evolution import Part, Remembered
from millstream.core.topology.routing import BY_KEY, BY_PRODUCER, Route, Routing, check_routing


def check_older(before: Remembered, now: Routing) -> None:
    """Refuse to bring records to other tasks, as far as an older checkpoint tells.

    Args:
        before: What the checkpoint remembers.
        now: What would run.

    Raises:
        IncompatibleTopologyError: If a store would not be reached as before.
    """
    check_routing(assumed(before, now), now)
    for part in before.parts.values():
        _check_tasks(part, before, now)


def assumed(before: Remembered, now: Routing) -> Routing:
    """Return how records reached stores, taking the present grouping for that of before.

    Args:
        before: What the checkpoint remembers.
        now: What would run.
    """
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


def _origins(part: Part, now: Routing) -> set[str]:
    """Return the topics, and the marks of patterns, whose records reach the stores of a part now."""
    return {origin for store in part.stores for origin in now.reaching.get(store, ())}


def _assumed_route(
    topic: str, count: int, before: Remembered, now: Routing, origins: Collection[str]
) -> Route:
    if topic in now.routes:
        tasks, by = now.routes[topic]
        return Route((*tasks[:count], *range(len(tasks), count)), by)
    present = (now.routes[origin].tasks for origin in sorted(origins) if origin in now.routes)
    alike = (tasks for tasks in present if len(tasks) == count)
    return Route(next(alike, tuple(range(count))), BY_KEY if topic in before.internal else BY_PRODUCER)


def _check_tasks(part: Part, before: Remembered, now: Routing) -> None:
    """Refuse a grouping that makes another number of tasks of the partitions that were there.

    A part may once have had more tasks than it has partitions now, as when a topic was made again with fewer.
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
        f"the part with store {part.stores[0]!r} had {part.tasks} tasks when the checkpoint was written, and the same partitions of "
        f"{', '.join(map(repr, grouped))} would be in {used} now, so keys would not find their state. Bring back the "
        "partition grouper of then; or give its stores new names (they start empty); or start over with `millstream reset` or "
        "another application id"
    )
