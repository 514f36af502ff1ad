"""Runs the micro-batches of the test driver: all tasks of a topology, in one thread."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import partial

from millstream.core.engine.global_task import global_task
from millstream.core.engine.records.dividing import divided_by_key_range
from millstream.core.engine.records.readiness import NEVER_WAIT
from millstream.core.engine.step_outcome import Outcome, Snapshot
from millstream.core.engine.task import Task
from millstream.core.model.errors import MillstreamError, TopicNotFoundError
from millstream.core.model.ids import TaskId, TopicPartition
from millstream.core.model.record import Records
from millstream.core.model.serdes import bytes as bytes_serde
from millstream.core.runtime.inputs import Input, informed
from millstream.core.runtime.remaining_inputs import TaskInput
from millstream.core.state.memory import MemoryStores
from millstream.core.topology.analysis.ranges import needs_steps
from millstream.core.topology.async_nodes import unfinished_stores
from millstream.core.topology.internal import is_internal
from millstream.core.topology.layout import Layout, tasks_of_group
from millstream.core.topology.nodes import Sink, Source
from millstream.core.topology.patterns import check_one_source, mark_of, source_of
from millstream.core.topology.plan import Plan, SubTopology
from millstream.testing._calls import ManualAsyncWorker
from millstream.testing._runner_settings import RunnerSettings
from millstream.testing._tasks import Counters, DriverTask, Progress, Sent, Serdes
from millstream.testing._topics import DerivedRecords, TopicLogs
from millstream.testing.snapshot import DriverSnapshot, TaskState, stores_with


class DriverRunner:
    """Runs the tasks of a plan. Owned by the test driver.

    Attributes:
        tasks: All tasks. Tasks of global stores come first.
        sent: Records sent and not yet read, by topic.
        produced: The topics to which records have been sent.
        committable: Per partition, the offset before which every record is finished.
        unfinished: Unfinished records of asynchronous operators, by task and store.
    """

    def __init__(
        self,
        plan: Plan,
        layout: Layout,
        topics: TopicLogs,
        settings: RunnerSettings,
        begin: DriverSnapshot,
    ) -> None:
        settings.policies.check_nodes(plan)
        self.plan = plan
        self.layout = layout
        self.topics = topics
        self.now_ms = begin.wall_clock_ms
        self.tasks: dict[TaskId, DriverTask] = {}
        self.sent: dict[str, deque[Sent]] = defaultdict(deque)
        self.produced: set[str] = set()
        self.counters = Counters()
        self.committable = dict(begin.committable)
        self._finished: dict[TopicPartition, dict[TaskId, int]] = {}
        self.unfinished: dict[TaskId, dict[str, int]] = {}
        self.waiting: dict[TaskId, str] = {}
        self.global_stores = stores_with(begin.global_stores)
        self.settings = settings
        self._reader: dict[str, SubTopology] = {**plan.subtopology_of, **plan.global_part_of}
        self._coming: deque[tuple[TopicPartition, Records]] = deque()
        self._fed: set[TaskId] = set()
        self._derived = DerivedRecords(self.reading)
        self._depths = _shuffles_upstream(plan)
        self._async_worker: ManualAsyncWorker | None = None
        self._attempts_due: dict[TaskId, int] = {}
        self._inputs: Mapping[TaskId, tuple[Input, ...]] = {}
        self._begun: Progress | None = None
        if settings.max_task_idle_ms is not None:
            self._inputs = informed(plan, layout, waits=settings.max_task_idle_ms != NEVER_WAIT)
        ids = [TaskId(part.id, 0) for part in plan.global_parts]
        first = (task for sub in plan.subtopologies if sub.nodes for task in tasks_of_group(sub, 0))
        ids += sorted({*layout.tasks, *first})
        for task_id in ids:
            self._make(task_id, begin.tasks.get(task_id))
        for task_id in ids:
            self._start(self.tasks[task_id])

    @property
    def makes_calls(self) -> bool:
        return self._async_worker is not None

    @property
    def waits(self) -> bool:
        return self.settings.max_task_idle_ms is not None

    # TopicLogs.

    def reading(self, topic: str) -> SubTopology | None:
        """Return the sub-topology that reads a topic, or None. Registers a topic that matches only a pattern."""
        if topic not in self._reader and not is_internal(self.plan.application_id, topic):
            check_one_source((s for sub in self.plan.subtopologies for s in sub.sources), topic)
            for sub in self.plan.subtopologies:
                if source_of(sub.sources, topic) is not None:
                    self._reader[topic] = sub
        return self._reader.get(topic)

    def source(self, topic: str) -> Source:
        """Return the node that reads a topic."""
        sub = self.reading(topic) if isinstance(topic, str) else None
        if sub is None:
            patterns = (s.pattern for part in self.plan.subtopologies for s in part.sources if s.pattern)
            known = ", ".join([*self._reader, *map(mark_of, patterns)])
            raise TopicNotFoundError(f"the topology does not read topic {topic!r}; it reads: {known}")
        named = next((source for source in sub.sources if topic in source.topics), None)
        return named or next(source for source in sub.sources if source_of([source], topic))

    # Micro-batches.

    def micro_batch(self, records: list[tuple[TopicPartition, Records]]) -> None:
        """Process records, and all records and calls that result from them, to the end."""
        try:
            self.begin(sum(len(given) for _, given in records))
            for partition, given in records:
                self._feed(partition, given)
            self._run()
        except BaseException as error:
            self._give_up(error)
            raise
        self._begun = None

    def advance(self, to_ms: int) -> None:
        """Advance the wall clock, stopping at each time at which a call ends or a retry is due."""
        try:
            self._advance(to_ms)
        except BaseException as error:
            self._give_up(error)
            raise
        self._begun = None

    def _give_up(self, error: BaseException) -> None:
        """Roll back after a failure, and send the dead letter of the record that stops the topology."""
        self._roll_back()
        if isinstance(error, MillstreamError) and error.letter is not None:
            (topic, records), error.letter = error.letter, None
            self._send(TaskId(0, 0), topic, records)

    def _advance(self, to_ms: int) -> None:
        worker = self._async_worker
        while worker is not None and self.now_ms < to_ms:
            due = [due_ms for due_ms in self._attempts_due.values() if due_ms > self.now_ms]
            worker.advance(min([to_ms, *due]))
            self.now_ms = worker.now_ms
            if self.now_ms < to_ms:
                self.begin()
                self._run()
        self.now_ms = to_ms
        self.begin()
        for each in self.tasks.values():
            self._carry_out(each, each.step(to_ms, None))
        self._run()

    def begin(self, records: int = 0) -> None:
        self._derived.begin(records)
        self._begun = Progress(
            dict(self.topics.ends),
            dict(self.committable),
            {partition: dict(tasks) for partition, tasks in self._finished.items()},
            dict(self.unfinished),
            dict(self.waiting),
            self.counters.numbers(),
        )
        for each in self.tasks.values():
            each.begin(self.now_ms)
            self._inform(each)

    def _roll_back(self) -> None:
        """Return to the beginning of the micro-batch, as if its commit had failed. Sent records stay sent."""
        begun, self._begun = self._begun, None
        if begun is None:  # nothing has been processed since the last commit
            return
        self.topics.ends = defaultdict(int, begun.ends)
        self.committable, self._finished = dict(begun.committable), begun.finished
        self.unfinished, self.waiting = begun.unfinished, begun.waiting
        self.counters = Counters.of(begun.numbers)
        for each in self.tasks.values():
            each.roll_back()
        self._coming.clear()
        self._fed.clear()
        self._attempts_due.clear()
        if self._async_worker is not None:
            self._async_worker.close()
            self._async_worker = None
        for each in self.tasks.values():
            with suppress(
                Exception
            ):  # the error that is being raised; the next micro-batch initialises again
                self._init(each)

    def close(self, *, gently: bool = True) -> None:
        """Cancel calls that have not ended. Close the processors of every task, unless this is a crash."""
        if self._async_worker is not None:
            self._async_worker.close()
        with ExitStack() as closing:
            for each in reversed(self.tasks.values() if gently else ()):
                closing.callback(each.task.close)

    def _feed(self, partition: TopicPartition, records: Records) -> None:
        position, tasks = self.topics.appended(partition, records), self._tasks_of(partition)
        parts = [records]
        if len(tasks) > 1:
            parts = divided_by_key_range(
                records, len(tasks), with_steps=needs_steps(self._reader[partition.topic])
            )
        for each, part in zip(tasks, parts):
            each.task.feed(partition, part, position)
            self._fed.add(each.id)

    def _feed_derived(self) -> None:
        """Feed the first of the records that tasks have sent to topics of the topology."""
        partition, records = self._coming.popleft()
        self._derived.add(partition.topic, len(records))
        self._feed(partition, records)

    def _run(self) -> None:
        """Step the tasks with input until no input is left, then each task that has not stepped yet."""
        stepped: set[TaskId] = set()
        while True:
            while self._fed:
                fed = self._fed
                task_id = next(iter(fed)) if len(fed) == 1 else min(fed, key=self._order)
                each = self.tasks[task_id]
                fed.remove(task_id)
                stepped.add(each.id)
                self._steps(each)
                while self._coming and self._gathers:
                    self._feed_derived()
            if self._async_worker is not None and (settled := self._async_worker.work()):
                for task_id, ticket, answer in settled:
                    self.tasks[task_id].task.done(ticket, answer)
                    self._fed.add(task_id)
            elif self._coming:
                self._feed_derived()
            elif stepped.issuperset(self.tasks):
                return
            else:
                self._fed.add(next(task_id for task_id in self.tasks if task_id not in stepped))

    @property
    def _gathers(self) -> bool:
        """Whether a task receives all available records before it steps, as on Spark, instead of one delivery at a time."""
        return not self.settings.one_by_one or self.waits

    def _order(self, task: TaskId) -> tuple[int, TaskId]:
        """Return a sort key: within a micro-batch, a task runs after the tasks that feed it through Spark's shuffle."""
        return self._depths.get(task.subtopology, -1), task

    def _steps(self, each: DriverTask) -> None:
        """Process the task's buffered records: all in one step, or one step (and commit) per record with ``one_by_one``."""
        budget = 1 if self.settings.one_by_one else None
        taken = 1
        self._carry_out(each, each.step(self.now_ms, budget))
        while taken and each.task.buffered_count():
            outcome = each.step(self.now_ms, budget)
            taken = outcome.metrics.processed
            self._carry_out(each, outcome)

    def _inform(self, each: DriverTask) -> None:
        """Pass a task the state of its inputs if it waits for them. Withheld records count as lag on the broker."""
        inputs = self._inputs.get(each.id)
        if inputs is not None:
            lag = {i.partition: n for i in inputs if (n := sum(map(self.topics.withheld_records, i.feeders)))}
            each.task.inform(TaskInput(lag).facts(inputs))

    def _carry_out(self, each: DriverTask, outcome: Outcome) -> None:
        self.counters.add(outcome)
        for partition, offset in outcome.committable.items():
            self._finished.setdefault(partition, {})[each.id] = offset
            self.committable[partition] = min(self._finished[partition].values())
        if outcome.calls:
            stores = unfinished_stores(self._part(each.id.subtopology).nodes.values())
            self.unfinished[each.id] = {
                stores[name]: figures.unfinished for name, figures in outcome.calls.items()
            }
        self.waiting.pop(each.id, None)
        if outcome.waiting is not None:
            self.waiting[each.id] = outcome.waiting.line()
        if self._async_worker is not None:
            self._async_worker.offer(each.id, outcome.issue)
            self._attempts_due.pop(each.id, None)
            if outcome.attempts_due_ms is not None:
                self._attempts_due[each.id] = outcome.attempts_due_ms
        for topic, records in outcome.sends:
            self._send(each.id, topic, records)

    def _send(self, task: TaskId, topic: str, records: Records) -> None:
        self.produced.add(topic)
        serdes, is_read = self._serdes(task, topic), self.reading(topic) is not None
        for partition, routed in self.topics.routed(topic, records):
            headers = routed.headers or [()] * len(routed)
            rows = zip(routed.keys, routed.values, routed.timestamps, headers)
            self.sent[topic].extend(Sent(*row, partition.partition, serdes, topic) for row in rows)
            if is_read:
                self._derived.sent(task.subtopology, topic)
                self._coming.append((partition, routed))

    def _serdes(self, task: TaskId, topic: str) -> Serdes:
        nodes = self._part(task.subtopology).nodes.values()
        sinks = [node for node in nodes if isinstance(node, Sink)]
        named = [sink for sink in sinks if sink.topic == topic]
        dead_letters = topic in self.settings.policies.topics | self.plan.failure_topics
        choosing = [sink for sink in sinks if callable(sink.topic) and not dead_letters]
        for sink in [*named, *choosing]:
            return sink.key, sink.value
        return bytes_serde, bytes_serde

    # Tasks.

    def _part(self, number: int) -> SubTopology:
        subs = self.plan.subtopologies
        return subs[number] if number < len(subs) else self.plan.global_parts[number - len(subs)]

    def _tasks_of(self, partition: TopicPartition) -> list[DriverTask]:
        """Return the tasks of a partition. For a topic that matches a pattern, they may be created here."""
        sub = self._reader[partition.topic]
        number = 0 if sub in self.plan.global_parts else partition.partition
        task_ids = self.layout.tasks_of.get(partition, tasks_of_group(sub, number))
        for task_id in task_ids:
            if task_id not in self.tasks:
                self._make(task_id, None)
                self._start(self.tasks[task_id])
        return [self.tasks[task_id] for task_id in task_ids]

    def _make(self, task_id: TaskId, state: TaskState | None) -> None:
        part = self._part(task_id.subtopology)
        snapshot = None if state is None else state.snapshot
        if part in self.plan.global_parts:
            stores = self.global_stores
            make = partial(self._global_task, part)
        else:
            stores = stores_with({} if state is None else state.content)
            make = partial(self._task, part, task_id, stores)
        kept = self.settings.keep_processors
        self.tasks[task_id] = DriverTask(make, stores, keep_processors=kept, snapshot=snapshot)

    def _task(
        self, part: SubTopology, task_id: TaskId, stores: MemoryStores, snapshot: Snapshot | None
    ) -> Task:
        settings = self.settings
        return Task(
            part,
            task_id,
            application_id=self.plan.application_id,
            stores=stores,
            global_stores=self.global_stores,
            policies=settings.policies,
            partitions_of=self.topics.partitions_of,
            max_task_idle_ms=settings.max_task_idle_ms or 0,
            cache_bytes=settings.cache_bytes,
            app_config=settings.app_config,
            snapshot=snapshot,
            threads=settings.threads,
        )

    def _global_task(self, part: SubTopology, snapshot: Snapshot | None) -> Task:
        return global_task(
            part,
            application_id=self.plan.application_id,
            stores=self.global_stores,
            policies=self.settings.policies,
            app_config=self.settings.app_config,
            snapshot=snapshot,
        )

    def _start(self, each: DriverTask) -> None:
        """Initialise a task, and let it reissue the calls that were in flight when its snapshot was taken."""
        self._init(each)
        self._carry_out(each, each.step(self.now_ms, None))

    def _init(self, each: DriverTask) -> None:
        task = each.task
        if task.calls:
            if self._async_worker is None:
                self._async_worker = ManualAsyncWorker(self.now_ms)
            self._async_worker.add(each.id, task.calls)
        task.init(self.now_ms)
        self._inform(each)
        task.lost(task.under_way())


def _shuffles_upstream(plan: Plan) -> dict[int, int]:
    """Return, for each sub-topology, the largest number of Spark shuffles upstream of it."""
    shuffles = [topic for topic in plan.internal_topics.values() if topic.through_shuffle]
    depths = dict.fromkeys((sub.id for sub in plan.subtopologies), 0)
    for _ in plan.subtopologies:
        for topic in shuffles:
            depths[topic.downstream] = max(depths[topic.downstream], depths[topic.upstream] + 1)
    return depths
