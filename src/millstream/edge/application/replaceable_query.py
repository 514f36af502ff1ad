"""The streaming query of an application. It can be stopped between two micro-batches and replaced by another query."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from py4j.protocol import Py4JError
from pyspark.sql.streaming import StreamingQuery

from millstream.core.model.errors import (
    BrokerUnavailableError,
    ControlError,
    MillstreamError,
    OffsetsLostError,
    TopicNotFoundError,
)
from millstream.core.runtime.lifecycle import ENDING, FINAL, INITIAL, PROCESSING, Event, State, state_after
from millstream.edge.spark.spark_errors import is_transient

log = logging.getLogger("millstream.application")

_POLL_S = 0.02
_RETRY_S = 1.0
_MAX_RESTARTS = 3
_ENDED = "the query was stopped while the application was changing; start the application again"


class ApplicationState:
    """The state of an application. Several threads change it, under a lock."""

    def __init__(self) -> None:
        self.now: State = INITIAL
        self._lock = threading.Lock()

    def on(self, event: Event) -> bool:
        """Apply an event; return whether it changed the state."""
        with self._lock:
            before, self.now = self.now, state_after(self.now, event)
            return self.now is not before


class ReplaceableQuery:
    """The query of an application, and its replacements on the same session and checkpoint.

    Args:
        explain: Translates an error of Spark into one of Millstream.
        fail: Ends the application with an error, and releases its resources.

    Attributes:
        current: The query; None before the first start.
        lock: Held while the query is stopped or replaced.
        unchanging: Set, except while one query replaces another.
        hold: Set while the planner must not plan.
        between_batches: Set while no micro-batch runs; with ``hold`` set, none will start.
        first_batch: Set once the query has committed a micro-batch.
        newest_batch: The number of the newest committed micro-batch; -1 before the first.
        repeated: Whether an earlier attempt at that micro-batch has sent results, which may differ from the committed state.
        topics_changed: Returns whether topics were deleted or recreated that a new query leaves out or reads from their beginning.
        launch: Starts a new query; None if the query is never replaced, because the run has an end.
        abandoned: Whether the application was stopped before the query could be replaced. The error of the query no longer matters.
    """

    launch: Callable[[], StreamingQuery] | None = None

    def __init__(
        self,
        state: ApplicationState,
        explain: Callable[[Exception], MillstreamError],
        fail: Callable[[Exception], None],
    ) -> None:
        self.current: StreamingQuery | None = None
        self._state = state
        self._explain = explain
        self._fail = fail
        self.lock = threading.RLock()
        self.unchanging = threading.Event()
        self.unchanging.set()
        self.hold = threading.Event()
        self.between_batches = threading.Event()
        self.first_batch = threading.Event()
        self.newest_batch = -1
        self.repeated = False
        self.abandoned = False
        self.topics_changed: Callable[[], bool] = lambda: False
        self._judged: tuple[StreamingQuery | None, bool] = (None, False)
        self._failures = (0, -1)  # consecutive failures, and the committed micro-batch before them

    def stop(self, query: StreamingQuery, timeout_s: float | None = None) -> None:
        """Stop a query between two micro-batches; after the timeout, stop it in any case."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._hold_between_batches(query, lambda: deadline is not None and time.monotonic() > deadline)
        query.stop()

    def _stop_for_change(self, query: StreamingQuery) -> bool:
        """Stop a query between two micro-batches. Return False if the application is being stopped, which has a time limit of its own."""
        if not self._hold_between_batches(query, lambda: self._state.now in ENDING):
            return False
        query.stop()
        return True

    def _hold_between_batches(self, query: StreamingQuery, is_over: Callable[[], bool]) -> bool:
        """Wait until a query holds between two micro-batches, or has ended. Return False if the wait was over before."""
        self.hold.set()
        while query.isActive and not self.between_batches.wait(_POLL_S):
            if is_over():
                return False
        return True

    def restart(self, reason: str) -> None:
        """Stop the query between two micro-batches, and start a new one."""
        with self.lock:
            if (query := self._processing()) is None:
                return
            log.warning("restarting the query: %s", reason)
            with self._restarting():
                if self._stop_for_change(query) and query.exception() is None:
                    self._start_again()

    def recoverable_error(self) -> Exception | None:
        """Return why the query ended, if a new query can continue; otherwise None.

        A new query can continue if Spark has lost a process or a connection, or if topics have changed in a way that a start handles. It
        repeats the interrupted micro-batch, unless that micro-batch has failed several times in a row.
        """
        query = self.current
        if self.launch is None or query is None or query.isActive or self._state.now in ENDING:
            return None
        error = query.exception()
        if error is None or self._failures_in_a_row() >= _MAX_RESTARTS:
            return None
        return error if is_transient(str(error)) or self._met_changed_topics(query, error) else None

    def _met_changed_topics(self, query: StreamingQuery, error: Exception) -> bool:
        """Return whether a query has failed because topics were deleted or recreated. Asks the broker once for each query."""
        if not isinstance(self._explain(error), TopicNotFoundError | OffsetsLostError):
            return False
        if self._judged[0] is not query:
            self._judged = (query, self.topics_changed())
        return self._judged[1]

    def recover(self) -> None:
        """Restart the query if it has ended with a recoverable error."""
        # Without a JVM, await_termination raises the error.
        with self.lock, suppress(OSError, Py4JError):
            if (error := self.recoverable_error()) is None:
                return
            self._failures = (self._failures_in_a_row() + 1, self.newest_batch)
            with self._restarting():
                log.warning("restarting the query: %s", self._explain(error))
                self._start_again()

    def stop_with(self, error: MillstreamError) -> None:
        """Stop the query between two micro-batches because of an external error."""
        with self.lock:
            if (query := self._processing()) is None:
                return
            self.unchanging.clear()  # await_termination returns only after everything is released
            stopped = True
            try:
                stopped = self._stop_for_change(query)
            finally:
                if stopped:
                    self._fail(error)
                self.unchanging.set()

    def replace(self, change: Callable[[], None], undo: Callable[[], None]) -> None:
        """Run a changed program; if it does not commit its first micro-batch, return to the earlier program.

        Raises:
            ControlError: If the application does not process records.
            MillstreamError: Why the changed program did not start; the earlier program runs again.
        """
        with self.lock:
            if (query := self._processing()) is None:
                raise ControlError(
                    f"the application is {self._state.now}; it can be changed only while it is running"
                )
            self.unchanging.clear()
            try:
                if not self._stop_for_change(query):
                    raise ControlError(_ENDED)
                change()
                try:
                    self._start()
                    self._await_first_batch()
                except Exception as error:
                    explained = self._explain(error)
                    log.warning("undoing the change: %s", explained)
                    undo()
                    if self._start_again():
                        self._await_first_batch()
                    raise explained from explained.__cause__
            except (ConnectionError, Py4JError) as error:  # the JVM has ended
                raise self._explain(error) from error
            finally:
                self._fail_if_ended()
                self.unchanging.set()

    @contextmanager
    def _restarting(self) -> Iterator[None]:
        """Replace the query in a thread without a caller that could handle errors; any error ends the application."""
        self.unchanging.clear()
        try:
            yield
        except Exception as error:
            self._fail(error)
        finally:
            self.unchanging.set()

    def _failures_in_a_row(self) -> int:
        """Return how many times the micro-batch after the newest committed one has failed."""
        count, batch = self._failures
        return count if batch == self.newest_batch else 0

    def _processing(self) -> StreamingQuery | None:
        return self.current if self._state.now in PROCESSING else None

    def _start(self) -> None:
        for event in (self.hold, self.between_batches, self.first_batch):
            event.clear()
        assert self.launch is not None
        self.current = query = self.launch()
        if self._state.now in FINAL:  # meanwhile, another driver was elected: nobody else stops this query
            self.abandoned = True
            query.stop()

    def _start_again(self) -> bool:
        """Start the query as soon as a broker answers; return False if the application is stopped before."""
        while self._state.now not in ENDING:
            try:
                self._start()
            except BrokerUnavailableError as error:
                if self._state.on(Event.BROKER_LOST):
                    log.warning("will start the query when a broker answers: %s", error)
                time.sleep(_RETRY_S)  # no event announces a broker
            else:
                return True
        self.abandoned = True
        return False

    def _await_first_batch(self) -> None:
        query = self.current
        assert query is not None
        while not self.first_batch.wait(_POLL_S):
            if self._state.now in ENDING:
                raise ControlError(_ENDED)
            if not query.isActive:
                raise query.exception() or ControlError(_ENDED)

    def _fail_if_ended(self) -> None:
        if (query := self._processing()) is None:
            return
        error: Exception | None
        try:
            error = None if query.isActive else query.exception() or ControlError(_ENDED)
        except (OSError, Py4JError) as gone:  # the JVM has ended
            error = gone
        if error is not None:
            self._fail(error)
