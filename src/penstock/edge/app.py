"""Application: puts settings, broker, topology and Spark together, and runs them. The only composition root."""

from __future__ import annotations

import logging
import secrets
import signal
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from types import FrameType
from typing import Any, Literal

from py4j.protocol import Py4JError
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery
from typing_extensions import Self

from penstock.core.model.errors import (
    BrokerUnavailableError,
    CoPartitioningError,
    PenstockError,
    SettingsError,
    SparkRuntimeError,
    TopicNotFoundError,
)
from penstock.core.plan.changes import changes, recreated_error
from penstock.core.plan.describe import started_text
from penstock.core.plan.evolution import checked_renames
from penstock.core.plan.layout import Layout, default_grouper
from penstock.core.plan.nodes import REPARTITION_CONFIG
from penstock.core.plan.split import Plan
from penstock.core.plan.stores import checked_name
from penstock.core.plan.topology import Topology
from penstock.core.ports import PartitionGrouper, TopicFacts
from penstock.drivers.kafka.broker import Broker
from penstock.drivers.kafka.fetch import KafkaFetcher
from penstock.drivers.kafka.publish import KafkaPublisher
from penstock.drivers.lmdb import open_local_copy
from penstock.drivers.spark import wire
from penstock.drivers.spark.control import ControlServer
from penstock.drivers.spark.sink import SinkSpec
from penstock.drivers.spark.source import SourceSpec, TopologySpec
from penstock.drivers.spark.submit.checkpoint import files_of, progress_of
from penstock.drivers.spark.submit.placement import grouping_keys
from penstock.drivers.spark.submit.query import QuerySpec, start
from penstock.drivers.spark.submit.session import configured, session_for
from penstock.drivers.spark.worker.host import HostSpec
from penstock.drivers.spark.worker.report import Report
from penstock.edge import rescale
from penstock.edge.continuity import Continuity, check_drained, continuity
from penstock.edge.lease import Lease
from penstock.edge.settings import Settings, settings_from
from penstock.edge.status import Book, Status
from penstock.edge.upkeep import Upkeep

log = logging.getLogger("penstock.application")

_TOPIC_WAIT_S = 3.0
_STOP_WAIT_S = 60.0
_POLL_S = 0.02


class Application:
    """A topology that runs on Spark against a Kafka cluster.

    Args:
        application_id: Unique in the cluster: the consumer group, the prefix of internal topics, and the name of the state.
        topology: What to run.
        partition_grouper: Forms partition groups; the default is KIP-28's.
        renamed_stores: New name per old name of a store whose content the checkpoint has under the old name. It may stay
            there when the renaming is done.
        **settings: See ``docs/reference/settings.md``; ``bootstrap_servers`` is required.

    Raises:
        SettingsError: If a setting does not exist or has an impossible value.
        TopologyError: If the topology is not valid.

    Source: KIP-28, "Architecture Design"; ``org.apache.kafka.streams.KafkaStreams``.
    """

    def __init__(
        self,
        application_id: str,
        topology: Topology,
        *,
        partition_grouper: PartitionGrouper = default_grouper,
        renamed_stores: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        self.id = checked_name(application_id, "application")
        self.settings: Settings = settings_from(settings)
        self.plan: Plan = topology.plan(application_id)
        self._grouper = partition_grouper
        self._renamed = checked_renames(renamed_stores or {}, self.plan.store_fingerprints())

    def run(self, until: Literal["end"] | None = None) -> RunningApplication:
        """Run until the application is stopped, by SIGTERM, SIGINT or an error.

        Args:
            until: ``"end"`` processes what is in the topics now, and returns.

        Returns:
            The application, stopped; for its metrics.

        Raises:
            PenstockError: As :meth:`start`, and when the application fails later.
        """
        running = self.start(until=until)
        with _stopping_on_signals(running):
            running.await_termination()
        return running

    def start(self, until: Literal["end"] | None = None) -> RunningApplication:
        """Check topics, start the query and return when every task has been initialised.

        Args:
            until: ``"end"`` processes what is in the topics now, and ends by itself.

        Returns:
            The running application.

        Raises:
            BrokerUnavailableError: If no broker answers.
            ApplicationRunningError: If the application runs on this state directory already.
            TopicNotFoundError: If a topic does not exist.
            TopicRecreatedError: If a topic is not the one that the checkpoint has read.
            CoPartitioningError: If topics that meet in a store have different numbers of partitions.
            IncompatibleTopologyError: If the checkpoint belongs to a topology that this one cannot continue.
            PenstockError: If the first batch fails for another reason.
        """
        if until not in (None, "end"):
            raise SettingsError(f"run(until=...) is None or 'end', not {until!r}")
        lease = Lease.take(self.settings.home(self.id), self.id, "running")
        broker = Broker(
            self.settings.client("admin", self.id),
            self.id,
            self.settings.read_committed,
            self.settings.request_timeout_ms / 1000,
        )
        running = RunningApplication(self.id, broker, lease)
        try:
            running._query = self._launch(running, broker, until_end=until == "end")
            running._await_first_batch()
            if until is None:
                self._keep_up(running, broker)
        except BaseException:
            running._abandon()
            raise
        return running

    def _launch(self, running: RunningApplication, broker: Broker, *, until_end: bool) -> StreamingQuery:
        """Start the query on the checkpoint as it is now: at the start, and when something has changed since."""
        settings = self.settings
        location = settings.checkpoint(self.id)
        progress = progress_of(files_of(location, running._session_of(settings)))
        plan = continuity(self.plan, progress, self._renamed)
        existing = broker.partition_counts()
        layout = plan.laid_out(existing, self._grouper)
        check_drained(plan.plan, progress, broker, existing)
        sinks = self._prepare_topics(broker, plan.plan, layout, existing)
        facts = broker.topic_facts(plan.plan.broker_topics)
        plan.check_topics(facts, restart_recreated=settings.on_recreated_topic == "restart_from_beginning")
        log.info("%s", started_text(plan.plan, layout, self.id))
        running._continues = plan.running_on(layout), facts
        running._rescale_later = rescale.at_start(
            progress,
            settings.shuffle_partitions,
            settings.on_changed_shuffle_partitions,
            location,
            running._session_of(settings),
        )
        lineage = plan.lineage(layout, facts)
        groups = grouping_keys([*layout.tasks, *lineage.gone_tasks()])
        spec = TopologySpec(plan.plan, layout, groups, settings.policies, sinks, lineage)
        return self._start_query(running, broker, spec, until_end=until_end)

    def _keep_up(self, running: RunningApplication, broker: Broker) -> None:
        """Let the application follow what changes while it runs."""
        running._relaunch = partial(self._launch, running, broker, until_end=False)
        if running._rescale_later:
            running._restart("the interrupted micro-batch is complete, and the state moves now")
        look = partial(self._look_at_topics, running, broker)
        running._upkeep = Upkeep(look, self.settings.metadata_max_age_ms / 1000)

    def _look_at_topics(self, running: RunningApplication, broker: Broker) -> None:
        """Follow topics that have changed: run on with their new partitions, or end with an error."""
        plan, before = running._continues
        now = broker.topic_facts(before)
        found = changes(before, now)
        if found.recreated and self.settings.on_recreated_topic == "fail":
            running._end_with(recreated_error(found.recreated))
        elif found.recreated:
            running._restart(f"{', '.join(found.recreated)} was created again and is read from its beginning")
        elif found.grown:
            try:
                plan.laid_out(broker.partition_counts(), self._grouper)
            except PenstockError as error:
                self._uneven(running, error)
            else:
                grown = [f"{topic} from {was} to {now}" for topic, (was, now) in found.grown.items()]
                running._restart(f"the number of partitions has changed: {', '.join(grown)}")

    def _uneven(self, running: RunningApplication, error: PenstockError) -> None:
        """End because topics no longer fit together, or go on without their new partitions for now."""
        if not isinstance(error, CoPartitioningError) or self.settings.on_uneven_partitions == "fail":
            running._end_with(error)
        else:
            log.warning("going on without the new partitions until the topics are alike again: %s", error)

    def _prepare_topics(
        self, broker: Broker, plan: Plan, layout: Layout, existing: Mapping[str, int]
    ) -> dict[str, int]:
        """Create the internal topics or check them, and give the partitions of the topics that are written."""
        for topic in plan.internal_topics.values():
            if topic.through_shuffle:
                continue
            wanted = layout.partitions[topic.name]
            if topic.name not in existing:
                broker.create_topic(topic.name, wanted, REPARTITION_CONFIG, self.settings.replication_factor)
            elif existing[topic.name] != wanted:
                raise SettingsError(
                    f"the internal topic {topic.name!r} has {existing[topic.name]} partitions, but {wanted} are needed. It "
                    "belongs to an earlier form of this application: use another application id, or delete the topic "
                    "together with the application's checkpoint"
                )
        written = [*plan.sink_topics]
        if self.settings.dead_letter_topic is not None:
            written.append(self.settings.dead_letter_topic)
        return _await_sinks(broker, written)

    def _start_query(
        self, running: RunningApplication, broker: Broker, spec: TopologySpec, *, until_end: bool
    ) -> StreamingQuery:
        settings = self.settings
        session = running._session_of(settings)()
        fetcher = KafkaFetcher(
            settings.client("consumer", self.id),
            self.id,
            settings.read_committed,
            settings.task_timeout_ms / 1000,
            settings.on_lost_offsets == "skip",
        )
        control = running._control.address
        source = SourceSpec(
            spec,
            broker,
            fetcher,
            control,
            settings.max_batch_records,
            settings.max_batch_bytes,
            session.sparkContext.defaultParallelism,
            settings.auto_offset_reset,
            settings.on_lost_offsets == "skip",
            settings.on_recreated_topic == "restart_from_beginning",
        )
        query = QuerySpec(
            self.id,
            source,
            HostSpec(spec, open_local_copy, str(settings.home(self.id) / "tasks")),
            SinkSpec(KafkaPublisher(settings.client("producer", self.id)), control),
            settings.checkpoint(self.id),
            until_end,
            settings.trigger_interval_ms,
        )
        with configured(session, settings.spark, settings.shuffle_partitions):
            return start(session, query)


def _await_sinks(broker: Broker, topics: list[str]) -> dict[str, int]:
    """Look for the topics that are written; asking for one makes brokers with auto.create.topics.enable create it."""
    deadline = time.monotonic() + _TOPIC_WAIT_S
    while True:
        found = {topic: count for topic, count in broker.writable_topics(topics).items() if count}
        missing = [topic for topic in topics if topic not in found]
        if not missing:
            return found
        if time.monotonic() > deadline:
            raise TopicNotFoundError(
                f"the topology writes to {', '.join(map(repr, missing))}, which the broker does not have and does not create "
                f"by itself. Create it, for example with kafka-topics --create --topic {missing[0]} --partitions 4"
            )


class RunningApplication:
    """An application at work. Made by :meth:`Application.start`; safe to use from several threads."""

    def __init__(self, application_id: str, broker: Broker, lease: Lease) -> None:
        self.id = application_id
        self._broker = broker
        self._lease = lease
        self._session: SparkSession | None = None
        self._continues: tuple[Continuity, Mapping[str, TopicFacts]]
        self._relaunch: Callable[[], StreamingQuery]
        self._rescale_later = False
        self._upkeep: Upkeep | None = None
        self._changing = threading.RLock()
        self._steady = threading.Event()
        self._steady.set()
        self._book = Book()
        self._hold = threading.Event()
        self._between_batches = threading.Event()
        self._first_batch = threading.Event()
        self._paused: frozenset[str] = frozenset()
        self._state = "starting"
        self._error: PenstockError | None = None
        self._query: StreamingQuery | None = None
        self._control = ControlServer(self._answer, secrets.token_bytes(16))
        self._ending = threading.Lock()

    def stop(self, timeout_s: float = _STOP_WAIT_S) -> None:
        """Finish the batch at work, commit it and stop; nothing is lost if the time does not suffice.

        Args:
            timeout_s: How long the batch at work may take before the query is stopped all the same.
        """
        with self._changing:
            if self._state in ("stopped", "failed") or self._query is None:
                return
            self._state = "stopping"
            self._halt(self._query, timeout_s)
            self._finish()

    def await_termination(self, timeout_s: float | None = None) -> bool:
        """Wait until the application has ended.

        Args:
            timeout_s: How long to wait, None without end.

        Returns:
            Whether it has ended.

        Raises:
            PenstockError: If it has failed.
        """
        if self._query is None:
            return True
        try:
            ended = self._wait(timeout_s)
        except StreamingQueryException as error:
            self._fail(error)
        if self._error is not None:
            raise self._error
        if ended:
            self._finish()
        return bool(ended)

    def pause(self, topics: list[str] | None = None) -> None:
        """Stop reading topics, all of them by default; what was read is finished."""
        self._paused = frozenset(topics) if topics is not None else frozenset(self._book.ends)

    def resume(self) -> None:
        """Read all topics again."""
        self._paused = frozenset()

    def status(self) -> Status:
        """Say what the application is doing."""
        if self._state in ("starting", "running") and self._query is not None:
            error: Exception | None
            try:
                error = None if self._query.isActive else self._query.exception()
            except (OSError, Py4JError) as gone:
                error = SparkRuntimeError(f"Spark has ended: its JVM does not answer ({type(gone).__name__})")
            if error is not None:
                self._remember(error)
        return self._book.status(self._state, None if self._error is None else str(self._error))

    def metrics(self) -> dict[str, int]:
        """Give what has been counted since the start; see ``docs/reference/metrics.md``."""
        return self._book.metrics()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    # What the processes of Spark ask.

    def _answer(self, question: str, data: Any) -> Any:
        if question == "plan":
            self._book.planned(data["positions"], data["ends"])
            hold = self._hold.is_set()
            if hold:  # Spark plans between batches, so none is at work, and with this answer none will be
                self._between_batches.set()
            return {
                "hold": hold,
                "paused": sorted(self._paused),
                "wake_at_ms": self._book.wake_at_ms(),
                "bytes_per_record": self._book.bytes_per_record(),
            }
        if question == "topics":
            if self._upkeep is not None:
                self._upkeep.wake()
            return True
        if question == "batch":
            reports = [Report.decode(report) for report in data["reports"]]
            for report in reports:
                for notice in report.notices:
                    log.warning("%s", notice)
            offsets = self._book.committed(data["batch"], reports)
            self._commit(offsets)
            self._first_batch.set()
            return True
        raise PenstockError(f"nobody knows how to answer {question!r}; this is a bug")

    def _commit(self, offsets: Mapping[Any, int]) -> None:
        try:
            self._broker.commit(
                {at: offset for at, offset in offsets.items() if not self._is_shuffle(at.topic)}
            )
        except BrokerUnavailableError as error:
            log.warning("offsets are committed with a later batch: %s", error)

    def _is_shuffle(self, topic: str) -> bool:
        return topic not in self._book.ends and topic not in self._book.positions

    # Going on with another query.

    def _halt(self, query: StreamingQuery, timeout_s: float | None = None) -> None:
        """Stop a query between two batches, or in the middle of one when the time is over."""
        self._hold.set()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while query.isActive and not self._between_batches.wait(_POLL_S):
            if deadline is not None and time.monotonic() > deadline:
                break
        query.stop()

    def _restart(self, reason: str) -> None:
        """Stop the query between two batches and start it again, on the same session and checkpoint."""
        with self._changing:
            if self._state != "running" or self._query is None:
                return
            log.warning("restarting the query: %s", reason)
            self._steady.clear()
            try:
                self._halt(self._query)
                if self._query.exception() is None:
                    self._hold.clear()
                    self._between_batches.clear()
                    self._query = self._relaunch()
            except Exception as error:  # nobody waits for this thread: whatever it is ends the application
                self._remember(error)
                self._release()
            finally:
                self._steady.set()

    def _end_with(self, error: PenstockError) -> None:
        """Stop the query between two batches because of an error that it has not met itself."""
        with self._changing:
            if self._state != "running" or self._query is None:
                return
            self._steady.clear()  # who waits for the end hears of it when everything has been given back
            try:
                self._halt(self._query)
            finally:
                self._remember(error)
                self._release()
                self._steady.set()

    def _session_of(self, settings: Settings) -> Callable[[], SparkSession]:
        """Give what makes the session when it is first asked for, and keeps it: it belongs to a thread in Spark."""

        def session() -> SparkSession:
            if self._session is None:
                self._session = session_for(self.id, settings.master, settings.spark)
            return self._session

        return session

    # Beginning and end.

    def _await_first_batch(self) -> None:
        assert self._query is not None
        while not self._first_batch.wait(_POLL_S):
            if not self._query.isActive:
                self.await_termination()
                break
        if self._state == "starting":
            self._state = "running"

    def _wait(self, timeout_s: float | None) -> bool:
        """Wait in short steps, so that signals are handled in between; tell whether the query has ended."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            query = self._query
            assert query is not None
            ended = bool(query.awaitTermination(1))
            if ended and not self._steady.wait(1):
                continue
            if (ended and query is self._query) or self._state == "stopped":
                return True
            if deadline is not None and time.monotonic() > deadline:
                return False

    def _remember(self, error: Exception) -> None:
        if isinstance(error, PenstockError):
            self._error = error
        else:
            self._error = wire.find_error(str(error)) or SparkRuntimeError(_spark_error(str(error)))
        self._state = "failed"

    def _fail(self, error: Exception) -> None:
        self._remember(error)
        self._release()
        assert self._error is not None
        raise self._error from None

    def _finish(self) -> None:
        with self._ending:
            if self._state != "failed":
                self._state = "stopped"
            self._release()

    def _abandon(self) -> None:
        if self._query is not None and self._query.isActive:
            self._query.stop()
        self._release()

    def _release(self) -> None:
        """Give back what nobody else can use while the application is at work."""
        if self._upkeep is not None:
            self._upkeep.close()
        self._control.close()
        self._lease.release()


def _spark_error(text: str) -> str:
    """Keep of Spark's error what a person can use: its first part, without plans and offsets."""
    return f"the Spark query ended with an error that is not Penstock's: {text.split('=== Streaming Query ===')[0].strip()}"


class _stopping_on_signals:  # noqa: N801 - a context manager reads like a phrase
    """Stops an application on SIGTERM and SIGINT, when it runs in the main thread."""

    def __init__(self, running: RunningApplication) -> None:
        self._running = running
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._stop)

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        log.info("signal %d: stopping after the batch at work", number)
        threading.Thread(target=self._running.stop, name="penstock-stop").start()
