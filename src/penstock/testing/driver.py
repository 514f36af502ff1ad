"""TopologyTestDriver: a topology in one process, one record at a time, without broker, Spark or Java.

It drives the same tasks, through the same seam, as Spark does. Each record is processed to the end, through internal topics
too, before ``pipe`` returns; changes of stores are committed after each step. A record of a global topic is in its global
store when ``pipe`` returns. Each call of ``pipe`` is a micro-batch, so processors are made anew for it.

Calls of asynchronous operators run in this thread, by the same rules as anywhere. Those that take no time have ended when
``pipe`` returns. Coroutines that sleep, retries and delays go on as the wall clock is advanced; nothing waits for real.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from typing_extensions import Self

from penstock.core.engine.caching import DEFAULT_CACHE_BYTES
from penstock.core.engine.policy import ErrorPolicies
from penstock.core.model.durations import Duration, millis
from penstock.core.model.errors import SettingsError, StoreError
from penstock.core.model.ids import TaskId, TopicPartition
from penstock.core.model.record import Headers, Record, Records
from penstock.core.model.serdes import Serde
from penstock.core.plan.layout import Layout, default_grouper
from penstock.core.plan.split import Plan
from penstock.core.plan.threads import check_threads
from penstock.core.plan.topology import Topology
from penstock.core.state.memory import MemoryStores
from penstock.drivers.threads import TaskThreads
from penstock.testing._runner import CALLS, Runner, RunnerSettings
from penstock.testing._topics import Topics


class TopologyTestDriver:
    """Runs a topology in this process.

    Args:
        topology: The topology.
        wall_clock_ms: The wall clock at the start, ms since the epoch; only :meth:`advance_wall_clock` moves it.
        application_id: What internal topics are named after.
        policies: What happens to records that fail; None stops with an error.
        statestore_cache_max_bytes: As the setting of an application. Caches are flushed after each record, so that they merge
            only updates of a row that one record makes, unless ``commit_every`` is larger; 0 forwards those too.
        app_config: What processors find in ``context.app_config``.
        num_threads_per_task: As the setting of an application. Each record is processed to the end before the next one, so
            functions are called in other threads, but one at a time.
        commit_every: Records in a micro-batch. With more than 1 :meth:`pipe` collects records, and the last of so many, or
            :meth:`commit`, processes them together, in the order of their times.
        keep_processors: Whether each task keeps one processor for all its time. On Spark a processor is made anew in every
            micro-batch, so one that remembers something in an attribute and not in a store is wrong there. It is wrong here,
            too, unless this is True.

    Raises:
        TopologyError: If the topology is not valid.
        SettingsError: If ``num_threads_per_task`` or ``commit_every`` is no whole number, or below 1.

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
        commit_every: int = 1,
        keep_processors: bool = False,
    ) -> None:
        check_threads(num_threads_per_task, None)
        if not isinstance(commit_every, int) or commit_every < 1:
            raise SettingsError(
                f"commit_every={commit_every!r}: a micro-batch has a whole number of records, at least 1"
            )
        self._commit_every = commit_every
        self._collected: list[tuple[TopicPartition, Records]] = []
        plan = topology.plan(application_id)
        self._topics = Topics(1)
        settings = RunnerSettings(
            policies or ErrorPolicies(),
            statestore_cache_max_bytes,
            app_config or {},
            TaskThreads(num_threads_per_task) if num_threads_per_task > 1 else None,
            keep_processors,
            commit_every == 1,
            None,
        )
        self._runner = Runner(
            plan, _one_each(plan), self._topics, settings, wall_clock_ms, {}, {}, MemoryStores()
        )

    def pipe(self, topic: str, key: Any, value: Any, timestamp: int = 0, headers: Headers = ()) -> None:
        """Process one record to the end, or collect it for a micro-batch of ``commit_every`` records.

        Args:
            topic: A topic the topology reads, by its name or by a pattern.
            key: The key as an object of the source's serde, or None; bytes are taken as they are.
            value: The value, likewise.
            timestamp: Milliseconds since the epoch.
            headers: Name and value pairs.

        Raises:
            TopicNotFoundError: If the topology does not read the topic.
            PenstockError: If the record fails under the policy "fail".
        """
        source = self._runner.source(topic)
        rows = [_serialized(source.key, key)], [_serialized(source.value, value)], [timestamp]
        records = Records(*rows, headers=[tuple(headers)] if headers else None)
        self._collected.extend(self._topics.placed(topic, records))
        if len(self._collected) >= self._commit_every:
            self.commit()

    def commit(self) -> None:
        """Process the records that were collected since the last commit, as one micro-batch; nothing without ``commit_every``.

        Raises:
            PenstockError: If a record fails under the policy "fail".

        Example:
            >>> import penstock as ps
            >>> builder = ps.StreamsBuilder()
            >>> builder.stream("in").group_by_key().count().to_stream().to("out", value=ps.serdes.int64)
            >>> with ps.testing.TopologyTestDriver(builder.build(), commit_every=100) as driver:
            ...     for _ in range(3):
            ...         driver.pipe("in", "k", "v")
            ...     driver.commit()
            ...     driver.read("out")
            [Record(key='k', value=3, timestamp=0, headers=())]
        """
        if self._collected:
            collected, self._collected = self._collected, []
            self._runner.micro_batch(collected)

    def read(self, topic: str) -> list[Record[Any, Any]]:
        """Take what has been sent to a topic since the last call, in order, with the serdes of its sink."""
        sent = self._runner.sent.pop(topic, ())
        return [each.record() for each in sent]

    def advance_wall_clock(self, duration: Duration) -> None:
        """Move the wall clock on and run the wall-clock punctuations that are due.

        What was collected is processed before. With asynchronous operators the clock moves from one moment at which something
        happens to the next: a call ends, times out or is due again.

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
        self.commit()
        self._runner.advance(self._runner.now_ms + millis(duration))

    def store(self, name: str) -> Any:
        """Return a store of any kind, to read it or to fill it.

        Raises:
            StoreError: If the topology has no such store.
        """
        tasks = self._runner.tasks.values()
        for each in tasks:
            if name in each.task.stores:
                return each.store(name)
        known = ", ".join(store for each in tasks for store in each.task.stores)
        raise StoreError(f"the topology has no store {name!r}; it has: {known}")

    def metrics(self) -> dict[str, int]:
        """Return what has been counted so far: ``processed_records``, ``dropped_records``, and ``counted: <name>`` of processors.

        If the topology has asynchronous operators, also ``calls_settled`` (attempts that ended), ``calls_retried`` and
        ``calls_dead_lettered``, as in the metrics of an application.
        """
        runner = self._runner
        counted = {f"counted: {name}": count for name, count in runner.counted.items()}
        calls = {name: runner.calls[name] for name in CALLS} if runner.makes_calls else {}
        dropped = sum(runner.dropped.values())
        return {"processed_records": runner.processed, "dropped_records": dropped, **calls, **counted}

    def committed_offset(self, topic: str) -> int:
        """Return the offset of a topic before which every record is finished: what would be committed now.

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
        self._runner.source(topic)
        return self._runner.committable.get(TopicPartition(topic, 0), 0)

    def close(self) -> None:
        """Call ``close`` of every processor, and give up the calls that have not ended."""
        self._runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _one_each(plan: Plan) -> Layout:
    """Lay a plan out with one partition of each topic, repartitions included."""
    topics = {sub.id: dict.fromkeys(sub.source_topics, 1) for sub in plan.subtopologies}
    tasks = {TaskId(n, 0): group for n, own in topics.items() for group in default_grouper(own)}
    return Layout({topic: 1 for own in topics.values() for topic in own}, tasks)


def _serialized(serde: Serde[Any], value: Any) -> bytes | None:
    return value if value is None or isinstance(value, bytes) else serde.serialize(value)
