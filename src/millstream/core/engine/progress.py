"""Progress of a task: how far it has processed each partition, including unfinished records of asynchronous operators."""

from __future__ import annotations

from collections.abc import Mapping

from millstream.core.asynchronous.committable_offset import Progress, UnfinishedOffsets
from millstream.core.engine.records.queue import PartitionGroup
from millstream.core.model.ids import TopicPartition


class TaskProgress:
    """The progress of a task. Owned by the task."""

    def __init__(
        self,
        group: PartitionGroup,
        restored: Mapping[TopicPartition, Progress],
        unfinished: Mapping[TopicPartition, UnfinishedOffsets],
    ) -> None:
        self._group = group
        self._restored = restored
        self._unfinished = unfinished

    def positions(self) -> dict[TopicPartition, int]:
        """Return, per partition, the offset before which all records have been taken; also for partitions without new records."""
        before = {partition: progress.position for partition, progress in self._restored.items()}
        queues = self._group.queues.values()
        return before | {q.partition: offset for q in queues if (offset := q.committable()) is not None}

    def committable(self) -> dict[TopicPartition, int]:
        unfinished = self._unfinished
        return {
            partition: unfinished[partition].committable(position) if partition in unfinished else position
            for partition, position in self.positions().items()
        }

    def by_partition(self) -> dict[TopicPartition, Progress]:
        return {
            partition: self._unfinished.get(partition, UnfinishedOffsets()).progress(position)
            for partition, position in self.positions().items()
        }

    def lowest_shuffled(self) -> dict[TopicPartition, int]:
        """Return the lowest buffered or unfinished offset of each partition that is read through lanes."""
        straight = self.positions()
        low = {
            partition: lowest
            for partition, offsets in self._unfinished.items()
            if partition not in straight and (lowest := offsets.lowest()) is not None
        }
        for queue in self._group.queues.values():
            if queue.partition not in straight and (head := queue.head_offset()) is not None:
                low[queue.partition] = min(head, low.get(queue.partition, head))
        return low
