"""Requests of Spark's processes to the application: from the planner before each micro-batch, from the sink's commit, and from tasks.

Commands and questions of other processes arrive on the same socket.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, Protocol

from millstream.core.model.errors import BrokerUnavailableError, MillstreamError
from millstream.core.model.ids import TopicPartition
from millstream.core.queries.question import Answer, Question
from millstream.core.runtime.lifecycle import Event
from millstream.core.runtime.messages import PlanningOrders, PlanRequest
from millstream.core.runtime.origins import committable, origins, topics_committed_later, topics_in_front
from millstream.core.runtime.pausing import resting
from millstream.core.runtime.task_report import CommittedBatch
from millstream.drivers.spark.executor.restore_progress import QUESTION as RESTORING
from millstream.edge.application.application_run import ApplicationRun
from millstream.edge.application.draining import unread
from millstream.edge.control.control_client import COMMAND
from millstream.edge.control.remote_commands import Controllable, executed
from millstream.edge.lab.display_rows import Rows
from millstream.edge.queries.remote_application import QUESTION as STORE_QUESTION
from millstream.edge.queries.remote_application import RECORDS_QUESTION
from millstream.edge.taps.tap_buffers import QUESTION as TAP_QUESTION

log = logging.getLogger("millstream.application")


class ApplicationView(Controllable, Protocol):
    """An application that takes commands and answers questions about its stores and topics."""

    def stores(self) -> Mapping[str, str]: ...

    def ask(self, question: Question) -> Answer: ...

    def read(self, topic: str, last: int) -> Rows: ...


class SparkRequests:
    """Answers requests in threads of the control server.

    Args:
        application: Executes commands and answers questions about stores and topics.
    """

    def __init__(self, run: ApplicationRun, application: ApplicationView) -> None:
        self._run = run
        self._application = application

    def answer(self, request: str, data: Any) -> Any:
        """Return the answer to a request.

        Raises:
            MillstreamError: If the request fails; the error is sent to the process that made it.
        """
        if request == "plan":
            return self._planned(data)
        if request == "topics":
            if self._run.metadata_refresher is not None:
                self._run.metadata_refresher.wake()
            return True
        if request == "epochs":
            self._run.reports.set_epochs(data)
            return True
        if request == "batch":
            self._record_batch(data)
            return True
        if request == RESTORING:
            log.warning("%s", data.line())
            self._run.reports.restoring(data)
            return True
        if request == STORE_QUESTION:
            return self._application.stores() if data is None else self._application.ask(data)
        if request == RECORDS_QUESTION:
            return self._application.read(*data)
        if request == TAP_QUESTION:
            return self._run.taps.answer(*data)
        if request == COMMAND:
            return executed(self._application, *data)
        raise MillstreamError(f"the application does not know the request {request!r}; this is a bug")

    def _planned(self, data: PlanRequest) -> PlanningOrders:
        """Record the planner's view, and return its orders."""
        run = self._run
        run.state.on(Event.BROKER_LOST if data.ends is None else Event.BROKER_BACK)
        run.reports.planned(data.positions, data.ends, data.throttled_ms)
        run.purge.planned(data.positions)
        oldest = run.reports.oldest(origins(run.plan))
        if data.ends is not None:
            run.resources.group_offsets.planned(data.positions)
            self._commit_behind_shuffle(data, oldest)
            self._renew_offsets(data)
        if run.draining.has_begun:
            self._check_drained(data)
        elif self._workers_must_change(data):
            run.query.hold.set()
        # Stopping before the next micro-batch would lose the records that the last one left out. Without a broker, none can be planned.
        hold = run.query.hold.is_set() and (not data.left_out or data.ends is None)
        # Spark plans between micro-batches, so none is running; after this answer, none will start.
        if hold:
            run.query.between_batches.set()
        limits = run.resources.flow_control.limits
        return PlanningOrders(
            hold=hold,
            intake=not run.draining.has_begun,
            paused=limits.unread,
            rates=limits.rates,
            commit=run.reports.commit_requested,
            due=self._due_tasks(data, limits.unread),
            records=run.reports.buffered_inputs(topics_in_front(run.plan), data.now_ms),
            times=run.reports.times,
            oldest=oldest,
            bytes_per_record=run.reports.bytes_per_record(),
            taps=run.taps.nodes(),
            initialize=run.query.repeated and not run.plan.keepers.keys().isdisjoint(run.plan.changelogs),
        )

    def _due_tasks(self, data: PlanRequest, paused: Collection[str]) -> tuple[str, ...]:
        """Return the tasks to wake: tasks with work that is due, and tasks for whose local copies a query waits."""
        due = self._run.reports.due(data.now_ms, resting(self._run.plan, paused))
        return tuple(sorted({*due, *self._run.answers.take_woken()}))

    def _workers_must_change(self, data: PlanRequest) -> bool:
        auto = self._run.auto_workers
        if auto is None or data.ends is None:
            return False
        return auto.planned(unread(data.positions, data.ends, data.ends))

    def _record_batch(self, batch: CommittedBatch) -> None:
        """Record the reports of a micro-batch, and commit its offsets to Kafka before Spark commits it."""
        run, reports = self._run, batch.reports()
        for notice in (notice for report in reports for notice in report.notices):
            run.warnings.warn(notice)
        offsets = run.reports.record_batch(batch.number, reports)
        if run.auto_workers is not None:
            run.auto_workers.record_batch(reports)
        run.answers.release_views()
        for line in run.reports.waiting_lines():
            run.warnings.warn(line)
        transactional = run.plan.committed_by_transactions if run.resources.transactional else ()
        if self._commit(
            {partition: n for partition, n in offsets.items() if partition.topic not in transactional}
        ):
            run.purge.record_committed(offsets)
        run.taps.record_batch(batch.number, reports)
        run.query.newest_batch, run.query.repeated = batch.number, batch.repeated
        run.query.first_batch.set()

    def _commit_behind_shuffle(self, data: PlanRequest, oldest: Mapping[str, int]) -> None:
        """Commit topics that are read before Spark's shuffle, as far as asynchronous operators after it have finished their records."""
        if data.origins is None:
            self._commit({})
            return
        later = topics_committed_later(self._run.plan)
        read = {topic: partition for topic, partition in data.positions.items() if topic in later}
        news = self._run.reports.finish(committable(read, data.origins, oldest), read)
        self._commit(
            news,
            {
                partition: until
                for partition in news
                if (until := read[partition.topic][partition.partition]) > news[partition]
            },
        )

    def _renew_offsets(self, data: PlanRequest) -> None:
        read = {
            topic: data.positions[topic] for topic in self._run.plan.broker_topics if topic in data.positions
        }
        try:
            self._run.resources.group_offsets.renew(read)
        except MillstreamError as error:
            log.warning("could not renew the committed offsets, will retry in an hour: %s", error)

    def _commit(
        self,
        offsets: Mapping[TopicPartition, int],
        taken: Mapping[TopicPartition, int] = MappingProxyType({}),
    ) -> bool:
        """Commit offsets, and retry those of failed commits; return whether all are committed."""
        known = {partition: n for partition, n in offsets.items() if self._run.reports.knows(partition.topic)}
        try:
            self._run.resources.group_offsets.commit(known, taken)
        except BrokerUnavailableError as error:
            log.warning("could not commit offsets, will retry: %s", error)
            return False
        return True

    def _check_drained(self, data: PlanRequest) -> None:
        internal = self._run.plan.internal_topics.keys() - self._run.resources.flow_control.limits.paused
        self._run.draining.check(data.now_ms, unread(data.positions, data.ends, internal))
