"""TopologyTestDriver: a topology in one process, one record at a time, without broker, Spark or Java.

It drives the same tasks, through the same seam, as Spark does. Each record is processed to the end, through internal topics
too, before ``pipe`` returns; changes of stores are committed after each step. A record of a global topic is in its global
store when ``pipe`` returns. Each call of ``pipe`` is a micro-batch, so processors are made anew for it.

Calls of asynchronous operators run in this thread, by the same rules as anywhere. Those that take no time have ended when
``pipe`` returns. Coroutines that sleep, retries and delays go on as the wall clock is advanced; nothing waits for real.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from millstream.core.engine.caching import DEFAULT_CACHE_BYTES
from millstream.core.engine.policy import ErrorPolicies
from millstream.core.engine.readiness import NEVER_WAIT
from millstream.core.model.durations import Duration, millis
from millstream.core.model.errors import SettingsError
from millstream.core.model.ids import TopicPartition
from millstream.core.model.record import Record
from millstream.core.runtime.threads import check_threads
from millstream.core.topology.topology import Topology
from millstream.drivers.threads import TaskThreads
from millstream.testing._driver_topics import DriverTopics
from millstream.testing._runner import CALLS, Runner, RunnerSettings
from millstream.testing._tasks import store_of, stores_of
from millstream.testing._topics import PerTopic, Topics
from millstream.testing.snapshot import (
    DriverSnapshot,
    TaskState,
    beginning,
    content_of,
    fitted,
    global_fingerprints,
    remembered,
    stores_with,
)


class TopologyTestDriver(DriverTopics):
    """Runs a topology in this process.

    Args:
        topology: The topology.
        wall_clock_ms: The wall clock at the start, ms since the epoch; only :meth:`advance_wall_clock` moves it. None is that of
            the snapshot, or 0.
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
        partitions: Numbers of partitions: one for all topics from outside and those that are written, or one per topic, where
            others have 1. Repartitions then have those that they have in an application, and there is a task per partition.
            None gives every topic one partition, repartitions included.
        max_task_idle_ms: As the setting of an application: how long tasks with several inputs wait for an empty one, by the
            driver's clock. None does not wait. An input that is held back (:meth:`hold`) is waited for without end.
        snapshot: What another driver was left with (:meth:`snapshot`), to go on from; see :meth:`edited`.
        renamed_stores: As the argument of an application: new name per old name of a store of the snapshot.

    Raises:
        TopologyError: If the topology is not valid.
        IncompatibleTopologyError: If the topology cannot go on from the snapshot.
        CoPartitioningError: If topics that meet in a store have different numbers of partitions.
        SettingsError: If an argument is no whole number or too small, or ``partitions`` names a topic that is neither read nor
            written.

    Source: ``org.apache.kafka.streams.TopologyTestDriver``.

    Example:
        >>> import millstream as ms
        >>> builder = ms.StreamsBuilder()
        >>> builder.stream("in").map_values(str.upper).to("out")
        >>> with ms.testing.TopologyTestDriver(builder.build()) as driver:
        ...     driver.pipe("in", "k", "v", timestamp=5)
        ...     driver.read("out")
        [Record(key='k', value='V', timestamp=5, headers=())]
    """

    def __init__(
        self,
        topology: Topology,
        *,
        wall_clock_ms: int | None = None,
        application_id: str = "test",
        policies: ErrorPolicies | None = None,
        statestore_cache_max_bytes: int = DEFAULT_CACHE_BYTES,
        app_config: Mapping[str, Any] | None = None,
        num_threads_per_task: int = 1,
        commit_every: int = 1,
        keep_processors: bool = False,
        partitions: PerTopic | None = None,
        max_task_idle_ms: int | None = None,
        snapshot: DriverSnapshot | None = None,
        renamed_stores: Mapping[str, str] | None = None,
    ) -> None:
        check_threads(num_threads_per_task, None)
        if not isinstance(commit_every, int) or commit_every < 1:
            raise SettingsError(
                f"commit_every={commit_every!r}: a micro-batch has a whole number of records, at least 1"
            )
        if max_task_idle_ms is not None and (
            not isinstance(max_task_idle_ms, int) or max_task_idle_ms < NEVER_WAIT
        ):
            raise SettingsError(
                f"max_task_idle_ms={max_task_idle_ms!r} is a whole number of ms, -1 or more, or None"
            )
        self._commit_every = commit_every
        self._collected = []
        self._closed = False
        self._options: dict[str, Any] = {
            "application_id": application_id,
            "policies": policies,
            "statestore_cache_max_bytes": statestore_cache_max_bytes,
            "app_config": app_config,
            "num_threads_per_task": num_threads_per_task,
            "commit_every": commit_every,
            "keep_processors": keep_processors,
            "partitions": partitions,
            "max_task_idle_ms": max_task_idle_ms,
        }
        plan = topology.plan(application_id)
        begin = snapshot or beginning(application_id)
        self._topics = Topics(partitions, begin.ends)
        self._before = begin.remembered
        plan, layout, tasks = fitted(plan, self._topics, begin, renamed_stores or {})
        settings = RunnerSettings(
            policies or ErrorPolicies(),
            statestore_cache_max_bytes,
            app_config or {},
            TaskThreads(num_threads_per_task) if num_threads_per_task > 1 else None,
            keep_processors,
            commit_every == 1,
            max_task_idle_ms,
        )
        self._runner = Runner(
            plan,
            layout,
            self._topics,
            settings,
            begin.wall_clock_ms if wall_clock_ms is None else wall_clock_ms,
            {task: state.snapshot for task, state in tasks.items()},
            {task: stores_with(state.content) for task, state in tasks.items()},
            stores_with(begin.global_stores),
            begin.committable,
        )

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

    def store(self, name: str, *, partition: int | None = None) -> Any:
        """Return a store of any kind, to read it or to fill it.

        Args:
            name: The store.
            partition: Of which task, where several partitions have one each.

        Raises:
            StoreError: If the topology has no such store, or several tasks have it and no partition is given.
        """
        return store_of(self._runner.tasks.values(), name, partition)

    def stores(self, *, partition: int | None = None) -> dict[str, Any]:
        """Return all stores by name, global ones included (``getAllStateStores``).

        Args:
            partition: Of which tasks, where several partitions have a store each; stores of other tasks are left out.

        Raises:
            StoreError: If several tasks have a store and no partition is given.
        """
        return stores_of(self._runner.tasks.values(), partition)

    def dropped(self) -> dict[str, int]:
        """Return how many records were left out so far, by reason; see ``docs/reference/metrics.md`` for the reasons."""
        return dict(self._runner.dropped)

    def metrics(self) -> dict[str, int]:
        """Return what has been counted so far: ``processed_records``, ``dropped_records``, and ``counted: <name>`` of processors.

        If the topology has asynchronous operators, also ``calls_settled`` (attempts that ended), ``calls_retried`` and
        ``calls_dead_lettered``, as in the metrics of an application. With ``max_task_idle_ms`` also ``enforced_records``.
        """
        runner = self._runner
        counted = {f"counted: {name}": count for name, count in runner.counted.items()}
        calls = {name: runner.calls[name] for name in CALLS} if runner.makes_calls else {}
        dropped = sum(runner.dropped.values())
        enforced = {"enforced_records": runner.enforced} if runner.waits else {}
        return {
            "processed_records": runner.processed,
            "dropped_records": dropped,
            **enforced,
            **calls,
            **counted,
        }

    def committed_offset(self, topic: str, partition: int = 0) -> int:
        """Return the offset of a partition before which every record is finished: what would be committed now.

        Args:
            topic: A topic the topology reads.
            partition: Its partition.

        Raises:
            TopicNotFoundError: If the topology does not read the topic, or it has no such partition.

        Example:
            >>> import millstream as ms
            >>> builder = ms.StreamsBuilder()
            >>> builder.stream("in").foreach_async(lambda key, value: ms.delay(in_=1000) if value == "late" else None)
            >>> with ms.testing.TopologyTestDriver(builder.build()) as driver:
            ...     for value in ("early", "late", "early"):
            ...         driver.pipe("in", None, value)
            ...     driver.committed_offset("in")
            1
        """
        self._runner.source(topic)
        at = self._topics.checked(TopicPartition(topic, partition))
        return self._runner.committable.get(at, 0)

    def snapshot(self) -> DriverSnapshot:
        """Return what another driver can go on from; records that were collected are processed before.

        It has stores, times, schedules, records that wait, unfinished records, and offsets. What was sent and not read, what was
        counted, and what is held back stay here.

        Raises:
            MillstreamError: If a record fails under the policy "fail".
        """
        self.commit()
        runner = self._runner
        return DriverSnapshot(
            runner.plan.application_id,
            runner.now_ms,
            remembered(runner.plan, runner.layout, self._before),
            {
                task: TaskState(each.snapshot(), content_of(each.stores), runner.unfinished.get(task, {}))
                for task, each in runner.tasks.items()
                if each.stores is not runner.global_stores
            },
            content_of(runner.global_stores),
            global_fingerprints(runner.plan),
            dict(self._topics.ends),
            dict(runner.committable),
        )

    def edited(
        self, topology: Topology, *, renamed_stores: Mapping[str, str] | None = None
    ) -> TopologyTestDriver:
        """Close this driver, and return one that goes on with another topology, as a restart on the same checkpoint does.

        Args:
            topology: The edited topology, or the same one.
            renamed_stores: New name per old name of a store.

        Raises:
            IncompatibleTopologyError: If the topology cannot go on from here; this driver stays open.
            SettingsError: If a new name of a store cannot be.

        Example:
            >>> import millstream as ms
            >>> def counting(*ignored: str) -> ms.Topology:
            ...     builder = ms.StreamsBuilder()
            ...     words = builder.stream("words").filter_not(lambda key, word: word in ignored)
            ...     counts = words.group_by(lambda key, word: word).count(store="counts")
            ...     counts.to_stream().to("out", value=ms.serdes.int64)
            ...     return builder.build()
            >>> driver = ms.testing.TopologyTestDriver(counting())
            >>> for word in ("to", "be", "to"):
            ...     driver.pipe("words", None, word)
            >>> with driver.edited(counting("be")) as after:
            ...     for word in ("to", "be"):
            ...         after.pipe("words", None, word)
            ...     after.output_topic("out").read_pairs()
            [('to', 3)]
        """
        after = TopologyTestDriver(
            topology, snapshot=self.snapshot(), renamed_stores=renamed_stores, **self._options
        )
        self.close()
        return after

    def close(self) -> None:
        """Call ``close`` of every processor, and give up the calls that have not ended; a second call does nothing."""
        if not self._closed:
            self._closed = True
            self._runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
