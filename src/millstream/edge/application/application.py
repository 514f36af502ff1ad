"""Application: combines settings, broker, topology and Spark, and runs them. The only composition root."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from pyspark.sql.streaming import StreamingQuery

from millstream.core.model.errors import ControlError
from millstream.core.model.topics import checked_name
from millstream.core.ports import PartitionGrouper
from millstream.core.runtime.auto_parallelism import WorkersChange
from millstream.core.runtime.lifecycle import FINAL
from millstream.core.topology.analysis.ranges import AUTO, Workers, is_automatic, with_workers
from millstream.core.topology.layout import default_grouper
from millstream.core.topology.plan import Plan
from millstream.core.topology.topology import Topology
from millstream.drivers.kafka.broker import Broker
from millstream.drivers.kafka.internal_topics import InternalTopics
from millstream.drivers.spark.clock import Clock, host_clock
from millstream.drivers.spark.driver.checkpoint import files_of, progress_of
from millstream.drivers.spark.driver.spark_session import refuse_connect
from millstream.edge.application.application_run import Resources
from millstream.edge.application.auto_workers import AutoWorkers
from millstream.edge.application.launching import Environment, Launch, fitted
from millstream.edge.application.metadata_refresher import MetadataRefresher
from millstream.edge.application.periodic_task import PeriodicTask
from millstream.edge.application.run_bounds import Bound, Until
from millstream.edge.application.running_application import RunningApplication
from millstream.edge.application.single_driver import SingleDriver
from millstream.edge.application.standby import Standby
from millstream.edge.application.stop_signals import exiting_on_sigterm, stopping_on_signals
from millstream.edge.application.topology_edits import TopologyEdit, edit_of, emptied
from millstream.edge.broker.group_offsets import GroupOffsets
from millstream.edge.broker.kafka_clients import Clients
from millstream.edge.checkpoint.continuity import Continuity
from millstream.edge.checkpoint.state_lease import Lease
from millstream.edge.control.control_file import write_control_file
from millstream.edge.control.flow_control import FlowControl
from millstream.edge.planning.programs import Program, program_of
from millstream.edge.records.topic_records import last_records
from millstream.edge.settings.settings import Settings
from millstream.edge.settings.settings_loading import settings_from
from millstream.edge.spark.cluster_checks import check_query_key
from millstream.edge.spark.required_packages import check_spark_packages
from millstream.edge.spark.spark_errors import start_error
from millstream.edge.status.log_output import attach
from millstream.edge.web.listeners import Listeners

log = logging.getLogger("millstream.application")

_SUPERVISION_S: Final = 0.5

Candidate: TypeAlias = Standby | SingleDriver
T = TypeVar("T")


class Application:
    """A topology that runs on Spark against a Kafka cluster.

    Args:
        application_id: Unique in the cluster: the consumer group, the prefix of internal topics, and the name of the state.
        topology: What to run.
        partition_grouper: Forms partition groups; the default is KIP-28's.
        renamed_stores: Old names of stores, with their new names. Each store takes over the content that the checkpoint has under
            the old name. You may leave the entry after the first start.
        clock: Returns the wall-clock time of each micro-batch, ms since the epoch; the default is the host's clock. It is sent
            with cloudpickle to another process of this host and called there.
        **settings: See ``docs/reference/settings.md``; ``bootstrap_servers`` is required.

    Raises:
        SettingsError: If a setting does not exist or has an invalid value.
        TopologyError: If the topology is not valid.

    Source: KIP-28, "Architecture Design"; ``org.apache.kafka.streams.KafkaStreams``, whose ``Time`` is ``clock`` here.

    Example:
        >>> import millstream as ms
        >>> builder = ms.StreamsBuilder()
        >>> builder.stream("in").to("out")
        >>> app = ms.Application("copy", builder.build(), bootstrap_servers="localhost:9092")
        >>> app.run(until="end")  # doctest: +SKIP
    """

    def __init__(
        self,
        application_id: str,
        topology: Topology,
        *,
        partition_grouper: PartitionGrouper = default_grouper,
        renamed_stores: Mapping[str, str] | None = None,
        clock: Clock = host_clock,
        **settings: Any,
    ) -> None:
        self.id = checked_name(application_id, "application")
        self.settings: Settings = settings_from(settings)
        # The topics that have key ranges, whatever the number of workers becomes.
        self._parallelism = self.settings.parallelism
        self._program = program_of(topology, self.id, self.settings, renamed_stores)
        self._clients = Clients(self.settings, self.id)
        self._grouper = partition_grouper
        self._clock = clock
        self._changes = threading.Lock()
        """Held during a change of the topology or of the workers: each begins with the program that the one before left."""

    @property
    def plan(self) -> Plan:
        """The plan of the topology."""
        return self._program.plan

    def run(self, until: Until = None, *, standby: bool = False) -> RunningApplication:
        """Run until the application is stopped, by SIGTERM, SIGINT (also those to the JVM of ``spark-submit``) or an error.

        For an example, see :class:`Application`.

        Args:
            until: When the application ends without a signal. ``"end"``: after it has processed the records that are in the topics
                now. An int: after at most that many of these records. A ``datetime``: after the records before that time. A
                ``timedelta``: after that time. None: never.
            standby: As for :meth:`start`.

        Returns:
            The stopped application, for its metrics.

        Raises:
            MillstreamError: As :meth:`start`, and if the application fails later.

        Source: KIP-28, ``KafkaStreaming.start``; Kafka Streams has no counterpart of ``until``.
        """
        with exiting_on_sigterm():
            running = self.start(until=until, standby=standby)
        with stopping_on_signals(running.stop, hurry=partial(running.stop, drain_timeout_s=0)):
            running.await_termination()
        return running

    def start(self, until: Until = None, *, standby: bool = False) -> RunningApplication:
        """Check the topics, start the query, and return when every task is initialised.

        Args:
            until: When the application ends without a signal, as in :meth:`run`.
            standby: Whether this driver takes part in an election. Of several drivers, on any hosts, Kafka elects one to run the
                application. The others wait in this call, with Spark running; when the elected driver ends or dies, one of them
                takes over within ten seconds. Start all of them with ``standby=True`` and the same checkpoint.

        Returns:
            The running application.

        Raises:
            SettingsError: If Kafka's clients reject a setting, if a secret would cross a cluster unprotected, or if the checkpoint
                of a cluster is on a local disk.
            BrokerUnavailableError: If no broker answers.
            ApplicationRunningError: If the application already runs, on this state directory or elsewhere; later, if another driver is
                elected.
            TopicNotFoundError: If a topic does not exist.
            TopicRecreatedError: If a topic was deleted and created again since the checkpoint read it.
            CoPartitioningError: If topics that meet in a store have different numbers of partitions.
            CheckpointError: If the checkpoint is damaged; nothing has been started on it.
            IncompatibleTopologyError: If the checkpoint belongs to a topology that this one cannot continue.
            OtherCheckpointError: If, under exactly once, another checkpoint has delivered for this application.
            ControlError: If the file of the topics that stay paused cannot be read.
            SparkRuntimeError: If the program uses Spark Connect, or Spark does not start.
            MillstreamError: If the first micro-batch fails for another reason.

        Source: ``org.apache.kafka.streams.KafkaStreams.start``.

        Example:
            >>> with app.start() as running:  # doctest: +SKIP
            ...     print(running.status().lag)
        """
        bound = Bound.of(until)
        check_spark_packages()
        refuse_connect()
        self._clients.check()
        broker = self._clients.broker()
        environment = Environment(self._clients, broker, self._grouper, self._clock, bound)
        candidate = self._candidate(standby)
        running = self._leased(broker, candidate)
        run = running._run
        try:
            run.listeners.open(running, self.settings, run.progress.event, lambda: run.plan)
            servers = self.settings.bootstrap_servers
            run.progress.event("starting", f"reading the topics from {servers}", bootstrap_servers=servers)
            if candidate is not None:
                candidate.attach_to(run)
            run.query.current = self._launch(running, environment)
            if run.error is not None:  # another driver was elected before there was a query to stop
                raise run.error
            write_control_file(run.resources.lease.home, run.control.address)
            if bound.end is None:
                run.query.launch = partial(self._launch, running, environment)
            run.await_first_batch()
            if run.state.now in FINAL:
                return running
            if run.plan.repartition_topics:
                interval_s = self.settings.repartition_purge_interval_ms / 1000
                run.purging = PeriodicTask(run.purge.purge, interval_s)
            if bound.end is None:
                self._keep_up(running, environment)
            bound.watch(running)
            # If another driver was elected meanwhile, nobody else ends the new threads.
            if run.state.now in FINAL:
                run.release()
        except BaseException as error:
            run.abandon()
            if (ours := start_error(error, run.checkpoint)) is not None:
                raise ours from error
            raise
        return running

    def _candidate(self, standby: bool) -> Candidate | None:
        """Return how this driver takes part in the election; None if marks decide which driver may send."""
        if standby:
            return Standby.elected(self.id, self.settings)
        return None if self.settings.exactly_once else SingleDriver(self._clients)

    def _leased(self, broker: Broker, candidate: Candidate | None) -> RunningApplication:
        """Take the lease, and read from its directory which topics stay paused."""
        take, lease = partial(Lease.take, self.settings.home(self.id), self.id, "running"), None
        disconnect = partial(self._disconnect, candidate)
        try:
            lease = take() if candidate is None else candidate.lease(take)
            spark_log = attach(self.settings.output, lease.home / "millstream.log")
            rates = self.settings.max_records_per_second
            existing = broker.partition_counts() if self.plan.topics_vary else {}
            known = self._program.matching(self.settings, existing).broker_topics
            resources = Resources(
                GroupOffsets(broker),
                lease,
                FlowControl.at_start(lease.home, known, rates),
                InternalTopics(broker),
                disconnect,
                lambda: self._program.copies,
                partial(check_query_key, self.settings),
                partial(last_records, self.settings),
                self.settings.drain_timeout_ms / 1000,
                self.settings.exactly_once,
                spark_log,
                candidate.listeners if isinstance(candidate, Standby) else Listeners(),
            )
            return RunningApplication(self.id, resources)
        except BaseException:
            if lease is not None:
                lease.release()
            disconnect()
            raise

    def _disconnect(self, candidate: Candidate | None) -> None:
        if candidate is not None:
            candidate.leave()
        self._clients.disconnect()

    def _launch(self, running: RunningApplication, environment: Environment) -> StreamingQuery:
        running._run.resources.group_offsets.query_starts()
        return Launch(running._run, environment, self._program, self.settings).start()

    def _keep_up(self, running: RunningApplication, environment: Environment) -> None:
        """Start to handle changes while the application runs: failures, edits, numbers of workers, topic metadata."""
        run = running._run
        refresher = MetadataRefresher(
            run, environment, lambda existing: self._program.matching(self.settings, existing), self.settings
        )
        run.query.topics_changed = refresher.changed_under_query
        run.supervision = PeriodicTask(run.query.recover, _SUPERVISION_S)
        running._edit = partial(self._exclusively, self._edit, running, environment)
        if run.rescale_later:
            run.query.restart("the interrupted micro-batch is complete; moving the state now")
        running._set_workers = partial(self._exclusively, self._set_workers, running, environment)
        if is_automatic(self.settings.parallelism):
            run.auto_workers = self._auto_workers(running)
        run.metadata_refresher = PeriodicTask(refresher.refresh, self.settings.metadata_max_age_ms / 1000)

    def _auto_workers(self, running: RunningApplication) -> AutoWorkers:
        run = running._run
        session = run.session.session(self.settings)
        cores, tasks = lambda: session.sparkContext.defaultParallelism, lambda: len(run.reports.tasks)

        def apply(change: WorkersChange) -> None:
            if is_automatic(self.settings.parallelism):  # unless a command has set a number in the meantime
                self.settings = self.settings.model_copy(update={"shuffle_partitions": change.workers})
                run.query.restart(change.reason)

        return AutoWorkers(run.workers, cores, tasks, apply)

    def _exclusively(self, change: Callable[..., T], *args: Any, **options: Any) -> T:
        with self._changes:
            return change(*args, **options)

    def _set_workers(self, running: RunningApplication, environment: Environment, workers: Workers) -> None:
        """Change the number of workers per partition, and divide the state if that needs more key ranges."""
        run, before = running._run, (self._program, self.settings)
        if workers == AUTO and run.auto_workers is not None:
            return
        settings = self.settings.model_copy(
            update={
                "parallelism": with_workers(self._parallelism, workers),
                "shuffle_partitions": None,
                "on_changed_shuffle_partitions": "rescale",
            }
        )
        program = self._program.planned_with(settings)
        divides = self._continued(running, environment, program, settings).divisions()
        if run.auto_workers is not None:
            run.auto_workers.close()
        try:
            if workers == AUTO and not divides:
                self.settings = settings
            else:
                log.warning("restarting the query: workers per partition: %s", workers)
                run.query.replace(
                    partial(self._use_program, program, settings), partial(self._use_program, *before)
                )
        finally:
            automatic = is_automatic(self.settings.parallelism) and run.state.now not in FINAL
            run.auto_workers = self._auto_workers(running) if automatic else None

    def _edit(
        self,
        running: RunningApplication,
        environment: Environment,
        topology: Topology,
        *,
        preview: bool,
        renamed_stores: Mapping[str, str] | None,
    ) -> TopologyEdit:
        """Return what an edit does, and apply it unless it is only a preview."""
        run, before = running._run, self._program
        edited = program_of(topology, self.id, self.settings, renamed_stores)
        now = self._continued(running, environment, edited, self.settings)
        edit = edit_of(run.plan, now)
        if not preview:
            log.warning("editing the topology: %s", str(edit).replace("\n", "; "))
            with emptied(run.flow_control, lambda: running.status().lag, run.plan, now.plan):
                run.query.replace(
                    lambda: self._use_program(edited, self.settings),
                    lambda: self._use_program(before, self.settings),
                )
            try:
                run.flow_control.forget_others(run.plan.broker_topics)
            except ControlError as error:  # the edit has succeeded
                log.warning("%s", error)
        return edit

    def _continued(
        self, running: RunningApplication, environment: Environment, program: Program, settings: Settings
    ) -> Continuity:
        """Return how another program continues the checkpoint of the running one. Raises an error if it cannot."""
        run = running._run
        progress = progress_of(files_of(run.checkpoint, partial(run.session.session, self.settings)))
        existing = environment.broker.partition_counts()
        continues, _ = fitted(program, settings, progress, existing, self._grouper)
        return continues

    def _use_program(self, program: Program, settings: Settings) -> None:
        self._program, self.settings = program, settings
