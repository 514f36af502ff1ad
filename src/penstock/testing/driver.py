"""TopologyTestDriver: a topology in one process, one record at a time, without broker, Spark or Java.

It drives the same tasks, through the same seam, as Spark does. Every topic has one partition. Each record is processed to
the end, through internal topics too, before ``pipe`` returns; changes of stores are committed after each step. A record of
a global topic is in its global store when ``pipe`` returns.

Calls of asynchronous operators run in this thread, by the same rules as anywhere. Those that take no time have ended when
``pipe`` returns. Coroutines that sleep, retries and delays go on as the wall clock is advanced; nothing waits for real.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from typing import Any

from typing_extensions import Self

from penstock.core.engine.caching import DEFAULT_CACHE_BYTES
from penstock.core.engine.global_task import global_task
from penstock.core.engine.outcome import Outcome
from penstock.core.engine.policy import ErrorPolicies
from penstock.core.engine.task import Task
from penstock.core.model.durations import Duration, millis
from penstock.core.model.errors import StoreError, TopicNotFoundError
from penstock.core.model.ids import TaskId, TopicPartition
from penstock.core.model.record import Headers, Record, Records
from penstock.core.model.serdes import Serde
from penstock.core.model.serdes import bytes as bytes_serde
from penstock.core.plan.internal import is_internal
from penstock.core.plan.nodes import Sink, Source
from penstock.core.plan.patterns import check_one_source, mark_of, source_of
from penstock.core.plan.split import Plan, SubTopology
from penstock.core.plan.threads import check_threads
from penstock.core.plan.topology import Topology
from penstock.core.state.memory import MemoryStores
from penstock.drivers.threads import TaskThreads
from penstock.testing._calls import ManualStation

_CALLS = {"calls_settled": "settled", "calls_retried": "retries", "calls_dead_lettered": "dead_letters"}
"""What is counted of calls, by the name of its metric."""


class TopologyTestDriver:
    """Runs a topology in this process.

    Args:
        topology: The topology.
        wall_clock_ms: The wall clock at the start, ms since the epoch; only :meth:`advance_wall_clock` moves it.
        application_id: What internal topics are named after.
        policies: What happens to records that fail; None stops with an error.
        statestore_cache_max_bytes: As the setting of an application. Caches are flushed after each record, so that they merge
            only updates of a row that one record makes; 0 forwards those too.
        app_config: What processors find in ``context.app_config``.
        num_threads_per_task: As the setting of an application. Each record is processed to the end before the next one, so
            functions are called in other threads, but one at a time.

    Raises:
        TopologyError: If the topology is not valid.
        SettingsError: If ``num_threads_per_task`` is no whole number, or below 1.

    Source: ``org.apache.kafka.streams.TopologyTestDriver``.

    Example:
        >>> import penstock as ps
        >>> builder = ps.StreamsBuilder()
        >>> builder.stream("in").map_values(str.upper).to("out")
        >>> with ps.testing.TopologyTestDriver(builder.build()) as driver:
        ...     driver.pipe("in", "k", "v", timestamp=5)
        ...     driver.read("out")
        [Record(key='k', value='V', timestamp=5, headers=())]
    """

    def __init__(
        self,
        topology: Topology,
        *,
        wall_clock_ms: int = 0,
        application_id: str = "test",
        policies: ErrorPolicies | None = None,
        statestore_cache_max_bytes: int = DEFAULT_CACHE_BYTES,
        app_config: Mapping[str, Any] | None = None,
        num_threads_per_task: int = 1,
    ) -> None:
        check_threads(num_threads_per_task, None)
        self._threads = TaskThreads(num_threads_per_task) if num_threads_per_task > 1 else None
        self._cache_bytes = statestore_cache_max_bytes
        self._plan: Plan = topology.plan(application_id)
        self._policies = policies or ErrorPolicies()
        self._app_config = app_config or {}
        self._now = wall_clock_ms
        self._global = MemoryStores()
        self._committed = {sub.id: MemoryStores() for sub in self._plan.subtopologies}
        self._committed |= {part.id: self._global for part in self._plan.global_parts}
        self._reader = {**self._plan.subtopology_of, **self._plan.global_part_of}
        self._offsets: dict[str, int] = defaultdict(int)
        self._sent: dict[str, deque[Record[Any, Any]]] = defaultdict(deque)
        self._waiting: deque[tuple[str, Records]] = deque()
        self._dropped = 0
        self._processed = 0
        self._counted: Counter[str] = Counter()
        self._calls: Counter[str] = Counter()
        self._tasks = {part.id: self._global_task(part) for part in self._plan.global_parts}
        self._tasks |= {sub.id: self._task(sub) for sub in self._plan.subtopologies}
        operators = {
            (number, at): how for number, task in self._tasks.items() for at, how in task.calls.items()
        }
        self._station = ManualStation(operators, wall_clock_ms) if operators else None
        self._attempts_due: dict[int, int] = {}
        self._committable: dict[str, int] = {}
        for number, task in self._tasks.items():
            task.init(self._now)
            self._carry_out(number, task.step(self._now))

    def pipe(self, topic: str, key: Any, value: Any, timestamp: int = 0, headers: Headers = ()) -> None:
        """Process one record to the end.

        Args:
            topic: A topic the topology reads, by its name or by a pattern.
            key: The key as an object of the source's serde, or None; bytes are taken as they are.
            value: The value, likewise.
            timestamp: Milliseconds since the epoch.
            headers: Name and value pairs.

        Raises:
            TopicNotFoundError: If the topology does not read the topic.
            TopologyError: If the patterns of two sources mean the topic.
            PenstockError: If the record fails under the policy "fail".
        """
        source = self._source(topic)
        rows = [_serialized(source.key, key)], [_serialized(source.value, value)], [timestamp]
        self._feed(topic, Records(*rows, headers=[tuple(headers)] if headers else None))
        self._run()

    def read(self, topic: str) -> list[Record[Any, Any]]:
        """Take what has been sent to a topic since the last call, in order, with the serdes of its sink."""
        records = list(self._sent[topic])
        self._sent[topic].clear()
        return records

    def advance_wall_clock(self, duration: Duration) -> None:
        """Move the wall clock on and run the wall-clock punctuations that are due.

        With asynchronous operators it moves from one moment at which something happens to the next: a call ends, times out or
        is due again.

        Args:
            duration: A timedelta, or milliseconds; not negative.

        Raises:
            ValueError: If the duration is negative.
        """
        if millis(duration) < 0:
            raise ValueError(
                f"advance_wall_clock({duration!r}): the wall clock goes on, never back; give a duration that is not negative, or begin "
                "with another wall_clock_ms in a driver of its own"
            )
        target = self._now + millis(duration)
        if self._station is not None:
            self._run_calls_until(self._station, target)
        self._now = target
        for number, task in self._tasks.items():
            self._carry_out(number, task.step(self._now))
        self._run()

    def store(self, name: str) -> Any:
        """Give a store of any kind, to read it or to fill it.

        Raises:
            StoreError: If the topology has no such store.
        """
        for task in self._tasks.values():
            if name in task.stores:
                return task.stores[name]
        known = ", ".join(store for task in self._tasks.values() for store in task.stores)
        raise StoreError(f"the topology has no store {name!r}; it has: {known}")

    def metrics(self) -> dict[str, int]:
        """Give what has been counted so far: ``processed_records``, ``dropped_records``, and ``counted: <name>`` of processors.

        If the topology has asynchronous operators, also ``calls_settled`` (attempts that ended), ``calls_retried`` and
        ``calls_dead_lettered``, as in the metrics of an application.
        """
        counted = {f"counted: {name}": count for name, count in self._counted.items()}
        calls = {} if self._station is None else {name: self._calls[name] for name in _CALLS}
        return {"processed_records": self._processed, "dropped_records": self._dropped, **calls, **counted}

    def committed_offset(self, topic: str) -> int:
        """Give the offset of a topic before which every record is finished: what would be committed now.

        Args:
            topic: A topic the topology reads.

        Raises:
            TopicNotFoundError: If the topology does not read the topic.

        Example:
            >>> import penstock as ps
            >>> builder = ps.StreamsBuilder()
            >>> builder.stream("in").foreach_async(lambda key, value: ps.delay(in_=1000) if value == "late" else None)
            >>> with ps.testing.TopologyTestDriver(builder.build()) as driver:
            ...     for value in ("early", "late", "early"):
            ...         driver.pipe("in", None, value)
            ...     driver.committed_offset("in")
            1
        """
        self._reader_of(topic)
        return self._committable.get(topic, 0)

    def close(self) -> None:
        """Call ``close`` of every processor, and give up the calls that have not ended."""
        if self._station is not None:
            self._station.close()
        for task in self._tasks.values():
            task.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _reading(self, topic: str) -> SubTopology | None:
        """Give the part that reads a topic; one that only a pattern means becomes known."""
        if topic not in self._reader and not is_internal(self._plan.application_id, topic):
            check_one_source((s for sub in self._plan.subtopologies for s in sub.sources), topic)
            for sub in self._plan.subtopologies:
                if source_of(sub.sources, topic) is not None:
                    self._reader[topic] = sub
        return self._reader.get(topic)

    def _reader_of(self, topic: str) -> SubTopology:
        sub = self._reading(topic)
        if sub is None:
            patterns = (s.pattern for part in self._plan.subtopologies for s in part.sources if s.pattern)
            known = ", ".join([*self._reader, *map(mark_of, patterns)])
            raise TopicNotFoundError(f"the topology does not read topic {topic!r}; it reads: {known}")
        return sub

    def _source(self, topic: str) -> Source:
        sub = self._reader_of(topic)
        named = next((source for source in sub.sources if topic in source.topics), None)
        return named or next(source for source in sub.sources if source_of([source], topic))

    def _task(self, sub: SubTopology) -> Task:
        return Task(
            sub,
            TaskId(sub.id, 0),
            application_id=self._plan.application_id,
            stores=self._committed[sub.id],
            global_stores=self._global,
            policies=self._policies,
            partitions_of=lambda topic: 1,
            cache_bytes=self._cache_bytes,
            app_config=self._app_config,
            threads=self._threads,
        )

    def _global_task(self, part: SubTopology) -> Task:
        return global_task(
            part,
            application_id=self._plan.application_id,
            stores=self._global,
            policies=self._policies,
            app_config=self._app_config,
        )

    def _feed(self, topic: str, records: Records) -> None:
        start = self._offsets[topic]
        self._offsets[topic] += len(records)
        records.offsets = list(range(start, self._offsets[topic]))
        task = self._tasks[self._reader[topic].id]
        task.feed(TopicPartition(topic, 0), records, self._offsets[topic])

    def _run(self) -> None:
        while True:
            for number, task in self._tasks.items():
                self._carry_out(number, task.step(self._now, budget=1))
                while task.buffered_count():
                    self._carry_out(number, task.step(self._now, budget=1))
            if self._station is not None and (settled := self._station.work()):
                for number, ticket, answer in settled:
                    self._tasks[number].done(ticket, answer)
                continue
            if not self._waiting:
                return
            topic, records = self._waiting.popleft()
            self._feed(topic, records)

    def _run_calls_until(self, station: ManualStation, target: int) -> None:
        """Go from moment to moment, before a time, at which calls end or begin."""
        while self._now < target:
            due = [at for at in self._attempts_due.values() if at > self._now]
            station.advance(min([target, *due]))
            self._now = station.now_ms
            if self._now < target:
                self._run()

    def _carry_out(self, number: int, outcome: Outcome) -> None:
        self._committed[number].apply(outcome.changes, outcome.dropped_slices)
        self._dropped += sum(outcome.metrics.dropped.values())
        self._processed += outcome.metrics.processed
        self._counted.update(outcome.metrics.counted)
        for figures in outcome.calls.values():
            self._calls.update({name: getattr(figures, figure) for name, figure in _CALLS.items()})
        self._committable |= {at.topic: offset for at, offset in outcome.committable.items()}
        if self._station is not None:
            self._station.offer(number, outcome.issue)
            self._attempts_due.pop(number, None)
            if outcome.attempts_due_ms is not None:
                self._attempts_due[number] = outcome.attempts_due_ms
        for topic, records in outcome.sends:
            self._sent[topic].extend(_objects(self._serdes(number, topic), records))
            if self._reading(topic) is not None:
                records.partitions = None
                self._waiting.append((topic, records))

    def _serdes(self, number: int, topic: str) -> tuple[Serde[Any], Serde[Any]]:
        sinks = [node for node in self._plan.subtopologies[number].nodes.values() if isinstance(node, Sink)]
        named = [sink for sink in sinks if sink.topic == topic]
        choosing = [
            sink for sink in sinks if callable(sink.topic) and topic != self._policies.dead_letter_topic
        ]
        for sink in [*named, *choosing]:
            return sink.key, sink.value
        return bytes_serde, bytes_serde


def _serialized(serde: Serde[Any], value: Any) -> bytes | None:
    return value if value is None or isinstance(value, bytes) else serde.serialize(value)


def _objects(serdes: tuple[Serde[Any], Serde[Any]], records: Records) -> list[Record[Any, Any]]:
    to_key, to_value = serdes[0].deserialize, serdes[1].deserialize
    headers = records.headers or [()] * len(records)
    return [
        Record(None if k is None else to_key(k), None if v is None else to_value(v), t, h)
        for k, v, t, h in zip(records.keys, records.values, records.timestamps, headers)
    ]
