"""Snapshots of a test driver, to continue with the same topology or an edited one, by the rules of a checkpoint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from millstream.core.engine.step_outcome import Snapshot
from millstream.core.model.errors import IncompatibleTopologyError
from millstream.core.model.ids import TaskId, TopicPartition
from millstream.core.ports import StoreChange, renamed
from millstream.core.state.division.entry_keys import entry_keys
from millstream.core.state.division.shares import divisions
from millstream.core.state.memory import MemoryStores
from millstream.core.topology.analysis.ranges import with_ranges_of_state
from millstream.core.topology.async_nodes import with_additional_stores
from millstream.core.topology.evolution import (
    Remembered,
    check_kinds,
    check_stores,
    checked_renames,
    continued,
    parts_of,
    with_new_names,
)
from millstream.core.topology.layout import Layout
from millstream.core.topology.plan import Plan
from millstream.core.topology.routing import check_routing, routing_of
from millstream.testing._topics import TopicLogs

Content = Mapping[str, tuple[StoreChange, ...]]
"""Serialised entries by byte store."""


@dataclass(frozen=True)
class TaskState:
    """The state from which a task continues.

    Attributes:
        snapshot: Its state besides the stores.
        content: The content of its stores.
        unfinished: Numbers of unfinished records of asynchronous operators, by store.
    """

    snapshot: Snapshot = field(default_factory=Snapshot)
    content: Content = field(default_factory=dict)
    unfinished: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class DriverSnapshot:
    """The state from which a test driver can continue; never changes. Created by :meth:`TopologyTestDriver.snapshot`, which has an example.

    Attributes:
        application_id: The application's id.
        wall_clock_ms: The wall clock, ms since the epoch.
        remembered: The data about the topology that a checkpoint would store.
        tasks: The tasks.
        global_stores: The content of the global stores.
        global_fingerprints: The fingerprint of each global store. Its content is readable only if the fingerprint is unchanged.
        ends: The next offset of each partition.
        committable: Per partition, the offset before which every record is finished.
    """

    application_id: str
    wall_clock_ms: int
    remembered: Remembered
    tasks: Mapping[TaskId, TaskState]
    global_stores: Content
    global_fingerprints: Mapping[str, str]
    ends: Mapping[TopicPartition, int]
    committable: Mapping[TopicPartition, int]


def beginning(application_id: str) -> DriverSnapshot:
    """Return the snapshot of a new driver."""
    return DriverSnapshot(application_id, 0, Remembered(), {}, {}, {}, {}, {})


def content_of(stores: MemoryStores) -> Content:
    """Return a copy of the content of stores."""
    return {name: tuple(stores.open(name).scan(None, None)) for name in sorted(stores.names())}


def stores_with(content: Content) -> MemoryStores:
    """Return stores with the given content."""
    stores = MemoryStores()
    stores.apply(content)
    return stores


def remembered(plan: Plan, layout: Layout, before: Remembered) -> Remembered:
    """Return the data about a running topology that a checkpoint stores."""
    return Remembered(
        plan.store_fingerprints(),
        {topic: layout.partitions[topic] for topic in plan.internal_topics},
        parts_of(plan, layout, before.parts),
        unfinished=plan.keepers,
        routing=routing_of(plan, layout),
    )


def fitted(
    plan: Plan, topics: TopicLogs, snapshot: DriverSnapshot, renamed_stores: Mapping[str, str]
) -> tuple[Plan, Layout, dict[TaskId, TaskState]]:
    """Fit a topology to a snapshot.

    Returns:
        The plan with the sub-topology numbers of the snapshot, its layout, and the state from which each task continues.
    """
    if snapshot.application_id != plan.application_id:
        raise IncompatibleTopologyError(
            f"the snapshot is of application {snapshot.application_id!r}, and the driver is of {plan.application_id!r}, whose "
            "repartitions are other topics; give the driver the same application_id"
        )
    names = checked_renames(renamed_stores, plan.store_fingerprints())
    names = with_additional_stores(names, plan.keepers)
    before = snapshot.remembered.renamed(names, plan.application_id)
    plan = continued(plan, before.parts)
    check_stores(before.stores, plan.store_fingerprints())
    plan = with_ranges_of_state(plan, before.routing)
    layout = topics.laid_out(plan, before.internal)
    check_routing(before.routing, routing_of(plan, layout), divides=True)
    tasks = {task: _under_new_names(state, names) for task, state in snapshot.tasks.items()}
    tasks = dict(_divided_tasks(plan, before, tasks))
    _check_finished(before, plan, tasks)
    _check_global(snapshot.global_fingerprints, global_fingerprints(plan))
    return plan, layout, _without_removed_stores(plan, tasks)


def global_fingerprints(plan: Plan) -> dict[str, str]:
    """Return the fingerprint of each global store."""
    return {spec.name: spec.fingerprint for part in plan.global_parts for spec in part.stores.values()}


def _check_global(before: Mapping[str, str], now: Mapping[str, str]) -> None:
    for store in before.keys() & now.keys():
        if before[store] != now[store]:
            raise IncompatibleTopologyError(
                f"global store {store!r} is {now[store]!r} in this topology, but {before[store]!r} in the snapshot. An application "
                "fills it again from its topic, which a test driver does not have: begin with a driver without a snapshot"
            )


def _divided_tasks(
    plan: Plan, before: Remembered, tasks: Mapping[TaskId, TaskState]
) -> Iterator[tuple[TaskId, TaskState]]:
    """Yield tasks with their state, dividing the state of tasks whose partitions now have more key ranges.

    Raises:
        IncompatibleTopologyError: If state cannot be divided, or a task has buffered records.
    """
    found = divisions(plan, before)
    keys = {number: entry_keys(plan, plan.subtopologies[number]) for number in found}
    for task, state in tasks.items():
        if task.subtopology not in found:
            yield task, state
            continue
        if state.snapshot.buffered:
            raise IncompatibleTopologyError(
                f"task {task} has records that wait for another input, so its state cannot be divided into key ranges: process them first, "
                "with records for that input or by advancing the wall clock"
            )
        content: dict[TaskId, dict[str, tuple[StoreChange, ...]]] = {}
        division = found[task.subtopology]
        for name, rows in state.content.items():
            shares = division.shares(task, rows, keys[task.subtopology].of(name))
            for new, own in shares.items():
                content.setdefault(new, {})[name] = tuple(own)
        for new in division.tasks(task):
            yield new, TaskState(state.snapshot, content.get(new, {}), state.unfinished)


def _under_new_names(state: TaskState, names: Mapping[str, str]) -> TaskState:
    snapshot = replace(
        state.snapshot,
        stores=with_new_names(state.snapshot.stores, names),
        operators=with_new_names(state.snapshot.operators, names),
    )
    content = {renamed(name, names): rows for name, rows in state.content.items()}
    return TaskState(snapshot, content, with_new_names(state.unfinished, names))


def _check_finished(before: Remembered, plan: Plan, tasks: Mapping[TaskId, TaskState]) -> None:
    """Reject a topology that no longer has an asynchronous operator with unfinished records, or has one of another kind in its place."""
    left: Counter[str] = Counter()
    for state in tasks.values():
        left.update(state.unfinished)
    check_kinds(before.unfinished, plan.keepers, left)
    for store in sorted(before.unfinished.keys() - plan.keepers.keys()):
        if left[store]:
            raise IncompatibleTopologyError(
                f"the topology no longer has the asynchronous operator that keeps its unfinished records in {store!r}, and "
                f"{left[store]:,} of them are waiting there: advance the wall clock until they are finished, or map the store's old "
                "name to its new one with renamed_stores={...}"
            )


def _without_removed_stores(plan: Plan, tasks: Mapping[TaskId, TaskState]) -> dict[TaskId, TaskState]:
    """Return the tasks with the stores that the topology still has.

    Raises:
        IncompatibleTopologyError: If a task has buffered records of a topic that it no longer reads.
    """
    kept = {}
    for task, state in tasks.items():
        sub = plan.subtopologies[task.subtopology]
        gone = sorted({q.partition.topic for q in state.snapshot.buffered} - set(sub.origins))
        if gone:
            raise IncompatibleTopologyError(
                f"task {task} has records of {gone[0]!r} that wait for another input, and no longer reads that topic: process them before "
                "the edit, with records for that input or by advancing the wall clock"
            )
        content = {name: rows for name, rows in state.content.items() if name.partition("/")[0] in sub.stores}
        kept[task] = TaskState(state.snapshot, content)
    return kept
