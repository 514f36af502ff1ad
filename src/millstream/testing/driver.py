"""TopologyTestDriver: runs a topology in one process, one record at a time, without broker, Spark or Java.

The driver runs the same tasks through the same interface as Spark. Each record is processed to the end, including internal topics, before
``pipe`` returns; changes of stores are committed after each step. A record of a global topic is in its global store when ``pipe`` returns.
Each call of ``pipe`` is a micro-batch, so processors are recreated for it.

Calls of asynchronous operators run in this thread, by the same rules as on Spark. Calls that take no time have ended when ``pipe`` returns.
Sleeping coroutines, retries and delays continue as the wall clock is advanced; nothing waits in real time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Self

from millstream.core.engine.caching import DEFAULT_CACHE_BYTES
from millstream.core.engine.policy import ErrorPolicies
from millstream.core.engine.records.readiness import NEVER_WAIT
from millstream.core.model.errors import ArgumentError, SettingsError
from millstream.core.model.ids import TopicPartition
from millstream.core.model.topics import checked_name
from millstream.core.runtime.thread_counts import check_threads
from millstream.core.topology.analysis.ranges import Parallelism, divided_plan
from millstream.core.topology.topology import Topology
from millstream.drivers.threads import TaskThreads
from millstream.testing._driver_arguments import checked_time
from millstream.testing._driver_faults import committed_snapshot
from millstream.testing._runner import DriverRunner
from millstream.testing._runner_settings import RunnerSettings
from millstream.testing._tasks import CALLS
from millstream.testing._topics import PerTopic, TopicLogs
from millstream.testing.snapshot import DriverSnapshot, beginning, fitted
from millstream.testing.tables.driver_tables import DriverTables


class TopologyTestDriver(DriverTables):
    """Runs a topology in this process.

    Args:
        topology: The topology.
        wall_clock_ms: The wall clock at the start, ms since the epoch. Only :meth:`advance_wall_clock` moves it. None uses the wall
            clock of the snapshot, or 0.
        application_id: The prefix of internal topics.
        policies: How to handle records that fail; None stops with an error.
        statestore_cache_max_bytes: As the setting of an application. Caches are flushed after each record, so unless
            ``commit_every`` is larger, they merge only updates of a row by the same record; 0 also forwards those.
        app_config: The value of ``context.app_config`` in processors.
        num_threads_per_task: As the setting of an application. Each record is processed to the end before the next one, so
            functions run in other threads, but one at a time.
        commit_every: Records per micro-batch. With more than 1, :meth:`pipe` collects records. When the micro-batch is full, or at
            :meth:`commit`, they are processed together, in the order of their timestamps.
        keep_processors: Whether each task keeps its processors for the lifetime of the driver. On Spark, processors are recreated in
            each micro-batch, so a processor that keeps state in an attribute instead of a store fails there. It also fails here,
            unless this is True. A micro-batch that fails recreates them in any case.
        partitions: Partition counts: one for all external topics and sink topics, or one per topic (others have 1). Repartition
            topics then have the same counts as in an application, and there is one task per partition. None gives every topic one
            partition, including repartition topics.
        max_task_idle_ms: As the setting of an application: how long tasks with several inputs wait for an empty one, in ms of the
            driver's clock. None does not wait. For a withheld input (:meth:`hold`), tasks wait without limit.
        parallelism: As the setting of an application: workers per partition. Stores are then in a task per key range; see
            :meth:`store`.
        snapshot: A snapshot of another driver (:meth:`snapshot`) from which to continue; see :meth:`edited`.
        renamed_stores: As the argument of an application: new name by old name of a store of the snapshot.

    Raises:
        TopologyError: If the topology is invalid.
        IncompatibleTopologyError: If the topology cannot continue from the snapshot.
        CoPartitioningError: If co-partitioned topics have different partition counts.
        SettingsError: If an argument has another type or is too small, or ``partitions`` names a topic that is neither read nor written.

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
        parallelism: Parallelism = 1,
        snapshot: DriverSnapshot | None = None,
        renamed_stores: Mapping[str, str] | None = None,
    ) -> None:
        if not isinstance(topology, Topology):
            raise ArgumentError(
                f"{topology!r} is a {type(topology).__name__}, not a ms.Topology; if it is a builder, call its build()"
            )
        check_threads(num_threads_per_task, None)
        _check_micro_batches(commit_every, max_task_idle_ms)
        self._commit_every = commit_every
        self._collected, self._closed = [], False
        self._next = partial(
            TopologyTestDriver,
            application_id=application_id,
            policies=policies,
            statestore_cache_max_bytes=statestore_cache_max_bytes,
            app_config=app_config,
            num_threads_per_task=num_threads_per_task,
            commit_every=commit_every,
            keep_processors=keep_processors,
            partitions=partitions,
            max_task_idle_ms=max_task_idle_ms,
            parallelism=parallelism,
        )
        settings = RunnerSettings(
            _of_kind("policies", policies, ErrorPolicies) or ErrorPolicies(),
            statestore_cache_max_bytes,
            _of_kind("app_config", app_config, Mapping) or {},
            TaskThreads(num_threads_per_task) if num_threads_per_task > 1 else None,
            keep_processors,
            commit_every == 1,
            max_task_idle_ms,
        )
        begin = _begin(application_id, snapshot, wall_clock_ms)
        self._topics = TopicLogs(partitions, begin.ends)
        self._before = begin.remembered
        plan = divided_plan(topology.plan(application_id), parallelism)
        plan, layout, tasks = fitted(
            plan, self._topics, begin, _of_kind("renamed_stores", renamed_stores, Mapping) or {}
        )
        self._runner = DriverRunner(plan, layout, self._topics, settings, replace(begin, tasks=tasks))

    def dropped(self) -> dict[str, int]:
        """Return the number of records dropped so far.

        Returns:
            The number by reason; ``docs/reference/metrics.md`` lists the reasons.

        Source: the metrics ``dropped-records-total`` (KIP-444).

        Example:
            >>> import millstream as ms
            >>> builder = ms.StreamsBuilder()
            >>> counts = builder.stream("in").group_by_key().count()
            >>> with ms.testing.TopologyTestDriver(builder.build()) as driver:
            ...     driver.pipe("in", None, "v")
            ...     sum(driver.dropped().values())
            1
        """
        return dict(self._runner.counters.dropped)

    def metrics(self) -> dict[str, int]:
        """Return the counters: ``processed_records``, ``dropped_records``, and ``counted: <name>`` for each counter of a processor.

        If the topology has asynchronous operators, also ``calls_settled`` (attempts that ended), ``calls_retried`` and
        ``calls_dead_lettered``, as in the metrics of an application. With ``max_task_idle_ms``, also ``enforced_records``.

        Returns:
            Number of records or calls, by counter.

        Source: ``TopologyTestDriver.metrics``.

        Example:
            >>> import millstream as ms
            >>> builder = ms.StreamsBuilder()
            >>> builder.stream("in").to("out")
            >>> with ms.testing.TopologyTestDriver(builder.build()) as driver:
            ...     driver.pipe("in", "k", "v")
            ...     driver.metrics()["processed_records"]
            1
        """
        counters = self._runner.counters
        counted = {f"counted: {name}": count for name, count in counters.counted.items()}
        calls = {name: counters.calls[name] for name in CALLS} if self._runner.makes_calls else {}
        enforced = {"enforced_records": counters.enforced} if self._runner.waits else {}
        return {
            "processed_records": counters.processed,
            "dropped_records": sum(counters.dropped.values()),
            **enforced,
            **calls,
            **counted,
        }

    def committed_offset(self, topic: str, partition: int = 0) -> int:
        """Return the committable offset of a partition: every record before it is finished.

        Args:
            topic: A topic that the topology reads.
            partition: Its partition.

        Returns:
            The offset of the first record that is not finished.

        Raises:
            TopicNotFoundError: If the topology does not read the topic, or the topic has no such partition.

        Source: KIP-311, "Store & commit".

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
        topic_partition = self._topics.checked(TopicPartition(topic, partition))
        return self._runner.committable.get(topic_partition, 0)

    def snapshot(self) -> DriverSnapshot:
        """Return a snapshot from which another driver can continue. Collected records are processed first.

        It contains stores, times, schedules, buffered records, unfinished records and offsets. It does not contain records that were sent
        and not yet read, counters, or withheld records.

        Returns:
            The snapshot, for the argument ``snapshot`` of :class:`TopologyTestDriver`.

        Raises:
            MillstreamError: If a record fails under the policy "fail".

        Source: Kafka Streams has no counterpart.

        Example:
            >>> import millstream as ms
            >>> builder = ms.StreamsBuilder()
            >>> builder.stream("in").group_by_key().count(store="counts").to_stream().to("out", value=ms.serdes.int64)
            >>> topology = builder.build()
            >>> with ms.testing.TopologyTestDriver(topology) as driver:
            ...     driver.pipe("in", "k", "v")
            ...     snapshot = driver.snapshot()
            >>> with ms.testing.TopologyTestDriver(topology, snapshot=snapshot) as driver:
            ...     driver.pipe("in", "k", "v")
            ...     driver.output_topic("out").read_values()
            [2]
        """
        self.commit()
        return committed_snapshot(self._runner, self._before)

    def edited(
        self,
        topology: Topology,
        *,
        renamed_stores: Mapping[str, str] | None = None,
        parallelism: Parallelism | None = None,
    ) -> TopologyTestDriver:
        """Close this driver and return one that continues with another topology, like a restart from the same checkpoint.

        It begins with the records of the last micro-batch if that has failed.

        Args:
            topology: The edited topology, or the same one.
            renamed_stores: New name by old name of a store.
            parallelism: The new number of workers per partition; None keeps the current number.

        Raises:
            IncompatibleTopologyError: If the topology cannot continue from the state of this driver, which then stays open.
            MillstreamError: If a record that is read again fails with this topology too. This driver stays open.
            SettingsError: If a new name of a store is invalid.

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
        make = self._next if parallelism is None else partial(self._next, parallelism=parallelism)
        snapshot = committed_snapshot(self._runner, self._before) if self._failed else self.snapshot()
        after = make(topology, snapshot=snapshot, renamed_stores=renamed_stores)
        try:
            after._read_again(self._collected)
        except BaseException:
            after.close()
            raise
        self.close()
        return after

    def close(self) -> None:
        """Close all processors and cancel calls that have not ended. A second call has no effect. The end of a ``with`` statement calls it.

        Source: ``TopologyTestDriver.close``.
        """
        if not self._closed:
            self._closed = True
            self._runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _begin(application_id: str, snapshot: DriverSnapshot | None, wall_clock_ms: int | None) -> DriverSnapshot:
    """Return the snapshot from which to continue, with another wall clock if one is given."""
    checked_name(application_id, "application")
    begin = _of_kind("snapshot", snapshot, DriverSnapshot) or beginning(application_id)
    if wall_clock_ms is None:
        return begin
    return replace(begin, wall_clock_ms=checked_time(wall_clock_ms, "wall_clock_ms"))


def _of_kind(name: str, value: Any, kind: type) -> Any:
    """Return an argument that may be None if its type is right."""
    if value is not None and not isinstance(value, kind):
        raise SettingsError(f"{name}={value!r}: it must be of type {kind.__name__}, or None")
    return value


def _check_micro_batches(commit_every: int, max_task_idle_ms: int | None) -> None:
    if not isinstance(commit_every, int) or commit_every < 1:
        raise SettingsError(
            f"commit_every={commit_every!r}: a micro-batch has a whole number of records, at least 1"
        )
    if max_task_idle_ms is not None and (
        not isinstance(max_task_idle_ms, int) or max_task_idle_ms < NEVER_WAIT
    ):
        raise SettingsError(
            f"max_task_idle_ms={max_task_idle_ms!r}: it must be a whole number of ms, -1 or more, or None"
        )
