"""One run of an application: its parts, and how it waits for its query, stops and fails."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession

from millstream.core.model.errors import ControlError, MillstreamError
from millstream.core.ports import TopicFacts
from millstream.core.runtime.lifecycle import ENDING, FINAL, Event, State
from millstream.core.topology.plan import Plan
from millstream.drivers.spark.control import ControlServer
from millstream.drivers.spark.driver.launch import keep_classes
from millstream.drivers.spark.executor.copies import CopiesSpec
from millstream.edge.application.auto_workers import AutoWorkers
from millstream.edge.application.draining import Draining
from millstream.edge.application.periodic_task import PeriodicTask
from millstream.edge.application.replaceable_query import ApplicationState, ReplaceableQuery
from millstream.edge.broker.group_offsets import GroupOffsets
from millstream.edge.broker.record_purging import Purge
from millstream.edge.checkpoint.continuity import Continuity
from millstream.edge.checkpoint.state_lease import Lease
from millstream.edge.control.control_file import delete_control_file
from millstream.edge.control.flow_control import FlowControl
from millstream.edge.queries.store_answers import Answers
from millstream.edge.queries.store_hosts import StoreHosts
from millstream.edge.queries.task_copies import Copies
from millstream.edge.records.topic_records import Serdes
from millstream.edge.spark.application_session import ApplicationSession
from millstream.edge.spark.spark_errors import explained
from millstream.edge.status.application_status import Status
from millstream.edge.status.progress_log import ProgressLog, RepeatedWarnings, facts_of, summary
from millstream.edge.status.task_reports import TaskReports
from millstream.edge.taps.tap_buffers import TapBuffers
from millstream.edge.web.listeners import Listeners

if TYPE_CHECKING:
    from millstream.drivers.kafka.internal_topics import InternalTopics

log = logging.getLogger("millstream.application")

_POLL_S = 0.02


@dataclass(frozen=True)
class Resources:
    """What an application receives at its start.

    Attributes:
        check_query_key: Raises an error if the key of query connections would reach executors unprotected.
        record_deleter: Deletes processed records of repartition topics.
        last_records: Returns the last records of each partition of a topic: a number of them, read with serdes.
        drain_timeout_s: How long a stop may wait for in-flight records.
        transactional: Whether transactions commit the offsets.
        spark_log: File for Spark's output; None means this program's output.
        listeners: The HTTP listeners; those of a standby are already open.
    """

    group_offsets: GroupOffsets
    lease: Lease
    flow_control: FlowControl
    record_deleter: InternalTopics
    disconnect: Callable[[], None]
    copies: Callable[[], CopiesSpec]
    check_query_key: Callable[[SparkSession], None]
    last_records: Callable[[str, int, Serdes], Iterable[tuple[Any, ...]]]
    drain_timeout_s: float = 0.0
    transactional: bool = False
    spark_log: Path | None = None
    listeners: Listeners = field(default_factory=Listeners)


class ApplicationRun:
    """The parts of a running application. Used by several threads.

    Attributes:
        run_id: The id of this run, the same for all its queries.
        rescale_later: Whether to rescale the state once the interrupted micro-batch is complete.
        workers: The number of Spark partitions that run the tasks; 0 before the first launch.
        takes_over: Whether another driver ran the application while this one was a standby.
        auto_workers: Adjusts the number of workers to the load; None if the number is set.
        metadata_refresher: Follows changes of topics; None in a run to an end.
        purging: Purges repartition topics; None without them.
        supervision: Restarts the query after the loss of a process; None in a run to an end.
    """

    control: ControlServer

    def __init__(self, application_id: str, resources: Resources) -> None:
        self.id = application_id
        self.run_id = secrets.token_hex(8)
        self.resources = resources
        self.state = ApplicationState()
        self.error: MillstreamError | None = None
        self.query = ReplaceableQuery(self.state, self._explained, self._fail)
        self._continues: tuple[Continuity, Mapping[str, TopicFacts]] | None = None
        self.checkpoint = ""
        self.rescale_later = False
        self.workers = 0
        self.takes_over = False
        self.auto_workers: AutoWorkers | None = None
        self.progress = ProgressLog(application_id)
        self.session = ApplicationSession(application_id, self.progress, resources.spark_log)
        self.warnings = RepeatedWarnings(partial(log.warning, "%s"))
        self.reports = TaskReports()
        hosts = StoreHosts(
            self._running_session, resources.check_query_key, lambda: resources.copies().directory
        )
        self.answers = Answers(
            application_id, Copies(resources.copies, hosts), self.reports, lambda: self.plan
        )
        self.taps = TapBuffers(application_id, lambda: self.plan)
        self.draining = Draining(self.reports.in_flight_left)
        self.purge = Purge(resources.record_deleter, lambda: self.plan.repartition_topics)
        self.listeners = resources.listeners
        self.metadata_refresher: PeriodicTask | None = None
        self.purging: PeriodicTask | None = None
        self.supervision: PeriodicTask | None = None
        self._ending = threading.Lock()

    @property
    def continues(self) -> tuple[Continuity, Mapping[str, TopicFacts]]:
        """The running plan, as it continues the checkpoint, and the topics at its start.

        Raises:
            ControlError: If the first launch has not planned the topology yet. The application's page is already open.
        """
        if self._continues is None:
            raise ControlError(
                f"application {self.id!r} is starting, and its topology is not planned yet; ask again"
            )
        return self._continues

    @continues.setter
    def continues(self, continues: tuple[Continuity, Mapping[str, TopicFacts]]) -> None:
        self._continues = continues

    @property
    def plan(self) -> Plan:
        return self.continues[0].plan

    @property
    def flow_control(self) -> FlowControl:
        """The flow control, for changes.

        Raises:
            ControlError: If the application has ended, because its file may then belong to another run.
        """
        if not self.resources.lease.is_held:
            raise ControlError(
                f"application {self.id!r} has ended ({self.state.now}); only a running application accepts commands"
            )
        return self.resources.flow_control

    def status(self) -> Status:
        if self.state.now not in ENDING and self.query.unchanging.is_set():
            self._note_failed_query()
        limits = self.resources.flow_control.limits
        return replace(
            self.reports.status(self.state.now.value, None if self.error is None else str(self.error)),
            paused=sorted(limits.paused),
            throttled=limits.rates,
            workers=self.workers,
            lacking=self.session.lacking,
        )

    def await_first_batch(self) -> None:
        """Wait until the query has committed its first micro-batch, and report progress from then on, or until the query has ended.

        Raises:
            MillstreamError: If the application has failed.
        """
        assert self.query.current is not None
        while not self.query.first_batch.wait(_POLL_S):
            if not self.query.current.isActive and self.await_termination(0):
                return
        self.flow_control.forget_unread()
        if self.state.on(Event.FIRST_BATCH_COMMITTED):
            keep_classes()
            self.progress.event("running", f"running after {self.progress.seconds:.1f} s")
        self.progress.follow(lambda: (self.status(), self.reports.metrics()), self.warnings.flush)

    def await_termination(self, timeout_s: float | None) -> bool:
        """Wait until the application has ended; return False after the timeout.

        Raises:
            MillstreamError: If the application has failed.
        """
        if self.query.current is None:
            return True
        ended = True
        try:
            ended = self._wait(timeout_s)
        except (StreamingQueryException, OSError, Py4JError) as error:
            self._fail(error)
        if self.error is not None:
            raise self.error from self.error.__cause__
        if ended:
            self._finish()
        return ended

    def stop(self, timeout_s: float, drain_timeout_s: float | None) -> None:
        """Drain, stop the query between two micro-batches, and release everything."""
        if self.query.current is not None:
            limit_s = self.resources.drain_timeout_s if drain_timeout_s is None else drain_timeout_s
            self.draining.begin(limit_s)
            self.state.on(Event.DRAIN_REQUESTED)
            self.draining.wait(self._can_drain)
            # Before taking the lock, which a restart holds while it waits for a broker.
            self.state.on(Event.STOP_REQUESTED)
        with self.query.lock:
            if self.query.current is None:
                return
            if self.state.now in FINAL:  # after a failure that nobody has awaited, everything is still held
                self.release()
                return
            try:
                self.query.stop(self.query.current, timeout_s)
            except (OSError, Py4JError) as gone:
                self._note_error(gone)
            outcome = self.draining.outcome(self.reports.in_flight_left(0).unfinished)
            if outcome:
                log.warning("stopped: %s", outcome)
            self._finish()

    def abandon(self) -> None:
        """Stop the query immediately, and release everything."""
        query = self.query.current
        try:
            if query is not None and query.isActive:
                query.stop()
        except (OSError, Py4JError):  # the JVM was killed
            pass
        except PySparkException as error:  # the error before this one is raised
            log.warning("the query could not be stopped: %s", error)
        self.release()

    def end_with(self, error: MillstreamError) -> None:
        """Fail for a reason outside Spark, and stop the query."""
        self._note_error(error)
        self.abandon()

    def release(self) -> None:
        """Release everything; releasing it twice is harmless."""
        self.listeners.close()
        self.progress.close()
        for task in (self.metadata_refresher, self.purging, self.supervision, self.auto_workers):
            if task is not None:
                task.close()
        self.control.close()
        self.answers.close()
        self.taps.end()
        if self.resources.lease.is_held:
            delete_control_file(self.resources.lease.home)
        self.resources.lease.release()
        self.resources.disconnect()

    def _running_session(self) -> SparkSession:
        assert self.session.made is not None
        return self.session.made

    def _can_drain(self) -> bool:
        assert self.query.current is not None
        try:
            runs = self.query.current.isActive or not self.query.unchanging.is_set()
        except (OSError, Py4JError):
            return False
        return runs and self.state.now not in ENDING

    def _wait(self, timeout_s: float | None) -> bool:
        """Wait in short steps, so that Python handles signals; return whether the application has ended."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            query = self.query.current
            assert query is not None
            try:
                ended = bool(query.awaitTermination(1))
            except StreamingQueryException:
                self.query.recover()
                settled = self.query.unchanging.is_set() and query is self.query.current
                if settled and not self.query.abandoned:
                    raise
                ended = True  # another query continues, or the application is being stopped
            if ended and not self.query.unchanging.wait(1):
                ended = False  # a restart waits for a broker
            if (ended and query is self.query.current) or self.state.now is State.STOPPED:
                return True
            if deadline is not None and time.monotonic() > deadline:
                return False

    def _note_failed_query(self) -> None:
        if self.query.current is None:
            return
        error: Exception | None
        try:
            goes_on = self.query.current.isActive or self.query.recoverable_error() is not None
            error = None if goes_on else self.query.current.exception()
        except (OSError, Py4JError) as gone:
            error = gone
        if error is not None:
            self._note_error(error)

    def _note_error(self, error: Exception) -> None:
        if self.state.now not in FINAL:
            self.error = self._explained(error)
        if self.state.on(Event.ERROR):
            self._summarise("failed")

    def _explained(self, error: Exception) -> MillstreamError:
        return explained(error, self.checkpoint)

    def _fail(self, error: Exception) -> None:
        self._note_error(error)
        self.release()

    def _finish(self) -> None:
        with self._ending:
            if self.state.now is not State.FAILED:
                self.purge.purge()
            if self.state.on(Event.QUERY_ENDED):
                self._summarise("stopped")
            self.release()

    def _summarise(self, event: str) -> None:
        self.warnings.flush()
        now = self.status(), self.reports.metrics()
        self.progress.event(event, summary(*now, self.progress.seconds), **facts_of(*now))
