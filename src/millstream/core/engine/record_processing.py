"""Processing: runs the records that a task takes from its queues, and punctuates in between.

A run of records is processed in one of three ways:

* record by record, with the compiled functions;
* in columns: runs of one source are collected, and processed together when a run of another source follows or the step ends;
* by threads: runs are collected until they fill a block (``millstream.core.engine.threaded_nodes``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from millstream.core.engine import columns
from millstream.core.engine.compile import Call, Compiled, DueResults
from millstream.core.engine.recorder import Effects, replay
from millstream.core.engine.records.queue import Chunk, PartitionGroup, QueueId, RecordQueue
from millstream.core.engine.runtime import Piece, Runtime
from millstream.core.engine.threaded_nodes import Prefixes
from millstream.core.model.errors import StoreError
from millstream.core.model.ids import TopicPartition
from millstream.core.model.record import Times
from millstream.core.ports import Threads
from millstream.core.topology.analysis.ranges import needs_steps
from millstream.core.topology.nodes import Source
from millstream.core.topology.patterns import source_of
from millstream.core.topology.plan import SubTopology
from millstream.core.topology.processor import PunctuationType


class Processing:
    """Runs the records of a task. Owned by the task.

    Attributes:
        columnar: The columnar entries of the sources that have one, by name.
        threads: The part of the sub-topology that threads run; None if there is none.
    """

    def __init__(
        self, sub: SubTopology, compiled: Compiled, group: PartitionGroup, threads: Threads | None
    ) -> None:
        self._sub = sub
        self._compiled = compiled
        self._runtime: Runtime = compiled.runtime
        self._sources = {topic: source for source in sub.sources for topic in source.topics}
        self.threads = None if threads is None else Prefixes(sub, compiled, threads) or None
        self._timed = bool(compiled.clocks or compiled.contexts)
        """True if, in the task of a key range, a node or processor depends on the time of the whole partition."""
        self._with_steps = needs_steps(sub)
        self._range_time = RangeTime(
            compiled, group, lambda queue: self.source(queue.partition).name, self._advance
        )
        by_columns = self.threads is None and not compiled.clocks
        self.columnar = columns.entries(sub, compiled) if by_columns else {}
        self._collected: list[Piece] = []
        """Runs of one source that have been taken, to be processed together in columns."""
        self.processed = self.punctuated = 0

    def source(self, partition: TopicPartition) -> Source:
        """Return the source of a partition. A topic that matches the pattern of a source is added to the known topics.

        Raises:
            StoreError: If no source reads the topic.
        """
        source = self._sources.get(partition.topic)
        if source is None:
            source = source_of(self._sub.sources, partition.topic)
            if source is None:
                raise StoreError(
                    f"task {self._runtime.task_id} was fed records of {partition}, which is not one of its topics; this is a bug"
                )
            self._sources[partition.topic] = source
        return source

    def run(self, queue: RecordQueue, end: int) -> None:
        """Process the records of a queue's first chunk, up to but not including the index ``end``."""
        if self.threads is not None:
            return self._collect_for_threads(self.threads, queue, end)
        name, start = self._sources[queue.partition.topic].name, queue.index
        if name in self.columnar:
            return self._collect_columns(queue, end)
        self._run_columns()
        self._run_rows(Piece(queue, queue.chunks[0], start, end), self._compiled.entries[name])
        queue.remove_before(end)
        self.processed += end - start
        return None

    def pass_time(self, queue: RecordQueue) -> None:
        """Advance to the time of the partition after the last record of a key range."""
        chunk = queue.chunks[0]
        if self._timed:
            self.finish()
            self.leave_records()
            # The last step is complete only if no later records have been read: they may belong to it.
            self._range_time.move(queue, chunk.order[0], inclusive=len(queue.chunks) == 1)
            self._advance(queue, chunk.times_before(0))
        else:
            self._runtime.stream_time = max(self._runtime.stream_time, chunk.order[0])
        queue.remove_before(1)

    def finish(self) -> None:
        self._run_columns()
        if self.threads is not None:
            self._run_block(self.threads)

    def leave_records(self) -> None:
        self._runtime.partition = None
        self._runtime.chunk = None

    def punctuate(self, kind: PunctuationType, now_ms: int) -> None:
        runtime = self._runtime
        self.leave_records()
        while (schedule := runtime.punctuations.first_due(kind, now_ms)) is not None:
            schedule.advance(now_ms)
            self.punctuated += 1
            try:
                schedule.callback(now_ms)
            except Exception as error:
                runtime.on_error("process", schedule.node, error)
        runtime.refresh_due()

    def take_counts(self) -> tuple[int, int]:
        counts = self.processed, self.punctuated
        self.processed = self.punctuated = 0
        return counts

    def _advance(self, queue: RecordQueue, times: Times) -> None:
        """Advance stream time and the nodes downstream of a queue to the times of its partition."""
        runtime = self._runtime
        if times.all > runtime.stream_time:
            runtime.stream_time = times.all
        for clock in self._compiled.clocks_behind(self.source(queue.partition).name):
            clock(times)
        if runtime.stream_time >= runtime.due_stream_time:
            self.punctuate(PunctuationType.STREAM_TIME, runtime.stream_time)

    # In columns.

    def _collect_columns(self, queue: RecordQueue, end: int) -> None:
        """Collect a run, to be processed together with other runs of its source."""
        piece = Piece(queue, queue.chunks[0], queue.index, end)
        if self._collected and self._source_of(self._collected[0]) is not self._source_of(piece):
            self._run_columns()
        self._collected.append(piece)
        queue.remove_before(end)
        self._runtime.stream_time = max(self._runtime.stream_time, queue.partition_time)
        self.processed += end - piece.start

    def _run_columns(self) -> None:
        if self._collected:
            pieces, self._collected = self._collected, []
            self._runtime.take(pieces)
            entry = self.columnar[self._source_of(pieces[0]).name]
            entry.call(entry.columns(pieces))

    def _source_of(self, piece: Piece) -> Source:
        return self._sources[piece.queue.partition.topic]

    # By threads.

    def _collect_for_threads(self, threads: Prefixes, queue: RecordQueue, end: int) -> None:
        start, chunk = queue.index, queue.chunks[0]
        name = self._sources[queue.partition.topic].name
        queue.remove_before(end)
        self.processed += end - start
        while start < end:
            cut = min(end, start + threads.room)
            threads.set_aside(name, Piece(queue, chunk, start, cut))
            if not threads.room:
                self._run_block(threads)
            start = cut

    def _run_block(self, threads: Prefixes) -> None:
        """Process a block: threads run the first part of the topology, the task's thread runs the rest."""
        for name, piece, effects in threads.execute():
            entry: Call = self._compiled.entries[name] if effects is None else replay
            self._run_rows(piece, entry, effects)

    # Record by record.

    def _run_rows(self, piece: Piece, entry: Call, effects: list[Effects] | None = None) -> None:
        """Process a run record by record. If ``effects`` are given, they are passed in place of the keys."""
        queue, chunk, start, end = piece
        runtime, partition = self._runtime, queue.partition
        runtime.partition, runtime.chunk = partition, chunk
        # Slice instead of skipping the records before the run: alternating inputs would otherwise take quadratic time.
        columns: list[Any] = [chunk.keys, chunk.values, chunk.timestamps]
        if start:
            columns = [column[start:end] for column in columns]
        if effects is not None:
            columns[0] = effects
        headers = repeat(()) if chunk.headers is None else chunk.headers[start:end]
        rows: Iterable[tuple[Any, ...]] = zip(range(start, end), *columns, headers)
        if chunk.before is not None and self._timed:
            rows = self._in_time(rows, queue, chunk)
        for index, key, value, timestamp, header in rows:
            runtime.index = index
            if timestamp > runtime.stream_time:
                runtime.stream_time = timestamp
            entry(key, value, timestamp, header)
            if runtime.stream_time >= runtime.due_stream_time:
                self.punctuate(PunctuationType.STREAM_TIME, runtime.stream_time)
                runtime.partition, runtime.chunk = partition, chunk

    def _in_time(
        self, rows: Iterable[tuple[Any, ...]], queue: RecordQueue, chunk: Chunk
    ) -> Iterator[tuple[Any, ...]]:
        """Return the rows of a key range. Before each row, stream time advances to the time of the partition."""
        assert chunk.before is not None
        assert chunk.keyed_before is not None
        assert chunk.valued_before is not None
        before, keyed_before, valued_before = chunk.before, chunk.keyed_before, chunk.valued_before
        runtime, last = self._runtime, tuple(Times())
        for row in rows:
            index = row[0]
            self.leave_records()
            if self._with_steps:
                self._range_time.move(queue, chunk.order[index])
            times = before[index], keyed_before[index], valued_before[index]
            if times != last:
                last = times
                self._advance(queue, Times(*times))
            runtime.partition, runtime.chunk = queue.partition, chunk
            yield row


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
