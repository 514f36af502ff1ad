"""Task: processes a sub-topology for one partition group, in steps.

    task.feed(partition, records, position)   add records to the record queues
    task.inform(facts)                        set the facts about the inputs, for a task that waits for them
    task.step(now_ms, budget) -> Outcome      choose, process, punctuate, issue calls
    task.done(ticket, settled)                store the result of a call
    task.snapshot() / Task(..., snapshot)     save and restore the state besides the stores

The task uses no clock, client or file. The driver provides the time and the records, and carries out the outcome. It applies
``outcome.changes`` to the committed content of the stores before the next step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from millstream.core.asynchronous.call import Call as AsyncCall
from millstream.core.asynchronous.call import Settled, Ticket
from millstream.core.asynchronous.operator_state import first_due
from millstream.core.engine import asynchronous as asynchronous  # how the nodes run
from millstream.core.engine import operators as operators
from millstream.core.engine.compile import Compiled
from millstream.core.engine.context import NodeContext
from millstream.core.engine.failures import cause
from millstream.core.engine.policy import ErrorPolicies
from millstream.core.engine.progress import TaskProgress
from millstream.core.engine.record_processing import Processing, Reading
from millstream.core.engine.records.dividing import append
from millstream.core.engine.records.queue import PartitionGroup, QueueId, RecordQueue
from millstream.core.engine.records.readiness import InputFacts, Readiness
from millstream.core.engine.runtime import Runtime
from millstream.core.engine.step_outcome import Outcome, Snapshot, TaskMetrics, take_counts
from millstream.core.model.calls import Calls
from millstream.core.model.durations import earliest
from millstream.core.model.errors import ProcessingError, StoreError
from millstream.core.model.ids import TaskId, TopicPartition
from millstream.core.model.record import Records
from millstream.core.ports import ByteStores, Threads
from millstream.core.state.opening import open_store
from millstream.core.state.readonly import read_only
from millstream.core.taps.samples import Taps
from millstream.core.topology.plan import SubTopology
from millstream.core.topology.processor import PunctuationType


def _unknown(topic: str) -> int:
    return 0


class Task:
    """One task. Owned by one thread.

    Args:
        global_stores: Content of the global stores; None if the topology has none.
        partitions_of: Returns the number of partitions of a topic, for partitioners; 0 if unknown.
        most_bytes_of: Returns the maximum size of a record for a topic in bytes; 0 if unknown.
        max_task_idle_ms: How long to wait for an empty input, once :meth:`inform` has been called; -1 to wait for no input.
        cache_bytes: Limit of the total size of all caches; with 0, every update is forwarded.
        snapshot: The last return value of :meth:`snapshot`; None for a new task.
        epoch: Identifies the attempt at the micro-batch, to distinguish calls of different attempts.
        repeats_sends: True if a repeated micro-batch sends its records again. If False, the sends of a failed attempt may be final, so
            results of calls are stored in one step and applied in the next: the sends of a step depend only on committed state.
        threads: The threads that call the functions of stateless operators; None for the thread that owns the task.
        taps: Nodes whose records are sampled. Nodes of other sub-topologies are ignored.

    Source: KIP-28, "Architecture Design"; Kafka Streams ``StreamTask``.
    """

    def __init__(
        self,
        sub: SubTopology,
        task_id: TaskId,
        *,
        application_id: str,
        stores: ByteStores,
        global_stores: ByteStores | None = None,
        policies: ErrorPolicies | None = None,
        partitions_of: Callable[[str], int] = _unknown,
        most_bytes_of: Callable[[str], int] = _unknown,
        max_task_idle_ms: int = 0,
        cache_bytes: int = 0,
        app_config: Mapping[str, Any] | None = None,
        snapshot: Snapshot | None = None,
        epoch: str = "",
        repeats_sends: bool = True,
        threads: Threads | None = None,
        taps: Collection[str] = (),
    ) -> None:
        snapshot, policies = snapshot or Snapshot(), policies or ErrorPolicies()
        self.id = task_id
        self.stores: dict[str, Any] = {}
        self._runtime = Runtime(
            application_id, task_id, self.stores, policies, partitions_of, most_bytes_of=most_bytes_of
        )
        self._runtime.app_config = app_config or {}
        self._runtime.stream_time = snapshot.stream_time_ms
        self._runtime.epoch = epoch
        self._runtime.repeats_sends = repeats_sends
        for name, spec in sub.stores.items():
            self.stores[name] = open_store(spec, stores, self._runtime, snapshot.stores.get(name, {}))
        self._runtime.global_stores = _to_read(sub, global_stores)
        remembered = {node.remembered_as for node in sub.nodes.values()}
        self._runtime.memories = {
            name: dict(kept) for name, kept in snapshot.operators.items() if name in remembered
        }
        self._taps = Taps([node for node in taps if node in sub.nodes])
        self._runtime.taps = self._taps.points()
        self._sub = sub
        self._compiled = Compiled(sub, self._runtime, cache_bytes)
        self._async_operators = self._runtime.async_operators[::-1]
        self.calls: Mapping[str, Calls] = {
            operator.name: operator.calls for operator in self._async_operators if operator.calls is not None
        }
        self._group = PartitionGroup(
            {p: RecordQueue(p, time) for p, time in snapshot.partition_times.items()}
        )
        self._processing = Processing(sub, self._compiled, self._group, threads)
        self._reading = Reading(sub.sources, self._processing.columnar, self._runtime)
        self._readiness = Readiness(max_task_idle_ms, snapshot.deadlines, snapshot.waiting)
        self._restored = snapshot
        self._taken = dict(snapshot.taken)
        self._read_again: set[QueueId] = set()
        """The queues that have been read again up to where all records are new. A part that is fed later in the same step may contain
        earlier offsets, because the parts of a merged lane are in the order of time."""
        self._keeps_progress = bool(self._async_operators) or (sub.ranges > 1 and bool(sub.changelogs))
        self._progress = TaskProgress(self._group, snapshot.progress, self._runtime.unfinished_offsets)
        self._enforced = 0

    def init(self, now_ms: int) -> None:
        """Call ``init`` of each processor, in the order of the topology, and restore schedules and buffered records."""
        self._runtime.now_ms = now_ms
        for context in self._compiled.contexts:
            self._call_lifecycle_method(context.init, "init", context)
        processors = {context._node: context.processor for context in self._compiled.contexts}
        self._runtime.punctuations.restore(self._restored.schedules, processors)
        self._runtime.refresh_due()
        for (partition, lane), records in self._restored.buffered.items():
            queue = self._group.queue(QueueId(partition, lane))
            self._append(queue, records, self._restored.positions[queue.id])

    def close(self) -> None:
        """Call ``close`` of each processor, even if another ``close`` fails.

        Raises:
            ProcessingError: The first error, if a ``close`` raises.
        """
        failed: ProcessingError | None = None
        for context in self._compiled.contexts:
            try:
                self._call_lifecycle_method(context.processor.close, "close", context)
            except ProcessingError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def feed(self, partition: TopicPartition, records: Records, position: int, *, lane: str = "") -> None:
        """Append records to the queue of their partition.

        Args:
            partition: The partition of the records. Its topic belongs to a source of the sub-topology.
            records: The records that follow those fed before, in offset order or, in a merged lane, in processing order.
            position: The offset up to which the partition has been read, which may be beyond the last record. In a merged lane, it counts
                the records, and is an offset only once everything that the step processes has been fed.
            lane: The lane of shuffled or merged records. Each lane has a separate queue.

        Raises:
            DeserializationError: If a record does not fit the source's serdes, under the policy "fail".
        """
        queue = self._group.queue(QueueId(partition, lane))
        if (taken := self._taken.get(queue.id)) is not None:
            records = records.beyond(taken)
            if position >= taken:
                self._read_again.add(queue.id)
            position = max(position, taken)
        self._append(queue, records, position)

    def _forget_taken(self) -> None:
        """Skip no more records in the queues whose records have all been read again."""
        self._taken = {queue: taken for queue, taken in self._taken.items() if queue not in self._read_again}
        self._read_again.clear()

    def _append(self, queue: RecordQueue, records: Records, position: int) -> None:
        source = self._processing.source(queue.partition)
        chunk = self._reading.chunk(source, queue, records)
        if records.times is None:
            queue.append(chunk, position)
        else:
            append(queue, chunk, records.times, position)

    def inform(self, facts: InputFacts) -> None:
        """Set the facts about the inputs. Without facts, the task does not wait for inputs."""
        self._readiness.inform(facts)

    def step(self, now_ms: int, budget: int | None = None, *, rests: bool = False) -> Outcome:
        """Process buffered records, smallest head timestamp first, call due punctuators, flush the caches and issue calls.

        Args:
            rests: Whether the sub-topology is paused. Then wall-clock punctuators are not called.

        Raises:
            MillstreamError: If a record fails under the policy "fail".
        """
        runtime, processing = self._runtime, self._processing
        self._note_unfinished()
        self._forget_taken()
        runtime.now_ms = now_ms
        runtime.active, runtime.stopped_by = True, None
        try:
            for operator in runtime.async_operators:  # downstream first: their records came earlier
                operator.collect()
            if self._readiness.active:
                self._take_ready(now_ms, budget)
            else:
                self._take_all(budget)
            processing.finish()
            runtime.punctuations.follow_clock(now_ms)
            if not rests:
                processing.punctuate(PunctuationType.WALL_CLOCK_TIME, now_ms)
            self._close_idle(now_ms)
            self._compiled.caches.flush()
            processing.leave_records()
            issue = self._issue() if self._async_operators else ()
            if runtime.stopped_by is not None:  # a function of the user has caught it
                raise runtime.stopped_by
        finally:
            runtime.active = False
            processing.leave_records()
        return self._outcome(issue)

    def done(self, ticket: Ticket, settled: Settled) -> None:
        """Store the result of a call. The next step applies its effects.

        Args:
            ticket: The ticket of the call. The result is ignored if the record has finished or has been issued again.
        """
        for operator in self._async_operators:
            if operator.name == ticket.operator:
                operator.done(ticket, settled)

    def under_way(self) -> tuple[Ticket, ...]:
        """Return the tickets of issued calls without a result, from this micro-batch and earlier ones."""
        return tuple(ticket for operator in self._async_operators for ticket in operator.under_way())

    def lost(self, tickets: Iterable[Ticket]) -> None:
        """Take back calls that the async worker has lost. The next step issues them again, as the same attempts."""
        operators_by_name = {operator.name: operator for operator in self._async_operators}
        for ticket in sorted(tickets, reverse=True):  # each is put at the head of its key queue
            operators_by_name[ticket.operator].lost(ticket)

    def _issue(self) -> tuple[AsyncCall, ...]:
        issue = tuple(call for operator in self._async_operators for call in operator.issue())
        for operator in self._async_operators:
            operator.save()
        return issue

    def _take_all(self, budget: int | None) -> None:
        left = budget
        while (chosen := self._group.choose()) is not None and (left != 0 or chosen[0].at_time):
            left = self._take(*chosen, left)

    def _take_ready(self, now_ms: int, budget: int | None) -> None:
        """Process buffered records until the task must wait for an input."""
        ready, left = self._readiness, budget
        ready.begin(now_ms)
        while (chosen := ready.choose(self._group)) is not None and (left != 0 or chosen[0].at_time):
            enforced, before = ready.enforced, self._processing.processed
            left = self._take(*chosen, left)
            ready.update_after_take(chosen[0])
            if enforced:
                self._enforced += self._processing.processed - before
        ready.finish(self._group)

    def _take(self, queue: RecordQueue, end: int, left: int | None) -> int | None:
        """Process a run within the budget. Return the rest of the budget."""
        if queue.at_time:
            self._processing.pass_time(queue)
            return left
        end = end if left is None else min(end, queue.index + left)
        left = left if left is None else left - (end - queue.index)
        self._processing.run(queue, end)
        return left

    def snapshot(self) -> Snapshot:
        """Return the state that a restart needs besides the stores."""
        queues = self._group.queues
        return Snapshot(
            self._runtime.stream_time,
            {p: q.partition_time for p, q in queues.items() if q.partition_time >= 0},
            self._runtime.punctuations.to_data(),
            {p: q.buffered() for p, q in queues.items() if q.chunks},
            {p: q.position for p, q in queues.items() if q.chunks and q.position is not None},
            {name: memory for name, store in self.stores.items() if (memory := store.memory())},
            {name: dict(memory) for name, memory in self._runtime.memories.items() if memory},
            dict(self._readiness.deadlines),
            self._readiness.waiting,
            self._progress.by_partition() if self._keeps_progress else {},
            self._taken,
        )

    @property
    def has_processors(self) -> bool:
        """True if the task runs processors, whose attributes are lost when the task ends."""
        return bool(self._compiled.contexts)

    def buffered_count(self) -> int:
        return self._group.buffered_count()

    def _note_unfinished(self) -> None:
        """Count unfinished records as input of idle operators, also in the step in which they end."""
        for node, clock in self._runtime.idle_clocks.items():
            if self._compiled.has_unfinished(node):
                clock.note_input()

    def _close_idle(self, now_ms: int) -> None:
        """Close the open windows of idle operators, upstream operators first."""
        clocks = self._runtime.idle_clocks
        if clocks:
            quiet = not self.buffered_count() and self._readiness.quiet
            for node, clock in reversed(clocks.items()):
                self._compiled.caches.flush()
                clock.step(now_ms, quiet=quiet, waits=self._compiled.has_unfinished(node))

    # Results.

    def _outcome(self, issue: tuple[AsyncCall, ...]) -> Outcome:
        runtime = self._runtime
        sends = runtime.take_sends()
        metrics = self._take_metrics()
        ready = self._readiness
        idle_until_ms = ready.wake_at_ms()
        attempts_due_ms = first_due(self._async_operators)  # reads stores, so call it before they are drained
        drained = [store.drain() for store in self.stores.values()]
        outcome = Outcome(
            sends,
            {name: changes for store in drained for name, changes in store.changes.items()},
            self._progress.committable(),
            earliest(
                runtime.punctuations.next_due(PunctuationType.WALL_CLOCK_TIME),
                idle_until_ms,
                attempts_due_ms,
                *(clock.wake_at_ms for clock in runtime.idle_clocks.values()),
            ),
            runtime.stream_time,
            runtime.commit_requested,
            metrics,
            tuple(runtime.notices),
            tuple(name for store in drained for name in store.dropped),
            ready.waiting,
            {q.id: size for q in self._group.queues.values() if (size := q.buffered_size()).records},
            ready.given_up() if ready.active else (),
            idle_until_ms,
            issue,
            attempts_due_ms,
            {operator.name: operator.figures() for operator in self._async_operators},
            None if (threads := self._processing.threads) is None else threads.take_figures(),
            self._progress.lowest_shuffled() if self._async_operators else {},
            self._taps.take(runtime.now_ms),
        )
        runtime.notices.clear()
        runtime.commit_requested = False
        return outcome

    def _take_metrics(self) -> TaskMetrics:
        runtime = self._runtime
        processed, combined, punctuated = self._processing.take_counts()
        merged, cache_bytes = self._compiled.caches.take_counts()
        metrics = TaskMetrics(
            processed,
            take_counts(runtime.dropped),
            punctuated,
            self._enforced,
            combined + merged,
            cache_bytes,
            take_counts(runtime.counted),
            take_counts(runtime.failures),
            combined,
        )
        self._enforced = 0
        return metrics

    def _call_lifecycle_method(self, call: Callable[[], None], what: str, context: NodeContext) -> None:
        try:
            call()
        except Exception as error:
            raise ProcessingError(
                f"{what}() of {type(context.processor).__name__}, the processor of {context._node!r}, failed in task {self.id}: {cause(error)}"
            ) from error


def _to_read(sub: SubTopology, global_stores: ByteStores | None) -> dict[str, Any]:
    if not sub.global_stores:
        return {}
    if global_stores is None:
        raise StoreError(
            f"a task of sub-topology {sub.id} was created without the global stores {', '.join(sub.global_stores)}; "
            "this is a bug"
        )
    return {name: read_only(open_store(spec, global_stores)) for name, spec in sub.global_stores.items()}
