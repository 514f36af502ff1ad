"""Routing: how records reach the tasks with the state of their keys.

The state of a key is in the task that processed its records. The writer of a record chooses its partition: a producer, or a repartition
by key or by a partitioner. The partition grouper assigns the partition to a task. The content of a store never moves from one task to
another. A checkpoint therefore contains the *route* of each topic that tasks read, and the topics whose records reach each store. The
next start compares its routing with the checkpoint, store by store:

1. An existing partition stays in its task. New partitions join any task, or form new tasks.
2. A repartition keeps its number of partitions and its partitioner. A producer's topic may grow; the producer then distributes the
   keys differently, for every consumer.
3. If none of the previous topics reaches the store any more, the new topics must have the route of a previous one. If at least one
   still does, others may be added or removed: topics that reach the same store are co-partitioned, so they agree with that topic.

A new store has no state to lose. A part without stores has none either, except for records that its tasks buffer (:func:`left_by`).

See docs/decisions/0055-checkpoint-records-the-routing-of-keys.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from millstream.core.model.errors import IncompatibleTopologyError
from millstream.core.model.ids import TopicPartition
from millstream.core.topology.layout import Layout, sources_of_stores
from millstream.core.topology.nodes import Sink, StreamPartitioner
from millstream.core.topology.patterns import mark_of
from millstream.core.topology.plan import Plan, SubTopology

BY_PRODUCER: Final = "producer"
BY_KEY: Final = "key"


class Route(NamedTuple):
    """How the records of one topic reach the tasks of a part.

    Attributes:
        tasks: Task number by partition.
        by: What chooses the partition: ``producer`` for an external topic, ``key`` for a repartition, or the partitioner of the
            repartition, identified by the name of the function.
        ranges: Number of key ranges per partition; the tasks are then the partition groups.
    """

    tasks: tuple[int, ...]
    by: str
    ranges: int = 1

    def to_json(self) -> list[Any]:
        """Return JSON values. If every partition is in the task of the same number, the result contains only the count."""
        ranges = [] if self.ranges == 1 else [self.ranges]
        return [list(self.tasks) if self._grouped else len(self.tasks), self.by, *ranges]

    @classmethod
    def from_json(cls, data: list[Any]) -> Route:
        tasks, by, *ranges = data
        return cls(tuple(range(tasks) if isinstance(tasks, int) else tasks), by, *ranges)

    @property
    def _grouped(self) -> bool:
        """Whether partitions are in tasks with other numbers than their own."""
        return self.tasks != tuple(range(len(self.tasks)))

    def __str__(self) -> str:
        how = "by its" if self.by == BY_PRODUCER else f"by {self.by} over"
        tasks = f" (in the tasks {', '.join(map(str, self.tasks))})" if self._grouped else ""
        return f"{how} {len(self.tasks)} partitions{tasks}"


@dataclass(frozen=True)
class Routing:
    """How records reach tasks and stores.

    Attributes:
        routes: Route by topic that tasks read; parts that run before the shuffle have no routes.
        reaching: For each store, the topics whose records reach it, and the marks of the patterns that match some of these topics.
    """

    routes: Mapping[str, Route] = field(default_factory=dict)
    reaching: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        routes = {topic: route.to_json() for topic, route in self.routes.items()}
        return {
            "routes": routes,
            "stores": {store: list(origins) for store, origins in self.reaching.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Routing:
        routes = {topic: Route.from_json(route) for topic, route in data["routes"].items()}
        return cls(routes, {store: tuple(origins) for store, origins in data["stores"].items()})

    def only(self, stores: Collection[str]) -> Routing:
        reaching = {store: origins for store, origins in self.reaching.items() if store in stores}
        topics = {origin for origins in reaching.values() for origin in origins}
        return Routing({topic: route for topic, route in self.routes.items() if topic in topics}, reaching)

    def renamed(self, stores: Mapping[str, str], topics: Mapping[str, str]) -> Routing:
        """Return a copy with new names.

        Args:
            topics: New name by old name of a repartition. Each may or may not have been renamed, so both names are kept.
        """
        routes = {topics.get(topic, topic): route for topic, route in self.routes.items()}
        reaching = {
            stores.get(store, store): (*origins, *(topics[origin] for origin in origins if origin in topics))
            for store, origins in self.reaching.items()
        }
        return Routing({**routes, **self.routes}, reaching)


def routing_of(plan: Plan, layout: Layout) -> Routing:
    in_tasks = [sub for sub in plan.subtopologies if not plan.runs_before_shuffle(sub)]
    partitioners = {
        node.topic: node.partitioner
        for sub in plan.subtopologies
        for node in sub.nodes.values()
        if isinstance(node, Sink) and isinstance(node.topic, str)
    }
    routes = {
        topic: Route(
            _groups(layout, topic, sub.ranges),
            _chosen_by(partitioners[topic]) if topic in plan.internal_topics else BY_PRODUCER,
            sub.ranges,
        )
        for sub in in_tasks
        for topic in sub.source_topics
    }
    return Routing(routes, {store: origins for sub in in_tasks for store, origins in _reaching(sub)})


def _groups(layout: Layout, topic: str, ranges: int) -> tuple[int, ...]:
    partitions = (TopicPartition(topic, number) for number in range(layout.partitions[topic]))
    return tuple(layout.tasks_of[partition][0].partition // ranges for partition in partitions)


def _chosen_by(partitioner: StreamPartitioner | None) -> str:
    if partitioner is None:
        return BY_KEY
    return f"partitioner {getattr(partitioner, '__name__', type(partitioner).__name__)}"


def _reaching(sub: SubTopology) -> Iterable[tuple[str, tuple[str, ...]]]:
    for store, sources in sources_of_stores(sub).items():
        topics = [topic for source in sources for topic in source.topics]
        marks = [mark_of(source.pattern) for source in sources if source.pattern is not None]
        yield store, (*topics, *marks)


def check_routing(before: Routing, now: Routing, *, divides: bool = False) -> None:
    """Check that records still reach the tasks with the state of their keys.

    Args:
        before: The routing of the checkpoint, with the new names of stores.
        divides: Whether the state of a task can be divided among smaller key ranges.
    """
    for store, origins in now.reaching.items():
        known = before.reaching.get(store, ())
        common = [origin for origin in origins if origin in known]
        for topic in common:
            if topic in before.routes and topic in now.routes:
                _check_route(store, topic, before.routes[topic], now.routes[topic])
                _check_ranges(store, topic, (before.routes[topic], now.routes[topic]), divides=divides)
        if known and not common:
            _check_replaced(store, _routes_of(before, known), _routes_of(now, origins))


def ranges_of_state(before: Routing, sub: SubTopology) -> int:
    """Return into how many key ranges the state of a part is divided. It can be divided further, but not merged."""
    known = (
        before.routes[origin].ranges
        for store, origins in _reaching(sub)
        for origin in origins
        if origin in before.reaching.get(store, ()) and origin in before.routes
    )
    return max(known, default=1)


def left_by(before: Routing, now: Routing) -> frozenset[str]:
    """Return the topics with a partition that is now in another task, or in none. The previous tasks may buffer records of these topics."""
    return frozenset(topic for topic, route in before.routes.items() if _moved(route, now.routes.get(topic)))


def _moved(before: Route, now: Route | None) -> bool:
    if now is None or now.ranges != before.ranges or _first_moved(before, now) is not None:
        return True
    return now.by != BY_PRODUCER and len(now.tasks) < len(before.tasks)


def _first_moved(before: Route, now: Route) -> int | None:
    both = enumerate(zip(before.tasks, now.tasks, strict=False))
    return next((partition for partition, (was, would_be) in both if was != would_be), None)


def _check_route(store: str, topic: str, before: Route, now: Route) -> None:
    if BY_PRODUCER not in (before.by, now.by):
        if len(before.tasks) != len(now.tasks):
            raise _moved_state(
                store,
                f"the repartition {topic!r} had {len(before.tasks)} partitions and would have {len(now.tasks)}",
                f"Set repartition(partitions={len(before.tasks)}) on it",
            )
        if before.by != now.by:
            raise _moved_state(
                store,
                f"the repartition {topic!r} chose partitions by {before.by} and would choose them by {now.by}",
                "Keep its partitioner and the name of that function",
            )
    partition = _first_moved(before, now)
    if partition is not None:
        raise _moved_state(
            store,
            f"partition {partition} of {topic!r} was in task {before.tasks[partition]} of its sub-topology and would be "
            f"in task {now.tasks[partition]}",
            "Change the partition grouper so that partitions stay in their groups, and groups in their order; new partitions "
            "may join a group or form new ones at the end",
        )


def _check_ranges(store: str, topic: str, routes: tuple[Route, Route], *, divides: bool) -> None:
    before, now = routes
    if before.ranges == now.ranges or (divides and is_division(before, now)):
        return
    raise _moved_state(
        store,
        f"the partitions of {topic!r} were divided into {_ranges(before)} and would be divided into {_ranges(now)}",
        "Set parallelism= to a number of workers that has the same key ranges (2 to 16: 16, 17 to 64: 64, 65 to 256: 256)",
    )


def is_division(before: Route, now: Route) -> bool:
    """Return whether partitions have more key ranges than before, and each range is part of a previous one."""
    return now.ranges > before.ranges and now.ranges % before.ranges == 0


def _check_replaced(store: str, before: Mapping[str, Route], now: Mapping[str, Route]) -> None:
    """Reject new topics if none of the previous ones still reaches the store, unless the new ones have the same routes."""
    known = set(before.values())
    if known and any(route not in known for route in now.values()):
        raise _moved_state(
            store,
            f"its records came from {_described(before)} and would come from {_described(now)}",
            "Route them to it as before",
        )


def _ranges(route: Route) -> str:
    return "no key ranges" if route.ranges == 1 else f"{route.ranges} key ranges"


def _routes_of(routing: Routing, origins: Iterable[str]) -> dict[str, Route]:
    return {origin: routing.routes[origin] for origin in origins if origin in routing.routes}


def _described(routes: Mapping[str, Route]) -> str:
    return " and ".join(f"{topic!r} {route}" for topic, route in routes.items())


def _moved_state(store: str, change: str, way_back: str) -> IncompatibleTopologyError:
    return IncompatibleTopologyError(
        f"records would reach store {store!r} in tasks that do not have the state of their keys: {change}. {way_back}; or "
        "give the store, or the operator that keeps it, a new name (it starts empty); or start over with `millstream "
        "reset` or another application id"
    )
