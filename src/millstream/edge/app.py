"""Application: puts settings, broker, topology and Spark together, and runs them. The only composition root."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any

from pyspark.sql.streaming import StreamingQuery

from millstream.core.model.topics import checked_name
from millstream.core.ports import PartitionGrouper
from millstream.core.topology.describe import short_lines, started_text
from millstream.core.topology.layout import default_grouper
from millstream.core.topology.plan import Plan
from millstream.core.topology.topology import Topology
from millstream.drivers.kafka.broker import Broker
from millstream.drivers.kafka.internal_topics import InternalTopics
from millstream.drivers.spark.clock import Clock, host_clock
from millstream.drivers.spark.sink import SinkSpec
from millstream.drivers.spark.spec import SourceSpec, TopologySpec
from millstream.drivers.spark.submit.checkpoint import Progress, files_of, manifests, progress_of
from millstream.drivers.spark.submit.placement import grouping_keys
from millstream.drivers.spark.submit.query import QuerySpec, start
from millstream.drivers.spark.submit.session import configured, partitions_of, refuse_connect
from millstream.drivers.spark.submit.wanted import AS_READ_CONF
from millstream.drivers.spark.worker.host import HostSpec
from millstream.drivers.spark.worker.progress import TellApplication
from millstream.drivers.threads import ThreadsOfTasks
from millstream.edge import contact, rescale
from millstream.edge.bounded.until import Bound, Until
from millstream.edge.checkpoints import sound_progress
from millstream.edge.clients import Clients
from millstream.edge.cluster import check_checkpoint, check_secrets
from millstream.edge.continuity import check_drained, check_left_behind, check_published, continuity
from millstream.edge.editing.edit import TopologyEdit, edit_of, emptied
from millstream.edge.editing.following import Following
from millstream.edge.global_stores import global_partitions
from millstream.edge.group_offsets import GroupOffsets
from millstream.edge.lease import Lease
from millstream.edge.orders import StandingOrders
from millstream.edge.output import attach
from millstream.edge.ownership import checkpoint_id, newest_of, start_of
from millstream.edge.packages import check_spark_packages
from millstream.edge.planning.key_ranges import check_workers
from millstream.edge.planning.plans import planned, spark_partitions
from millstream.edge.planning.programs import Program, program_of
from millstream.edge.planning.thread_counts import threads_of
from millstream.edge.running import RunningApplication
from millstream.edge.settings import Settings, settings_from
from millstream.edge.signals import stopping_on_signals
from millstream.edge.standby import Standby
from millstream.edge.stations import ApplicationStations, makes_calls
from millstream.edge.topics import Topics
from millstream.edge.upkeep import Upkeep

log = logging.getLogger("millstream.application")

_QUERY_STARTS = "starting the query; the first micro-batch initialises the tasks"


class Application:
    """A topology that runs on Spark against a Kafka cluster.

    Args:
        application_id: Unique in the cluster: the consumer group, the prefix of internal topics, and the name of the state.
        topology: What to run.
        partition_grouper: Forms partition groups; the default is KIP-28's.
        renamed_stores: New name per old name of a store whose content the checkpoint has under the old name. It may stay
            there when the renaming is done.
        clock: Gives the wall clock of each micro-batch, ms since the epoch; the default is the host's. It is called in another
            process of this host, to which it crosses as cloudpickle.
        **settings: See ``docs/reference/settings.md``; ``bootstrap_servers`` is required.

    Raises:
        SettingsError: If a setting does not exist or has an impossible value.
        TopologyError: If the topology is not valid.

    Source: KIP-28, "Architecture Design"; ``org.apache.kafka.streams.KafkaStreams``, whose ``Time`` is ``clock`` here.
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
        self._program = program_of(topology, self.id, self.settings, renamed_stores)
        self._clients = Clients(self.settings, self.id)
        self._grouper = partition_grouper
        self._clock = clock

    @property
    def plan(self) -> Plan:
        """The plan of the topology."""
        return self._program.plan

    def run(self, until: Until = None, *, standby: bool = False) -> RunningApplication:
        """Run until the application is stopped, by SIGTERM, SIGINT (also those to the JVM of ``spark-submit``) or an error.

        Args:
            until: When it ends by itself: ``"end"`` processes what is in the topics now, an int at most so many records of it, a
                ``datetime`` those before that time; a ``timedelta`` stops it after so long. None: never.
            standby: As for :meth:`start`.

        Returns:
            The application, stopped; for its metrics.

        Raises:
            MillstreamError: As :meth:`start`, and when the application fails later.
        """
        running = self.start(until=until, standby=standby)
        with stopping_on_signals(running.stop, hurry=partial(running.stop, drain_timeout_s=0)):
            running.await_termination()
        return running

    def start(self, until: Until = None, *, standby: bool = False) -> RunningApplication:
        """Check topics, start the query and return when every task has been initialised.

        Args:
            until: When it ends by itself, as in :meth:`run`.
            standby: Whether this is one of several drivers, on any hosts, of which Kafka elects one to run the application. The others
                wait here, with Spark running, and one of them takes over within ten seconds when it ends or dies. All of them are
                started with ``standby=True`` and see the same checkpoint.

        Returns:
            The running application.

        Raises:
            SettingsError: If Kafka's clients do not take a setting, or if a cluster would get a secret without protection, or
                a checkpoint that is on a local disk.
            BrokerUnavailableError: If no broker answers.
            ApplicationRunningError: If the application runs on this state directory already; later, if another driver is elected.
            TopicNotFoundError: If a topic does not exist.
            TopicRecreatedError: If a topic is not the one that the checkpoint has read.
            CoPartitioningError: If topics that meet in a store have different numbers of partitions.
            CheckpointError: If the checkpoint is damaged; nothing has been started on it.
            IncompatibleTopologyError: If the checkpoint belongs to a topology that this one cannot continue.
            OtherCheckpointError: If another checkpoint has delivered as this application, under exactly once.
            ControlError: If the list of topics that are kept paused cannot be read.
            SparkRuntimeError: If the program uses Spark Connect, or Spark does not start.
            MillstreamError: If the first batch fails for another reason.
        """
        bound = Bound.of(until)
        check_spark_packages()
        refuse_connect()
        self._clients.check()
        broker = self._clients.broker()
        standing_by = Standby.elected(self.id, self.settings) if standby else None
        running = self._leased(broker, standing_by)
        try:
            running.listeners.open(running, self.settings, running._progress.say, lambda: running._plan)
            servers = self.settings.bootstrap_servers
            running._progress.say(
                "starting", f"looking at the topics on {servers}", bootstrap_servers=servers
            )
            running._query = self._launch(running, broker, bound)
            contact.announce(running._lease.home, running._control.address)
            running._await_first_batch()
            if running._plan.purged_topics:
                running._purging = Upkeep(
                    running._purge.purge, self.settings.repartition_purge_interval_ms / 1000
                )
            if bound.end is None:
                self._keep_up(running, broker)
            bound.watch(running)
        except BaseException:
            running._abandon()
            raise
        return running

    def _leased(self, broker: Broker, standing_by: Standby | None) -> RunningApplication:
        """Take the lease, and what was ordered to be kept beside it."""
        group, lease = GroupOffsets(broker), None
        try:
            take = partial(Lease.take, self.settings.home(self.id), self.id, "running")
            lease = take() if standing_by is None else standing_by.lease(take)
            spark_log = attach(self.settings.output, lease.home / "millstream.log")
            rates = self.settings.max_records_per_second
            known = self._plan_of(broker).broker_topics
            orders = StandingOrders.at_start(lease.home, known, rates)
            drain_timeout_s = self.settings.drain_timeout_ms / 1000
            deleter, hang_up = InternalTopics(broker), self._clients.hang_up
            running = RunningApplication(
                self.id,
                group,
                lease,
                orders,
                deleter,
                hang_up,
                drain_timeout_s,
                transactional=self.settings.exactly_once,
                copies=lambda: self._program.copies,
            )
            running._session.log = spark_log
            if standing_by is not None:
                standing_by.attach_to(running)
            return running
        except BaseException:
            if lease is not None:
                lease.release()
            if standing_by is not None:
                standing_by.leave()
            self._clients.hang_up()
            raise

    def _launch(self, running: RunningApplication, broker: Broker, bound: Bound) -> StreamingQuery:
        """Start the query on the checkpoint as it is now: at the start, and when something has changed since."""
        settings = self.settings
        location = running._checkpoint = settings.checkpoint(self.id)
        files = files_of(location, running._session.of(settings))
        progress = sound_progress(files, location, self.plan, exactly_once=settings.exactly_once)
        existing = broker.partition_counts()
        plan = continuity(self._plan_of(broker, existing), progress, self._program.renamed_stores)
        layout = plan.laid_out(existing, self._grouper)
        topics = Topics(broker, settings.replication_factor, settings.internal_topic_config)
        marks = self._clients.marks().found() if settings.exactly_once else {}
        start_facts = start_of(plan.plan, settings, running._lease.begun, broker, existing)
        checkpoint = checkpoint_id(start_facts, progress, marks)
        if settings.exactly_once:
            self._clients.transactions().end_open(existing.get(plan.plan.commits_topic, 0))
        check_drained(plan.plan, progress, broker, existing)
        session = running._session.of(settings)()
        check_secrets(settings, session)
        check_checkpoint(settings, self.id, session)
        if progress is not None:
            manifests = cache(partial(self._manifests, running, progress))
            check_left_behind(plan, layout, manifests, unfinished=settings.on_removed_operator == "fail")
        rebuild = progress is None and topics.can_rebuild(plan.plan, existing)
        if rebuild:
            check_published(plan, layout, self._clients.published(plan.plan, layout.tasks))
        topics.prepare_repartitions(plan.plan, layout, existing)
        created = topics.prepare_changelogs(plan.plan, layout, existing)
        sinks = topics.await_sinks([*plan.plan.sink_topics, *sorted(settings.policies.topics)])
        if plan.plan.places_in_any_topic:
            sinks = {**existing, **sinks}
        global_counts = global_partitions(plan.plan, existing)
        facts = broker.topic_facts([*plan.plan.broker_topics, *global_counts])
        plan.check_topics(facts, restart_recreated=settings.on_recreated_topic == "restart_from_beginning")
        commits = self._prepare_commits(running, plan.plan, progress)
        if settings.exactly_once:
            running._lease.begin(checkpoint)
            everywhere = max(commits, existing.get(plan.plan.commits_topic, 0))
            self._clients.transactions(running._run).claim(newest_of(checkpoint, progress), marks, everywhere)
        log.info("%s", started_text(plan.plan, layout, self.id, commits, settings.internal_topic_config))
        for line in short_lines(plan.plan, layout):
            running._progress.say("plan", line)
        running._continues, running._book.plan = (plan.running_on(layout), facts), plan.plan
        running._rescale_later = rescale.at_start(
            progress,
            spark_partitions(settings),
            settings.on_changed_shuffle_partitions,
            location,
            running._session.of(settings),
        )
        lineage = plan.lineage(layout, facts)
        groups = grouping_keys([*layout.tasks, *lineage.gone_tasks()])
        spec = TopologySpec(
            plan.plan,
            layout,
            groups,
            settings.policies,
            sinks,
            lineage,
            global_counts,
            settings.app_config,
            ThreadsOfTasks(threads_of(plan.plan, layout, settings, session)),
            *self._clients.senders(),
            self._clients.most_bytes(),
            self._clients.most_bytes_in(sinks),
        )
        begin = {"rebuild": rebuild, "new_topics": created}
        return self._start_query(running, broker, spec, checkpoint, begin, bound=bound)

    def _manifests(self, running: RunningApplication, progress: Progress) -> list[bytes]:
        """Read what the tasks of the checkpoint remember."""
        settings, session = self.settings, running._session.of(self.settings)()
        if progress.last_complete < 0:
            return []
        checkpoint = settings.checkpoint(self.id)
        with configured(session, settings.spark, spark_partitions(settings), checkpoint):
            return manifests(session, checkpoint, progress.last_complete)

    def _plan_of(self, broker: Broker, existing: Mapping[str, int] | None = None) -> Plan:
        """Return the plan with the topics that patterns match now."""
        if not self.plan.has_patterns:
            return self.plan
        topics = broker.partition_counts() if existing is None else existing
        return planned(self._program.topology, self.id, self.settings, topics)

    def _prepare_commits(self, running: RunningApplication, plan: Plan, progress: Progress | None) -> int:
        """Prepare the topic of commits, if there is one; give its least number of partitions."""
        settings = self.settings
        if not settings.exactly_once and not plan.changelogs:
            return 0
        wanted = partitions_of(running._session.of(settings)(), spark_partitions(settings))
        count = max(wanted, 0 if progress is None else progress.shuffle_partitions)
        self._clients.marks().prepare(count, settings.replication_factor, settings.internal_topic_config)
        return count

    def _keep_up(self, running: RunningApplication, broker: Broker) -> None:
        """Let the application follow what changes while it runs."""
        running._relaunch = partial(self._launch, running, broker, Bound())
        running._set_workers = partial(self._set_workers, running)
        running._edit = partial(self._edit, running, broker)
        if running._rescale_later:
            running._changeover.restart("the interrupted micro-batch is complete, and the state moves now")
        following = Following(self, running, broker)
        running._upkeep = Upkeep(following.look, self.settings.metadata_max_age_ms / 1000)

    def _set_workers(self, running: RunningApplication, workers: int) -> None:
        """Let the next query have another number of workers per partition.

        Raises:
            MillstreamError: If the number needs other key ranges.
        """
        plan = running._continues[0].plan
        whole = [replace(sub, ranges=1) for sub in plan.subtopologies]
        check_workers(plan, replace(plan, subtopologies=tuple(whole)), workers)
        changed = {
            "parallelism": workers,
            "shuffle_partitions": None,
            "on_changed_shuffle_partitions": "rescale",
        }
        self.settings = self.settings.model_copy(update=changed)

    def _edit(
        self,
        running: RunningApplication,
        broker: Broker,
        topology: Topology,
        *,
        preview: bool,
        renamed_stores: Mapping[str, str] | None,
    ) -> TopologyEdit:
        """Say what an edit does, and go on with it unless that is all."""
        before, edited = self._program, program_of(topology, self.id, self.settings, renamed_stores)
        location, session = running._checkpoint, running._session.of(self.settings)
        now = continuity(edited.plan, progress_of(files_of(location, session)), edited.renamed_stores)
        now.laid_out(broker.partition_counts(), self._grouper)
        edit = edit_of(running._plan, now)
        if not preview:
            log.warning("editing the topology: %s", str(edit).replace("\n", "; "))
            with emptied(running, running._plan, now.plan):
                running._changeover.replace(partial(self._use, edited), partial(self._use, before))
        return edit

    def _use(self, program: Program) -> None:
        self._program = program

    def _start_query(
        self,
        running: RunningApplication,
        broker: Broker,
        spec: TopologySpec,
        checkpoint: str,
        begin: Mapping[str, Any],
        *,
        bound: Bound,
    ) -> StreamingQuery:
        settings, session = self.settings, running._session.of(self.settings)()
        control = running._control.address
        source = SourceSpec(
            spec,
            broker,
            self._clients.fetcher(),
            control,
            settings.max_batch_records,
            settings.max_batch_bytes,
            session.sparkContext.defaultParallelism,
            settings.auto_offset_reset,
            begin,
            settings.on_lost_offsets == "skip",
            settings.on_recreated_topic == "restart_from_beginning",
            settings.waits,
            self._clock,
            settings.trigger_interval_ms,
            checkpoint,
            running._run,
        )
        running._progress.say("query-starts", _QUERY_STARTS)
        query = QuerySpec(
            self.id,
            bound.limiting(source),
            HostSpec(
                spec,
                replace(self._program.copies, run=running._run),
                TellApplication.here(control),
                self._clients.changelogs(spec.plan),
                self._clients.global_topics(spec.plan),
                settings.max_task_idle_ms,
                settings.statestore_cache_max_bytes,
                ApplicationStations(str(settings.checkpoint(self.id))) if makes_calls(spec.plan) else None,
                not settings.exactly_once,
            ),
            SinkSpec(self._clients.publisher(running._run), spec.plan.committed_by_transactions, control),
            settings.checkpoint(self.id),
            bound.end is not None,
            settings.py_modules,
        )
        conf = settings.spark if spec.plan.has_prefix else {**AS_READ_CONF, **settings.spark}
        with configured(session, conf, spark_partitions(settings), query.checkpoint_location):
            return start(session, query)
