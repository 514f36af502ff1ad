"""A launch: starts the query on the current checkpoint, at the application's start and after each change that needs a restart."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, partial

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from millstream.core.ports import PartitionGrouper, TopicFacts
from millstream.core.runtime.admission import RunEnd
from millstream.core.runtime.auto_parallelism import most_workers
from millstream.core.runtime.batch_plan import DividedState, Initialization
from millstream.core.topology.analysis.ranges import is_automatic, workers_of
from millstream.core.topology.describe import short_lines, started_text
from millstream.core.topology.layout import Layout
from millstream.core.topology.plan import Plan
from millstream.drivers.kafka.broker import Broker
from millstream.drivers.kafka.marks import Mark
from millstream.drivers.spark.clock import Clock
from millstream.drivers.spark.driver.checkpoint import CheckpointProgress, Files, files_of
from millstream.drivers.spark.driver.placement import grouping_keys
from millstream.drivers.spark.driver.query import QuerySpec, start
from millstream.drivers.spark.driver.spark_session import configured, partitions_of
from millstream.drivers.spark.driver.stored import manifests
from millstream.drivers.spark.driver.wanted import AS_READ_CONF
from millstream.drivers.spark.executor.host_spec import HostSpec
from millstream.drivers.spark.executor.restore_progress import ApplicationListener
from millstream.drivers.spark.share_files import DIRECTORY
from millstream.drivers.spark.sink import SinkSpec
from millstream.drivers.spark.spec import SourceSpec, TopologySpec
from millstream.drivers.threads import ThreadsOfTasks
from millstream.edge.application.application_run import ApplicationRun
from millstream.edge.application.run_bounds import Bound
from millstream.edge.broker.kafka_clients import Clients
from millstream.edge.broker.topic_preparation import TopicPreparation, global_partitions
from millstream.edge.checkpoint import shuffle_rescaling
from millstream.edge.checkpoint.checkpoint_health import sound_progress
from millstream.edge.checkpoint.checkpoint_ownership import checkpoint_id, newest_of, start_facts
from millstream.edge.checkpoint.continuity import (
    Continuity,
    check_drained,
    check_finished,
    check_held,
    check_interrupted,
    check_published,
    check_same_kinds,
    check_shared,
    continuity,
    rebuilds,
)
from millstream.edge.checkpoint.key_range_division import KeyRangeDivision
from millstream.edge.planning.async_workers import AsyncWorkers
from millstream.edge.planning.plans import check_split_topics, spark_partitions
from millstream.edge.planning.programs import Program
from millstream.edge.planning.worker_counts import first_workers, threads_of
from millstream.edge.settings.settings import Settings
from millstream.edge.spark.cluster_checks import check_checkpoint, check_secrets

log = logging.getLogger("millstream.application")


@dataclass(frozen=True)
class Environment:
    """What an application uses throughout its run."""

    clients: Clients
    broker: Broker
    grouper: PartitionGrouper
    clock: Clock
    bound: Bound


@dataclass(frozen=True)
class Continued:
    """What a launch continues.

    Attributes:
        progress: The progress of the checkpoint; None without one.
        existing: Partition counts of the existing topics.
        division: The division of the checkpoint's state among more key ranges.
    """

    progress: CheckpointProgress | None
    existing: Mapping[str, int]
    continuity: Continuity
    layout: Layout
    division: KeyRangeDivision

    @property
    def plan(self) -> Plan:
        return self.continuity.plan


@dataclass(frozen=True)
class PreparedTopics:
    """The topics of a launch, checked and created.

    Attributes:
        new_changelogs: The stores whose changelog topics have no records yet.
        commits: The minimum partition count of the commits topic; 0 without one.
    """

    new_changelogs: list[str]
    sinks: Mapping[str, int]
    global_counts: Mapping[str, int]
    facts: Mapping[str, TopicFacts]
    commits: int


def fitted(
    program: Program,
    settings: Settings,
    progress: CheckpointProgress | None,
    existing: Mapping[str, int],
    grouper: PartitionGrouper,
) -> tuple[Continuity, Layout]:
    """Fit a program to a checkpoint and to the existing topics.

    Raises:
        IncompatibleTopologyError: If the program cannot continue the checkpoint.
        CoPartitioningError: If topics that meet in a store have different numbers of partitions.
    """
    plan = program.matching(settings, existing)
    check_split_topics(plan, existing)
    continues = continuity(plan, progress, program.renamed_stores, exactly_once=settings.exactly_once)
    waits = settings.on_uneven_partitions == "wait"
    lay_out = continues.laid_out_evenly if waits else continues.laid_out
    return continues, lay_out(existing, grouper)


@dataclass(frozen=True)
class Launch:
    run: ApplicationRun
    environment: Environment
    program: Program
    settings: Settings

    def start(self) -> StreamingQuery:
        """Check everything, prepare the topics, and start the query."""
        now = self._continued()
        marks = self.environment.clients.marks().read_marks() if self.settings.exactly_once else {}
        checkpoint = self._checkpoint_id(now, marks)
        session = self._check(now)
        return self._with_workers(now, session)._start_on(now, session, checkpoint, marks)

    def _with_workers(self, now: Continued, session: SparkSession) -> Launch:
        """Choose the number of workers, unless a setting does: if it is automatic, or 1 with the key ranges of an earlier start."""
        settings, automatic = self.settings, is_automatic(self.settings.parallelism)
        undivided = workers_of(settings.parallelism) == 1 and now.plan.is_divided
        if settings.shuffle_partitions is not None or not (automatic or undivided):
            return self
        cores = session.sparkContext.defaultParallelism
        if automatic and self.environment.bound.end is not None:  # the number does not change in such a run
            workers = most_workers(len(now.layout.tasks), cores)
        else:
            before = now.progress.shuffle_partitions if automatic and now.progress is not None else None
            workers = first_workers(now.plan, now.layout, before, cores)
        return replace(self, settings=settings.model_copy(update={"shuffle_partitions": workers}))

    def _start_on(
        self, now: Continued, session: SparkSession, checkpoint: str, marks: Mapping[int, Mark]
    ) -> StreamingQuery:
        topics = TopicPreparation(
            self.environment.broker, self.settings.replication_factor, self.settings.internal_topic_config
        )
        rebuild = rebuilds(now.progress, lambda: topics.can_rebuild(now.plan, now.existing))
        if rebuild:
            published = self.environment.clients.published(now.plan, now.layout.tasks)
            check_published(now.continuity, now.layout, published)
        prepared = self._prepare_topics(now, topics)
        if self.settings.exactly_once:
            self._claim(now, checkpoint, marks, prepared.commits)
        self._log_plan(now, prepared.commits)
        divided = self._divide_state(now, session)
        self._take_over(now, prepared, session)
        topology = self._topology_spec(now, prepared, session)
        source = SourceSpec(
            topology,
            self.environment.broker,
            self.environment.clients.fetcher(),
            self.run.control.address,
            self.settings.max_batch_records,
            self.settings.max_batch_bytes,
            session.sparkContext.defaultParallelism,
            self.settings.auto_offset_reset,
            Initialization(rebuild, tuple(prepared.new_changelogs), divided),
            self.settings.on_lost_offsets == "skip",
            self.settings.on_recreated_topic == "restart_from_beginning",
            self.settings.waits,
            self.environment.clock,
            self.settings.trigger_interval_ms,
            checkpoint,
            self.run.run_id,
            self.environment.clients.epochs(now.plan),
        )
        return self._started(source, session)

    def _session(self) -> SparkSession:
        return self.run.session.session(self.settings)

    def _continued(self) -> Continued:
        """Read the checkpoint, and fit the plan to it and to the existing topics."""
        run, settings = self.run, self.settings
        location = run.checkpoint = settings.checkpoint(run.id)
        files = self._files()
        progress = sound_progress(files, location, self.program.plan, exactly_once=settings.exactly_once)
        existing = self.environment.broker.partition_counts()
        continues, layout = fitted(self.program, settings, progress, existing, self.environment.grouper)
        division = KeyRangeDivision(progress, continues, layout, files)
        return Continued(progress, existing, continues, layout, division)

    def _checkpoint_id(self, now: Continued, marks: Mapping[int, Mark]) -> str:
        """Return the checkpoint id under which this start delivers, and end open transactions of an earlier start."""
        begun = self.run.resources.lease.begun_checkpoint
        facts = start_facts(now.plan, self.settings, begun, self.environment.broker, now.existing)
        checkpoint = checkpoint_id(facts, now.progress, marks)
        if self.settings.exactly_once:
            open_in = now.existing.get(now.plan.commits_topic, 0)
            self.environment.clients.transactions().end_open(open_in)
        return checkpoint

    def _check(self, now: Continued) -> SparkSession:
        """Check that no records are left behind, secrets are protected and the cluster sees the checkpoint; return the session."""
        settings = self.settings
        if self.run.takes_over and now.progress is None:
            counts = {
                topic: now.existing[topic] for topic in now.plan.external_topics if topic in now.existing
            }
            committed = self.environment.broker.committed_offsets(counts)
            check_shared(now.plan, settings.checkpoint(self.run.id), committed)
        check_drained(now.plan, now.progress, self.environment.broker, now.existing)
        check_interrupted(now.plan, now.progress, exactly_once=settings.exactly_once)
        session = self._session()
        check_secrets(settings, session)
        check_checkpoint(settings, self.run.id, session)
        now.division.check()
        if now.progress is not None:
            remembered = cache(partial(self._manifests, now.progress))
            check_held(now.continuity, now.layout, remembered)
            check_same_kinds(now.continuity, remembered)
            if settings.on_removed_operator == "fail":
                check_finished(now.continuity, remembered)
        return session

    def _divide_state(self, now: Continued, session: SparkSession) -> DividedState | None:
        """Divide the state of tasks whose partitions now have more key ranges; return None if there are none."""
        settings = self.settings
        now.division.remove_old_shares()
        if not now.division.needed:
            return None
        location = settings.checkpoint(self.run.id)
        with configured(session, settings.spark, spark_partitions(settings), location):
            return now.division.divide(session, location)

    def _files(self) -> Files:
        return files_of(
            self.settings.checkpoint(self.run.id), partial(self.run.session.session, self.settings)
        )

    def _manifests(self, progress: CheckpointProgress) -> list[bytes]:
        settings, session = self.settings, self._session()
        if progress.last_complete < 0:
            return []
        location = settings.checkpoint(self.run.id)
        with configured(session, settings.spark, spark_partitions(settings), location):
            return manifests(session, location, progress.last_complete)

    def _prepare_topics(self, now: Continued, topics: TopicPreparation) -> PreparedTopics:
        """Create the internal topics, and check all other topics."""
        plan, existing, settings = now.plan, now.existing, self.settings
        topics.prepare_repartitions(plan, now.layout, existing)
        created = topics.prepare_changelogs(plan, now.layout, existing)
        sinks = topics.await_sinks([*plan.sink_topics, *sorted(settings.policies.topics)])
        if plan.places_in_any_topic:
            sinks = {**existing, **sinks}
        global_counts = global_partitions(plan, existing)
        found = self.environment.broker.topic_facts([*plan.broker_topics, *global_counts])
        # Partitions that were added after the layout must still count as new.
        facts = {
            topic: fact._replace(partitions=existing.get(topic, fact.partitions))
            for topic, fact in found.items()
        }
        restart = settings.on_recreated_topic == "restart_from_beginning"
        now.continuity.check_topics(facts, restart_recreated=restart)
        return PreparedTopics(created, sinks, global_counts, facts, self._prepared_commits(now, topics))

    def _prepared_commits(self, now: Continued, topics: TopicPreparation) -> int:
        """Prepare the commits topic, if there is one; return its minimum partition count."""
        settings = self.settings
        if not settings.exactly_once and not now.plan.changelogs:
            return 0
        topics.check_commits(now.plan.commits_topic, now.existing)
        wanted = partitions_of(self._session(), spark_partitions(settings))
        count = max(wanted, 0 if now.progress is None else now.progress.shuffle_partitions)
        self.environment.clients.prepare_commits(count)
        return count

    def _claim(self, now: Continued, checkpoint: str, marks: Mapping[int, Mark], commits: int) -> None:
        """Claim the exclusive right to deliver under exactly once, for this checkpoint."""
        self.run.resources.lease.begin(checkpoint)
        everywhere = max(commits, now.existing.get(now.plan.commits_topic, 0))
        transactions = self.environment.clients.transactions(self.run.run_id)
        transactions.claim(newest_of(checkpoint, now.progress), marks, everywhere)

    def _log_plan(self, now: Continued, commits: int) -> None:
        config = self.settings.internal_topic_config
        log.info("%s", started_text(now.plan, now.layout, self.run.id, commits, config))
        for line in short_lines(now.plan, now.layout):
            self.run.progress.event("plan", line)

    def _take_over(self, now: Continued, prepared: PreparedTopics, session: SparkSession) -> None:
        """Set the plan of the run, and rescale its state if the settings require it."""
        run, settings, wanted = self.run, self.settings, spark_partitions(self.settings)
        run.continues = now.continuity.running_on(now.layout), prepared.facts
        run.reports.replan(now.plan, now.layout.tasks)
        run.rescale_later = shuffle_rescaling.at_start(
            now.progress,
            wanted,
            settings.on_changed_shuffle_partitions,
            run.checkpoint,
            partial(run.session.session, settings),
        )
        moves = (
            wanted is not None and settings.on_changed_shuffle_partitions != "keep" and not run.rescale_later
        )
        keeps = None if moves or now.progress is None else now.progress.shuffle_partitions
        run.workers = keeps or partitions_of(session, wanted)

    def _topology_spec(self, now: Continued, prepared: PreparedTopics, session: SparkSession) -> TopologySpec:
        clients, settings = self.environment.clients, self.settings
        lineage = now.continuity.lineage(now.layout, prepared.facts)
        return TopologySpec(
            now.plan,
            now.layout,
            grouping_keys([*now.layout.tasks, *lineage.gone_tasks()]),
            settings.policies,
            prepared.sinks,
            lineage,
            prepared.global_counts,
            settings.app_config,
            ThreadsOfTasks(threads_of(now.plan, now.layout, settings, session)),
            *clients.senders(now.plan),
            clients.most_bytes(),
            clients.most_bytes_in(prepared.sinks),
            settings.statestore_cache_max_bytes,
        )

    def _host_spec(self, topology: TopologySpec) -> HostSpec:
        clients, settings, plan = self.environment.clients, self.settings, topology.plan
        return HostSpec(
            topology,
            replace(self.program.copies, run=self.run.run_id),
            ApplicationListener.on_this_host(self.run.control.address),
            clients.changelogs(plan),
            clients.global_topics(plan),
            settings.max_task_idle_ms,
            AsyncWorkers(self.run.checkpoint) if plan.makes_calls else None,
            not settings.exactly_once,
            self._files().local(DIRECTORY),
        )

    def _started(self, source: SourceSpec, session: SparkSession) -> StreamingQuery:
        run, settings, bound, plan = self.run, self.settings, self.environment.bound, source.topology.plan
        run.progress.event("query-starts", "starting the query; the first micro-batch initialises the tasks")
        publisher = self.environment.clients.publisher(run.run_id)
        query = QuerySpec(
            run.id,
            replace(source, end=bound.end or RunEnd()),
            self._host_spec(source.topology),
            SinkSpec(publisher, plan.committed_by_transactions, run.control.address),
            run.checkpoint,
            bound.end is not None,
            settings.py_modules,
        )
        conf = settings.spark if plan.has_prefix else {**AS_READ_CONF, **settings.spark}
        with configured(session, conf, spark_partitions(settings), query.checkpoint_location):
            return start(session, query)
