"""Reading and processing: deserialises the records of a task, runs those that it takes from its queues, and punctuates in between.

The records of a source are deserialised together or, if one of them fails, one at a time.

A run of records is processed in one of three ways:

* record by record, with the compiled functions;
* in columns: runs of one source are collected, and processed together when a run of another source follows or the step ends;
* by threads: runs are collected until they fill a block (``millstream.core.engine.threaded_nodes``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import repeat
from typing import Any

from millstream.core.engine.columns import checked, deserialised
from millstream.core.engine.compile import Call, Compiled, columnar_entries
from millstream.core.engine.failures import Attempt, Failure
from millstream.core.engine.recorder import Effects, replay
from millstream.core.engine.records.queue import Chunk, PartitionGroup, RecordQueue
from millstream.core.engine.records.range_time import RangeTime
from millstream.core.engine.runtime import Piece, Runtime
from millstream.core.engine.threaded_nodes import Prefixes
from millstream.core.model.errors import DeserializationError, MillstreamError, StoreError
from millstream.core.model.ids import TopicPartition
from millstream.core.model.record import Records, Times
from millstream.core.model.serdes import read
from millstream.core.model.timestamps import ConsumerRecord, wall_clock
from millstream.core.ports import Threads
from millstream.core.state.keys import FOREVER
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
        self.columnar = columnar_entries(sub, compiled) if by_columns else {}
        self._collected: list[Piece] = []
        """Runs of one source that have been taken, to be processed together in columns."""
        self.processed = self.combined = self.punctuated = 0

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
        self._count(queue.chunks[0], start, end)
        queue.remove_before(end)
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

    def take_counts(self) -> tuple[int, int, int]:
        """Return the number of processed records, of those that readers combined with others, and of punctuations; and reset them."""
        counts = self.processed, self.combined, self.punctuated
        self.processed = self.combined = self.punctuated = 0
        return counts

    def _count(self, chunk: Chunk, start: int, end: int) -> None:
        processed = chunk.represented(start, end)
        self.processed += processed
        self.combined += processed - (end - start)

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
        self._count(piece.chunk, piece.start, end)

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
        self._count(chunk, start, end)
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


class Reading:
    """Deserialises the records of a task. Owned by the task.

    Args:
        columnar: Names of the sources whose records are processed in columns.
    """

    def __init__(self, sources: Iterable[Source], columnar: Collection[str], runtime: Runtime) -> None:
        self._columnar, self._runtime = columnar, runtime
        self._readers = {
            source.name: [
                partial(checked if source.name in columnar else deserialised, serde)
                for serde in (source.key, source.value)
            ]
            for source in sources
        }

    def chunk(self, source: Source, queue: RecordQueue, records: Records) -> Chunk:
        """Deserialise records of a source for a queue. The error policies handle records that fail."""
        to_keys, to_values = self._readers[source.name]
        one_by_one = source.timestamp is not None or source.key.contextual or source.value.contextual
        if not one_by_one and min(records.timestamps, default=0) >= 0:
            with suppress(Exception):  # then deserialise one at a time, to find the bad records
                keys, values = to_keys(records.keys), to_values(records.values)
                return Chunk(records, None, keys, values, records.timestamps, records.headers)
        return self._one_by_one(source, queue, records)

    def _one_by_one(self, source: Source, queue: RecordQueue, records: Records) -> Chunk:
        """Deserialise records one at a time, because some may be bad or a timestamp extractor needs the partition time."""
        columnar = source.name in self._columnar
        raw_key, raw_value = (columnar and serde.verbatim is not None for serde in (source.key, source.value))
        rows: list[int] = []
        good = Chunk(records, rows, [], [], [], None if records.headers is None else [])
        partition_time = queue.newest_timestamp()
        for row in range(len(records)):
            record = self._deserialized_one(source, queue.partition, records, row, partition_time)
            if record is None:
                continue
            partition_time = max(partition_time, record.timestamp)
            rows.append(row)
            good.keys.append(records.keys[row] if raw_key else record.key)
            good.values.append(records.values[row] if raw_value else record.value)
            good.timestamps.append(record.timestamp)
            if good.headers is not None:
                good.headers.append(record.headers)
        return good

    def _deserialized_one(
        self, source: Source, partition: TopicPartition, records: Records, row: int, partition_time: int
    ) -> ConsumerRecord | None:
        key, value, timestamp = records.keys[row], records.values[row], records.timestamps[row]
        headers = records.headers[row] if records.headers is not None else ()
        raw = (partition, records.offsets[row], key, value, timestamp, headers)
        advice: str | None = None
        try:
            record = ConsumerRecord(
                *partition,
                records.offsets[row],
                timestamp,
                read(source.key, key, partition.topic, "key", headers),
                read(source.value, value, partition.topic, "value", headers),
                headers,
            )
            extract = "Set timestamp=... on the source to extract one"
            advice = extract if source.timestamp is None else "Correct or replace the timestamp extractor"
            record = self._with_timestamp(source, record, partition_time)
        except Exception as error:
            cause = MillstreamError(error.message) if isinstance(error, DeserializationError) else error
            again = Attempt(self._deserialized_one, (source, partition, records, row, partition_time))
            failure = Failure("deserialize", source.name, cause, raw, advice=advice)
            retried: ConsumerRecord | None = self._runtime.handle_failure(failure, again)
            return retried
        if record.timestamp < 0:
            self._runtime.drop("negative timestamp")
            return None
        return record

    def _with_timestamp(self, source: Source, record: ConsumerRecord, partition_time: int) -> ConsumerRecord:
        if source.timestamp is None:
            if record.timestamp < 0:
                raise DeserializationError("the record has no timestamp")
            return record
        by_clock = source.timestamp is wall_clock
        extracted = self._runtime.now_ms if by_clock else source.timestamp(record, partition_time)
        if not isinstance(extracted, int) or extracted > FOREVER:
            raise DeserializationError(
                f"the timestamp extractor returned {extracted!r} instead of an int of ms below 2**63"
            )
        return record._replace(timestamp=extracted)
