"""The time of a key range's task, which is that of the whole partition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from millstream.core.engine.compile import Compiled, DueResults
from millstream.core.engine.records.queue import PartitionGroup, QueueId, RecordQueue
from millstream.core.model.record import Times

Order = tuple[int, QueueId]
"""The order in which a task takes records: by the running maximum of the partition, then by the queue."""


@dataclass(frozen=True)
class RangeTime:
    """Advances the time of a key range's task: it is the time of the whole partition, not of the task's own records. Owned by the task.

    Before each record, the operators advance to the time of the partition at that record. With several inputs, they also advance to the
    times of the other partitions, as far as an undivided task would have taken their records: those with smaller running maxima.

    Some operators emit due results at the next record, even a record of another key range. If results are due, the task stops at the
    first step with such a record.

    Args:
        source_of: Returns the name of the source that reads a queue.
        advance: Advances the operators downstream of a queue.
    """

    compiled: Compiled
    group: PartitionGroup
    source_of: Callable[[RecordQueue], str]
    advance: Callable[[RecordQueue, Times], None]

    def move(self, queue: RecordQueue, time: int, *, inclusive: bool = False) -> None:
        """Advance to the time before a record.

        Args:
            inclusive: True if all records of the queue with this running maximum precede the record.
        """
        end = (time, queue.id)
        while (first := self._first_due(end, inclusive=inclusive)) is not None:
            step, results = first
            self._pass(step, inclusive=True)
            results.emit()
        self._pass(end, inclusive=inclusive)

    def _first_due(self, end: Order, *, inclusive: bool) -> tuple[Order, DueResults] | None:
        """Return the first step before the end at which results are due."""
        first: tuple[Order, DueResults] | None = None
        for results in self.compiled.due_results:
            due, sources = results.due(), self.compiled.sources_of(results.node)
            for queue in self.group.queues.values():
                if self.source_of(queue) not in sources or (time := queue.steps.first_complete(due)) is None:
                    continue
                step = (time, queue.id)
                is_before = step < end or (inclusive and step == end)
                if is_before and (first is None or step < first[0]):
                    first = step, results
        return first

    def _pass(self, end: Order, *, inclusive: bool) -> None:
        """Pass the steps of all queues before the end."""
        time, queue_id = end
        for queue in self.group.queues.values():
            up_to = inclusive if queue.id == queue_id else queue.id < queue_id
            times = queue.steps.pass_until(time, inclusive=up_to)
            if times is not None:
                self.advance(queue, times)
