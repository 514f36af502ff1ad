"""Routing: how records reach the tasks that have the state of their keys.

The state of a key is in the task that its records went to. Whoever writes a record chooses its partition: a producer, or a
repartition by its key or by a partitioner. The partition grouper puts the partition into a task. Nothing moves the content of
a store from one task to another, so a checkpoint remembers the *route* of each topic that tasks read, and the topics whose
records reach each store. What would run next is compared with it, store by store:

1. A partition that was there stays in its task. New partitions join any task, or make new ones.
2. A repartition keeps its number of partitions and its partitioner. A topic of a producer may grow: then the producer spreads
   the keys in another way, for every consumer.
3. If none of the topics of before reaches the store any more, those that do must have the route of one that did. If one does,
   others may come and go: topics that meet in a store are co-partitioned, so they send a key where that one sends it.

A store that is new has nothing to lose. Neither has a part without stores, but for records that its tasks hold
(:func:`left_by`).

See docs/decisions/0055-routing-is-remembered.md.
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
        tasks: The number of the task of each partition.
        by: What chooses the partition: ``producer`` of a topic from outside, ``key`` of a repartition, or its partitioner,
            which is known by the name of the function.
    """

    tasks: tuple[int, ...]
    by: str

    def to_json(self) -> list[Any]:
        """Return it for JSON; partitions that are in the tasks of their own numbers are only counted."""
        return [list(self.tasks) if self._grouped else len(self.tasks), self.by]

    @classmethod
    def from_json(cls, data: list[Any]) -> Route:
        """Read what :meth:`to_json` returned."""
        tasks, by = data
        return cls(tuple(range(tasks) if isinstance(tasks, int) else tasks), by)

    @property
    def _grouped(self) -> bool:
        """Whether partitions are in other tasks than those of their own numbers."""
        return self.tasks != tuple(range(len(self.tasks)))

    def __str__(self) -> str:
        how = "by its" if self.by == BY_PRODUCER else f"by {self.by} over"
        tasks = f" (in the tasks {', '.join(map(str, self.tasks))})" if self._grouped else ""
        return f"{how} {len(self.tasks)} partitions{tasks}"


@dataclass(frozen=True)
class Routing:
    """How records reach tasks and stores.

    Attributes:
        routes: The route of each topic that tasks read; parts that run where records are read have none.
        reaching: Per store the topics whose records reach it, and the marks of the patterns that chose some of them.
    """

    routes: Mapping[str, Route] = field(default_factory=dict)
    reaching: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return it for JSON."""
        routes = {topic: route.to_json() for topic, route in self.routes.items()}
        return {
            "routes": routes,
            "stores": {store: list(origins) for store, origins in self.reaching.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Routing:
        """Read what :meth:`to_json` returned."""
        routes = {topic: Route.from_json(route) for topic, route in data["routes"].items()}
        return cls(routes, {store: tuple(origins) for store, origins in data["stores"].items()})

    def only(self, stores: Collection[str]) -> Routing:
        """Return what it says of some stores."""
        reaching = {store: origins for store, origins in self.reaching.items() if store in stores}
        topics = {origin for origins in reaching.values() for origin in origins}
        return Routing({topic: route for topic, route in self.routes.items() if topic in topics}, reaching)

    def renamed(self, stores: Mapping[str, str], topics: Mapping[str, str]) -> Routing:
        """Return the same with new names.

        Args:
            stores: New name per old name.
            topics: New name per old name of a repartition, each of which may have been renamed or not.
        """
        routes = {topics.get(topic, topic): route for topic, route in self.routes.items()}
        reaching = {
            stores.get(store, store): (*origins, *(topics[origin] for origin in origins if origin in topics))
            for store, origins in self.reaching.items()
        }
        return Routing({**routes, **self.routes}, reaching)


def routing_of(plan: Plan, layout: Layout) -> Routing:
    """Return how records reach the tasks of a plan.

    Args:
        plan: The plan.
        layout: Its tasks.
    """
    in_tasks = [sub for sub in plan.subtopologies if not plan.runs_before_shuffle(sub)]
    partitioners = {
        node.topic: node.partitioner
        for sub in plan.subtopologies
        for node in sub.nodes.values()
        if isinstance(node, Sink) and isinstance(node.topic, str)
    }
    routes = {
        topic: Route(
            _tasks(layout, topic),
            _chosen_by(partitioners[topic]) if topic in plan.internal_topics else BY_PRODUCER,
        )
        for sub in in_tasks
        for topic in sub.source_topics
    }
    return Routing(routes, {store: origins for sub in in_tasks for store, origins in _reaching(sub)})


def _tasks(layout: Layout, topic: str) -> tuple[int, ...]:
    partitions = (TopicPartition(topic, number) for number in range(layout.partitions[topic]))
    return tuple(layout.task_of[partition].partition for partition in partitions)


def _chosen_by(partitioner: StreamPartitioner | None) -> str:
    if partitioner is None:
        return BY_KEY
    return f"partitioner {getattr(partitioner, '__name__', type(partitioner).__name__)}"


def _reaching(sub: SubTopology) -> Iterable[tuple[str, tuple[str, ...]]]:
    for store, sources in sources_of_stores(sub).items():
        topics = [topic for source in sources for topic in source.topics]
        marks = [mark_of(source.pattern) for source in sources if source.pattern is not None]
        yield store, (*topics, *marks)


def check_routing(before: Routing, now: Routing) -> None:
    """Refuse to bring records to other tasks than those that have the state of their keys.

    Args:
        before: What the checkpoint remembers, under the new names of stores.
        now: What would run.

    Raises:
        IncompatibleTopologyError: If a store would not be reached as before.
    """
    for store, origins in now.reaching.items():
        known = before.reaching.get(store, ())
        common = [origin for origin in origins if origin in known]
        for topic in common:
            if topic in before.routes and topic in now.routes:
                _check_route(store, topic, before.routes[topic], now.routes[topic])
        if known and not common:
            _check_replaced(store, _of(before, known), _of(now, origins))


def left_by(before: Routing, now: Routing) -> frozenset[str]:
    """Return the topics of which a partition is in another task now, or in none: the tasks of before may hold records of them."""
    return frozenset(topic for topic, route in before.routes.items() if _moved(route, now.routes.get(topic)))


def _moved(before: Route, now: Route | None) -> bool:
    if now is None or _first_moved(before, now) is not None:
        return True
    return now.by != BY_PRODUCER and len(now.tasks) < len(before.tasks)


def _first_moved(before: Route, now: Route) -> int | None:
    """Return the first partition that is in another task."""
    both = enumerate(zip(before.tasks, now.tasks, strict=False))
    return next((partition for partition, (was, would_be) in both if was != would_be), None)


def _check_route(store: str, topic: str, before: Route, now: Route) -> None:
    if BY_PRODUCER not in (before.by, now.by):
        if len(before.tasks) != len(now.tasks):
            raise _elsewhere(
                store,
                f"the repartition {topic!r} had {len(before.tasks)} partitions and would have {len(now.tasks)}",
                f"Put repartition(partitions={len(before.tasks)}) there",
            )
        if before.by != now.by:
            raise _elsewhere(
                store,
                f"the repartition {topic!r} chose partitions by {before.by} and would choose them by {now.by}",
                "Leave its partitioner, and the name of that function, as they were",
            )
    partition = _first_moved(before, now)
    if partition is not None:
        raise _elsewhere(
            store,
            f"partition {partition} of {topic!r} was in task {before.tasks[partition]} of its part and would be in task "
            f"{now.tasks[partition]}",
            "Make the partition grouper leave partitions in their groups, and groups in their order; new partitions may join "
            "a group or make new ones at the end",
        )


def _check_replaced(store: str, before: Mapping[str, Route], now: Mapping[str, Route]) -> None:
    """Refuse topics that have nothing in common with those of before, unless they have their routes."""
    known = set(before.values())
    if known and any(route not in known for route in now.values()):
        raise _elsewhere(
            store,
            f"its records came from {_told(before)} and would come from {_told(now)}",
            "Bring them there as before",
        )


def _of(routing: Routing, origins: Iterable[str]) -> dict[str, Route]:
    return {origin: routing.routes[origin] for origin in origins if origin in routing.routes}


def _told(routes: Mapping[str, Route]) -> str:
    return " and ".join(f"{topic!r} {route}" for topic, route in routes.items())


def _elsewhere(store: str, change: str, way_back: str) -> IncompatibleTopologyError:
    return IncompatibleTopologyError(
        f"records would reach store {store!r} in other tasks than those that have the state of their keys: {change}. "
        f"{way_back}; or give the store, or the operator that keeps it, a new name (it starts empty); or start over with "
        "`millstream reset` or another application id"
    )
