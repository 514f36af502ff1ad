"""A running application: its state, what Spark's processes ask it, and how it ends or goes on with another query."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, Self

from py4j.protocol import Py4JError
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming import StreamingQuery

from millstream.core.metrics.metric import Numbers
from millstream.core.model.errors import BrokerUnavailableError, ControlError, MillstreamError
from millstream.core.model.ids import TopicPartition
from millstream.core.ports import TopicFacts
from millstream.core.queries.question import Answer, Question
from millstream.core.runtime.intake import topics_in_front
from millstream.core.runtime.origins import begun_from_json, committable, origins, topics_committed_later
from millstream.core.runtime.pausing import chosen_topics, resting
from millstream.core.topology.plan import Plan
from millstream.core.topology.topology import Topology
from millstream.drivers.private import process_directory
from millstream.drivers.spark.control import ControlServer
from millstream.drivers.spark.submit.classes import keep_classes
from millstream.drivers.spark.worker.copies import CopiesSpec
from millstream.drivers.spark.worker.progress import QUESTION as RESTORING
from millstream.drivers.spark.worker.report import Report
from millstream.edge import contact
from millstream.edge.continuity import Continuity
from millstream.edge.draining import Draining, unread
from millstream.edge.editing.changeover import Changeover
from millstream.edge.editing.edit import TopologyEdit
from millstream.edge.group_offsets import GroupOffsets
from millstream.edge.lab.html import status_html
from millstream.edge.lease import Lease
from millstream.edge.orders import StandingOrders
from millstream.edge.planning.spark_session import ApplicationSession
from millstream.edge.progress import Progress, Repeated, facts_of, summary
from millstream.edge.purging import Purge, RecordDeleter
from millstream.edge.queries.answers import Answers
from millstream.edge.queries.remote_application import QUESTION as STORE_QUESTION
from millstream.edge.queries.store_reader import StoreReader
from millstream.edge.spark_errors import spark_is_gone, translated
from millstream.edge.status import Book, Status
from millstream.edge.upkeep import Upkeep
from millstream.edge.web.listeners import Listeners

log = logging.getLogger("millstream.application")

_STOP_WAIT_S = 60.0
_POLL_S = 0.02


class RunningApplication:
    """An application at work. Made by :meth:`Application.start`; safe to use from several threads."""

    def __init__(
        self,
        application_id: str,
        group: GroupOffsets,
        lease: Lease,
        orders: StandingOrders,
        deleter: RecordDeleter,
        hang_up: Callable[[], None],
        drain_timeout_s: float = 0.0,
        *,
        copies: Callable[[], CopiesSpec],
        transactional: bool = False,
    ) -> None:
        self.id = application_id
        self._run = secrets.token_hex(8)
        """The id of this run of the application; restarts of the query belong to it."""
        self._leave_election: Callable[[], None] = lambda: None
        self._hang_up = hang_up  # lets the connections to the broker go
        self._drain_timeout_s = drain_timeout_s
        self._group = group  # commits the group's offsets
        self._transactional = transactional  # whether transactions commit what micro-batches finish
        self._lease = lease
        self._orders = orders
        self._checkpoint = ""
        self._progress = Progress(application_id)
        self._session = ApplicationSession(application_id, self._progress)
        self._warnings = Repeated(partial(log.warning, "%s"))
        self._continues: tuple[Continuity, Mapping[str, TopicFacts]]
        self._relaunch: Callable[[], StreamingQuery]
        self._set_workers: Callable[[int], None]
        self._edit: Callable[..., TopologyEdit] | None = None
        self._rescale_later = False
        self._upkeep: Upkeep | None = None
        self._purge = Purge(deleter, lambda: self._plan.purged_topics)
        self._purging: Upkeep | None = None
        self._changeover = Changeover(self)
        self._book = Book()
        self._answers = Answers(application_id, copies, self._book, lambda: self._plan)
        self.listeners = Listeners()
        self._draining = Draining(self._book.left)
        self._state = "starting"
        self._error: MillstreamError | None = None
        self._query: StreamingQuery | None = None
        self._control = ControlServer(self._answer, secrets.token_bytes(16), process_directory())
        self._ending = threading.Lock()

    def stop(self, timeout_s: float = _STOP_WAIT_S, *, drain_timeout_s: float | None = None) -> None:
        """Finish the batch at work, commit it and stop; nothing is lost if the time does not suffice.

        Records that wait in asynchronous operators are carried over: they go on at the next start. With time to drain, nothing more
        is read from outside, and micro-batches go on until these records are finished; those that are not in time, or wait for
        a later one, are carried over.

        Args:
            timeout_s: How long the batch at work may take before the query is stopped all the same.
            drain_timeout_s: How long it may take to finish unfinished records before that; None is the setting
                ``drain_timeout_ms``. A second call, from another thread, can shorten the time.
        """
        if self._query is not None:
            self._draining.order(self._drain_timeout_s if drain_timeout_s is None else drain_timeout_s)
            self._draining.wait(self._can_drain)
        with self._changeover.lock:
            if self._state in ("stopped", "failed") or self._query is None:
                return
            self._state = "stopping"
            try:
                self._changeover.halt(self._query, timeout_s)
            except (OSError, Py4JError) as gone:
                self._remember(spark_is_gone(gone))
            outcome = self._draining.outcome(self._book.left(0).unfinished)
            if outcome:
                log.warning("stopped: %s", outcome)
            self._finish()

    def await_termination(self, timeout_s: float | None = None) -> bool:
        """Wait until the application has ended.

        Args:
            timeout_s: How long to wait, None without end.

        Returns:
            Whether it has ended.

        Raises:
            MillstreamError: If it has failed.
        """
        if self._query is None:
            return True
        try:
            ended = self._wait(timeout_s)
        except StreamingQueryException as error:
            self._fail(error)
        except (OSError, Py4JError) as gone:
            self._fail(spark_is_gone(gone))
        if self._error is not None:
            raise self._error
        if ended:
            self._finish()
        return bool(ended)

    def pause(
        self,
        topics: Collection[str] | None = None,
        *,
        subtopologies: Collection[int] | None = None,
        keep: bool = False,
    ) -> None:
        """Stop reading topics, beside those that are paused already; what was read is finished.

        A sub-topology that nothing can reach any more does not punctuate either.

        Args:
            topics: Names of topics.
            subtopologies: Numbers of sub-topologies, as the plan in the log has them: the topics that each reads from the
                broker. Without topics and sub-topologies everything is paused.
            keep: Whether they are still paused when the application is started again.

        Raises:
            ControlError: If the application does not read such a topic or has no such sub-topology, cannot keep it, or has
                ended.

        Source: ``org.apache.kafka.streams.KafkaStreams.pause`` (KIP-834), which pauses everything.
        """
        self._standing().pause(chosen_topics(self._plan, topics, subtopologies), keep=keep)

    def resume(
        self, topics: Collection[str] | None = None, *, subtopologies: Collection[int] | None = None
    ) -> None:
        """Read topics again, now and after a restart.

        Args:
            topics: Names of topics.
            subtopologies: Numbers of sub-topologies. Without topics and sub-topologies everything is resumed.

        Raises:
            ControlError: If the application does not read such a topic or has no such sub-topology, or has ended.

        Source: ``org.apache.kafka.streams.KafkaStreams.resume`` (KIP-834).
        """
        self._standing().resume(chosen_topics(self._plan, topics, subtopologies))

    def throttle(self, topic: str, records_per_second: int | None) -> None:
        """Read at most so many records per second of a topic, until the application ends.

        Args:
            topic: Its name.
            records_per_second: At least 1; None lifts the limit, also one of the setting ``max_records_per_second``.

        Raises:
            ControlError: If the application does not read such a topic, the rate cannot be, or the application has ended.
        """
        for known in chosen_topics(self._plan, [topic]):
            self._standing().throttle(known, records_per_second)

    def parallelism(self, workers: int) -> None:
        """Process each partition by another number of workers; the query starts again in place, with all state.

        Args:
            workers: Workers per partition, as the setting ``parallelism``.

        Raises:
            ControlError: If the number needs other key ranges than there are, or the application has ended.
        """
        self._standing()
        self._set_workers(workers)
        self._changeover.restart(f"each partition has {workers} workers from now on")

    def edit(
        self, topology: Topology, *, preview: bool = False, renamed_stores: Mapping[str, str] | None = None
    ) -> TopologyEdit:
        """Go on with an edited topology, between two micro-batches, with the state of all stores that are still there.

        Args:
            topology: The edited topology.
            preview: Say only what the edit would do.
            renamed_stores: New name per old name of a store.

        Returns:
            What the edit does, when its first micro-batch is committed.

        Raises:
            IncompatibleTopologyError: If the topology cannot continue the state; nothing has changed.
            MillstreamError: If it does not start; the topology before goes on.
            ControlError: If the application has ended, or runs to an end.

        Source: KIP-28: "pause the job and edit the topology on-the-fly".
        """
        if self._edit is None:
            raise ControlError(f"application {self.id!r} is {self._state}, and cannot be edited")
        return self._edit(topology, preview=preview, renamed_stores=renamed_stores)

    def status(self) -> Status:
        """Say what the application is doing."""
        if (
            self._state in ("starting", "running")
            and self._query is not None
            and self._changeover.steady.is_set()
        ):
            error: Exception | None
            try:
                error = None if self._query.isActive else self._query.exception()
            except (OSError, Py4JError) as gone:
                error = spark_is_gone(gone)
            if error is not None:
                self._remember(error)
        draining = self._draining.ordered and self._state in ("starting", "running")
        state = "draining" if draining else self._state
        status = self._book.status(state, None if self._error is None else str(self._error))
        orders = self._orders.now
        return replace(
            status, paused=sorted(orders.paused), throttled=orders.rates, lacking=self._session.lacking
        )

    def metrics(self) -> dict[str, int]:
        """Return what has been counted since the start; see ``docs/reference/metrics.md``."""
        return self._book.metrics()

    def measured(self) -> Numbers:
        """Return what tasks have counted, with labels; see ``millstream.core.metrics.metric``."""
        return self._book.measured()

    def store(self, name: str, *, timestamps: bool = False, max_lag: int | None = None) -> StoreReader:
        """Return a store, to be read while the application runs.

        Args:
            name: The name of the store.
            timestamps: Whether values of a timestamped store come as ``ValueAndTimestamp``.
            max_lag: How many records the application may have left to process in the topics of the store; None is any number.

        Source: ``org.apache.kafka.streams.KafkaStreams.store`` and ``query`` (KIP-67, KIP-796).
        """
        return StoreReader(name, self.ask, timestamps=timestamps, max_lag=max_lag)

    def stores(self) -> Mapping[str, str]:
        """Return the stores that can be asked, with their kinds."""
        return self._answers.stores()

    def ask(self, question: Question) -> Answer:
        """Answer a question about a store; see :class:`StoreReader`."""
        return self._answers.answer(question)

    def _repr_html_(self) -> str:
        return status_html(vars(self.status()), self.id)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    # What the processes of Spark ask.

    def _answer(self, question: str, data: Any) -> Any:
        if question == "plan":
            return self._planned(data)
        if question == "topics":
            if self._upkeep is not None:
                self._upkeep.wake()
            return True
        if question == "batch":
            self._note_commit(data["batch"], [Report.decode(report) for report in data["reports"]])
            return True
        if question == RESTORING:
            log.warning("%s", data.line())
            self._book.restoring(data)
            return True
        if question == STORE_QUESTION:
            return self.stores() if data is None else self.ask(data)
        if question == contact.ORDER:
            return contact.carried_out(self, *data)
        raise MillstreamError(f"nobody knows how to answer {question!r}; this is a bug")

    def _planned(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Note what the planner sees, and say how it goes on."""
        self._book.planned(data["positions"], data["ends"], data["held_back_ms"])
        self._purge.planned(data["positions"])
        oldest = self._book.oldest(origins(self._plan))
        if data["ends"] is not None:
            self._group.planned(data["positions"])
            self._commit_later(data, oldest)
        if self._draining.ordered:
            self._look_whether_drained(data)
        hold = self._changeover.hold.is_set()
        if hold:  # Spark plans between batches, so none is at work, and with this answer none will be
            self._changeover.between_batches.set()
        orders = self._orders.now
        rest = resting(self._plan, orders.paused) if orders.paused else ()
        return {
            "hold": hold,
            "intake": not self._draining.ordered,
            "paused": sorted(orders.paused),
            "rates": orders.rates,
            "commit": self._book.commit_requested,
            "due": self._book.due(data["now_ms"], rest),
            "held": self._book.held(topics_in_front(self._plan)),
            "times": self._book.times,
            "oldest": oldest,
            "bytes_per_record": self._book.bytes_per_record(),
        }

    def _note_commit(self, batch: int, reports: Sequence[Report]) -> None:
        for notice in (notice for report in reports for notice in report.notices):
            self._warnings.tell(notice)
        offsets = self._book.committed(batch, reports)
        self._answers.committed()
        for line in self._book.waiting_lines():
            self._warnings.tell(line)
        theirs = self._plan.committed_by_transactions if self._transactional else ()
        if self._commit({at: n for at, n in offsets.items() if at.topic not in theirs}):
            self._purge.committed(offsets)
        self._changeover.first_batch.set()

    def _standing(self) -> StandingOrders:
        """Return the orders to change; behind the end they, and their file, are another application's."""
        if not self._lease.held:
            raise ControlError(
                f"application {self.id!r} has ended ({self._state}); orders are for one that runs"
            )
        return self._orders

    @property
    def _plan(self) -> Plan:
        return self._continues[0].plan

    def _commit_later(self, data: Mapping[str, Any], oldest: Mapping[str, int]) -> None:
        """Commit topics in front of Spark's shuffle as far as asynchronous operators behind it have finished their records."""
        if data.get("origins") is None:
            self._commit({})
            return
        later = topics_committed_later(self._plan)
        read = {topic: at for topic, at in data["positions"].items() if topic in later}
        news = self._book.finish(committable(read, begun_from_json(data["origins"]), oldest), read)
        self._commit(news, {at: until for at in news if (until := read[at.topic][at.partition]) > news[at]})

    def _commit(
        self,
        offsets: Mapping[TopicPartition, int],
        taken: Mapping[TopicPartition, int] = MappingProxyType({}),
    ) -> bool:
        """Commit offsets, and those that could not be committed before; return whether all of them are committed."""
        try:
            self._group.commit({at: n for at, n in offsets.items() if not self._is_shuffle(at.topic)}, taken)
        except BrokerUnavailableError as error:
            log.warning("offsets are committed a little later: %s", error)
            return False
        return True

    def _look_for_others(self) -> None:
        """Say so if somebody else commits the group's offsets; transactions fence by themselves."""
        if not self._transactional:
            self._group.warn_of_others(self.id)

    def _is_shuffle(self, topic: str) -> bool:
        return topic not in self._book.ends and topic not in self._book.positions

    def _look_whether_drained(self, data: Mapping[str, Any]) -> None:
        internal = self._plan.internal_topics.keys() - self._orders.now.paused
        self._draining.look(data["now_ms"], unread(data["positions"], data["ends"], internal))

    def _can_drain(self) -> bool:
        query = self._query
        assert query is not None
        try:
            at_work = query.isActive or not self._changeover.steady.is_set()
        except (OSError, Py4JError):
            return False
        return at_work and self._state in ("starting", "running")

    # Beginning and end.

    def _await_first_batch(self) -> None:
        assert self._query is not None
        while not self._changeover.first_batch.wait(_POLL_S):
            if not self._query.isActive:
                self.await_termination()
                break
        if self._state == "starting":
            self._state = "running"
            keep_classes()
            self._progress.say("running", f"running after {self._progress.seconds:.1f} s")
        self._progress.follow(lambda: (self.status(), self.metrics()), self._warnings.flush)

    def _wait(self, timeout_s: float | None) -> bool:
        """Wait in short steps, so that signals are handled in between; tell whether the query has ended."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            query = self._query
            assert query is not None
            try:
                ended = bool(query.awaitTermination(1))
            except StreamingQueryException:
                if self._changeover.steady.is_set() and query is self._query:
                    raise
                ended = True  # another query goes on
            if ended and not self._changeover.steady.wait(1):
                continue
            if (ended and query is self._query) or self._state == "stopped":
                return True
            if deadline is not None and time.monotonic() > deadline:
                return False

    def _remember(self, error: Exception) -> None:
        self._error = self._explained(error)
        self._state = "failed"

    def _explained(self, error: Exception) -> MillstreamError:
        return error if isinstance(error, MillstreamError) else translated(str(error), self._checkpoint)

    def _fail(self, error: Exception) -> None:
        self._remember(error)
        self._release()
        assert self._error is not None
        raise self._error from None

    def _end_with(self, error: MillstreamError) -> None:
        """Fail for a reason that Spark does not know."""
        self._remember(error)
        if self._query is not None:
            self._query.stop()
        self._release()

    def _finish(self) -> None:
        with self._ending:
            if self._state != "failed":
                self._purge.purge()
            self._sum_up()
            self._release()

    def _sum_up(self) -> None:
        if self._state in ("stopped", "failed"):
            return
        self._state = "stopped"
        self._warnings.flush()
        now = self.status(), self.metrics()
        self._progress.say("stopped", summary(*now, self._progress.seconds), **facts_of(*now))

    def _abandon(self) -> None:
        if self._query is not None and self._query.isActive:
            self._query.stop()
        self._release()

    def _release(self) -> None:
        self.listeners.close()
        self._progress.end()
        for upkeep in (self._upkeep, self._purging):
            if upkeep is not None:
                upkeep.close()
        self._control.close()
        self._answers.close()
        if self._lease.held:
            contact.withdraw(self._lease.home)
        self._lease.release()
        self._leave_election()
        self._hang_up()
