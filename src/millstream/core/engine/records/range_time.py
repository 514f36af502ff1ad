"""Range time: the task of a key range has the time of the partition, not that of its own records.

In front of each record, the operators move on to the time of the partition there. With several inputs, that is also the time of the
other partitions, as far as an undivided task would have taken their records by then: those with smaller running maxima.

Some operators emit results that are due at the next record, whatever its key, so it may be one of another range. Where results are due,
the task stops at the first step with such a record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from millstream.core.engine.compile import Compiled, DueResults
from millstream.core.engine.records.queue import PartitionGroup, QueueId, RecordQueue
from millstream.core.model.record import Times

Order = tuple[int, QueueId]
"""What decides the order in which a task takes records: the running maximum of the partition, then the queue."""


@dataclass(frozen=True)
class RangeTime:
    """Moves the time of a task that has a key range. Owned by the task.

    Args:
        compiled: The functions of the task.
        group: The queues of the task.
        source_of: Returns the name of the source that reads a queue.
        advance: Moves the operators behind a queue on to times.
    """

    compiled: Compiled
    group: PartitionGroup
    source_of: Callable[[RecordQueue], str]
    advance: Callable[[RecordQueue, Times], None]

    def move(self, queue: RecordQueue, time: int, *, inclusive: bool = False) -> None:
        """Move on to the time in front of a record.

        Args:
            queue: The queue of the record.
            time: The running maximum of the partition at the record.
            inclusive: Whether all records of the queue with this running maximum are in front of the record.
        """
        end = (time, queue.id)
        while (first := self._first_due(end, inclusive=inclusive)) is not None:
            step, results = first
            self._pass(step, inclusive=True)
            results.emit()
        self._pass(end, inclusive=inclusive)

    def _first_due(self, end: Order, *, inclusive: bool) -> tuple[Order, DueResults] | None:
        """Return the first step before the end at which results are due, with these."""
        first: tuple[Order, DueResults] | None = None
        for results in self.compiled.due_results:
            due = results.due()
            for queue in self._queues_of(results):
                time = queue.steps.first_complete(due)
                if time is None:
                    continue
                step = (time, queue.id)
                is_before = step < end or (inclusive and step == end)
                if is_before and (first is None or step < first[0]):
                    first = step, results
        return first

    def _queues_of(self, results: DueResults) -> Iterable[RecordQueue]:
        sources = self.compiled.sources_of(results.node)
        return (queue for queue in self.group.queues.values() if self.source_of(queue) in sources)

    def _pass(self, end: Order, *, inclusive: bool) -> None:
        """Pass the steps of all queues before the end."""
        time, queue_id = end
        for queue in self.group.queues.values():
            up_to = inclusive if queue.id == queue_id else queue.id < queue_id
            times = queue.steps.pass_until(time, inclusive=up_to)
            if times is not None:
                self.advance(queue, times)
