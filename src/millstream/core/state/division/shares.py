"""Shares: the part of a task's state that each task with a smaller key range takes over.

The log is divided key group by key group. A share has fewer keys, so its key groups are split fewer times: it has about as many changes in
each of them as the divided log had. The segments of a key group become one, with the newest change of each key. Each share receives a full
copy of the state that is kept per task, such as stream time, the time of the partition and the schedules of punctuators, because all key
ranges share the time of their partition.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from millstream.core.model.errors import StoreError
from millstream.core.model.ids import TaskId
from millstream.core.model.partitioning import range_of
from millstream.core.ports import StoreChange
from millstream.core.state.division.entry_keys import EntryKey
from millstream.core.state.segments.key_groups import MORE_BITS, KeyGroup, raised
from millstream.core.state.segments.log import Manifest, Segment, catch_up, split_groups
from millstream.core.topology.evolution import Remembered
from millstream.core.topology.plan import Plan

_MOST_SPLITS: Final = 2
"""Number of splits that a division undoes at most, because all segments below a key group are in memory together."""


@dataclass(frozen=True)
class Division:
    """How each task of a sub-topology is divided.

    Attributes:
        before: Number of key ranges per partition until now; 1 without key ranges.
        ranges: New number of key ranges per partition, a multiple of ``before``.
    """

    before: int
    ranges: int

    def tasks(self, task: TaskId) -> list[TaskId]:
        """Return the tasks that take over the state of a task.

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
        """Return the changes for each task that takes over part of a task's state. Tasks without changes are omitted.

        Raises:
            StoreError: If a key is not in the range of the task.
        """
        shares: dict[int, list[StoreChange]] = defaultdict(list)
        for change in changes:
            shares[range_of(key_of(change[0]), self.ranges)].append(change)
        return {self.task_of(task, number): share for number, share in shares.items()}

    def task_of(self, task: TaskId, number: int) -> TaskId:
        """Return the task that takes over the keys of a task that are in a new range of the partition.

        Raises:
            StoreError: If the keys of the range do not belong to the task.
        """
        found = TaskId(task.subtopology, task.partition // self.before * self.ranges + number)
        if found not in self.tasks(task):
            raise StoreError(
                f"the state of task {task} cannot be divided: it has keys of other key ranges. Leave parallelism= as it was"
            )
        return found


class ShareGroup(NamedTuple):
    """A key group of all shares of a task.

    Attributes:
        merged: The segments of the divided log that contain its changes, oldest first.
        lowest: Whether it has no key groups below it. Then its deletions hide nothing.
    """

    group: KeyGroup
    merged: tuple[Segment, ...]
    lowest: bool


def share_groups(manifest: Manifest, division: Division) -> list[ShareGroup]:
    """Return the key groups of the shares. The sequence of a segment of a share is the position of its key group."""
    more_bits = (division.ranges // division.before).bit_length() - 1
    splits = min(more_bits // MORE_BITS, _MOST_SPLITS)
    merged: dict[KeyGroup, list[Segment]] = defaultdict(list)
    for (store, number), segment in catch_up(manifest, None) or ():
        merged[store, raised(number, splits)].append(segment)
    split = split_groups(merged)
    return [ShareGroup(group, tuple(segments), group not in split) for group, segments in merged.items()]


def manifest_of_share(
    manifest: Manifest, groups: list[ShareGroup], kept: Mapping[int, tuple[int, int]], token: str
) -> Manifest:
    """Return the manifest of a share.

    The history is cleared, because no local copy of a task with these keys or this number matches the content of the share.

    Args:
        manifest: The manifest of the divided log.
        kept: Bytes and number of changes of each segment of the share, by sequence.
    """
    segments = {}
    for sequence, (size, changes) in sorted(kept.items()):
        group, merged, lowest = groups[sequence]
        upto = max(segment.upto for segment in merged)
        since = upto if lowest else min(segment.since for segment in merged)
        segments[group] = (Segment(sequence, since, upto, size, lowest, changes),)
    history = (token,) if manifest.version else ()
    return replace(manifest, segments=segments, next_sequence=len(groups), history=history)


def divisions(plan: Plan, before: Remembered) -> dict[int, Division]:
    """Return the division of the tasks of each sub-topology that is divided, by number of the sub-topology.

    Args:
        before: The topology of the checkpoint. Its routing must be compatible with the plan.
    """
    routes = before.routing.routes
    found = {}
    for sub in plan.subtopologies:
        known = {routes[topic].ranges for topic in sub.source_topics if topic in routes}
        if sub.stores and sub.id in before.parts and known and sub.ranges > max(known):
            found[sub.id] = Division(max(known), sub.ranges)
    return found
