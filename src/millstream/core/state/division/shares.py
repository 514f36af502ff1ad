"""Shares: what a task with a smaller key range gets of the state of the task that had its keys.

The log is divided segment by segment: a segment of a share has the changes of the keys in its range, and keeps its key group, its
versions and its place. So deletions still hide what is older, and nothing is merged. What is kept per task besides the stores, such
as stream time, the partition's time and the schedules of punctuators, is the same in each share: key ranges have the time of their
partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from millstream.core.model.errors import StoreError
from millstream.core.model.ids import TaskId
from millstream.core.model.partitioning import range_of
from millstream.core.ports import StoreChange
from millstream.core.state.division.entry_keys import EntryKey
from millstream.core.state.segments.log import Manifest
from millstream.core.topology.evolution import Remembered
from millstream.core.topology.plan import Plan


@dataclass(frozen=True)
class Division:
    """A division of each task of a sub-topology.

    Attributes:
        before: Into how many key ranges a partition was divided, 1 without key ranges.
        ranges: Into how many it is divided now: a multiple.
    """

    before: int
    ranges: int

    def tasks(self, task: TaskId) -> list[TaskId]:
        """Return the tasks that divide the state of a task.

        Example:
            >>> [str(task) for task in Division(16, 64).tasks(TaskId(0, 17))]
            ['0_68', '0_69', '0_70', '0_71']
        """
        count = self.ranges // self.before
        first = task.partition * count
        return [TaskId(task.subtopology, number) for number in range(first, first + count)]

    def shares(
        self, task: TaskId, changes: Iterable[StoreChange], key_of: EntryKey
    ) -> dict[TaskId, list[StoreChange]]:
        """Return the changes of each task that divides a task's state; tasks without changes are left out.

        Args:
            key_of: Returns the record key of an entry.

        Raises:
            StoreError: If a key is not in the range of the task.
        """
        first = task.partition // self.before * self.ranges
        shares: dict[TaskId, list[StoreChange]] = {}
        for change in changes:
            number = first + range_of(key_of(change[0]), self.ranges)
            shares.setdefault(TaskId(task.subtopology, number), []).append(change)
        if not shares.keys() <= set(self.tasks(task)):
            raise StoreError(
                f"the state of task {task} cannot be divided: it has keys of other key ranges. Leave parallelism= as it was"
            )
        return shares


def manifest_of_share(manifest: Manifest, kept: Mapping[int, tuple[int, int]], token: str) -> Manifest:
    """Return the manifest of a share.

    The history is cleared: local copies of the tasks that had these keys, or had the same number, are not those of the share.

    Args:
        manifest: The manifest of the task whose state is divided.
        kept: The segments of the share by sequence, with their bytes and numbers of changes.
        token: The token of the version.
    """
    segments = {}
    for group, own in manifest.segments.items():
        left = tuple(
            segment._replace(size=kept[segment.sequence][0], changes=kept[segment.sequence][1])
            for segment in own
            if segment.sequence in kept
        )
        if left:
            segments[group] = left
    return replace(manifest, segments=segments, history=(token,) if manifest.version else ())


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
