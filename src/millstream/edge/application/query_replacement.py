"""Changeover: one query is taken to its end between two micro-batches, and another one goes on from there."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from pyspark.sql.streaming import StreamingQuery

from millstream.core.model.errors import ControlError, MillstreamError

log = logging.getLogger("millstream.application")

_POLL_S = 0.02
_STOPPED = "the query ended while the application went on with another topology"


class Running(Protocol):
    """An application, as a changeover knows it."""

    _query: StreamingQuery | None
    _state: str
    _relaunch: Callable[[], StreamingQuery]

    def _remember(self, error: Exception) -> None:
        """Note the error that ends the application."""

    def _explained(self, error: Exception) -> MillstreamError:
        """Return an error of Spark's in words."""

    def _release(self) -> None:
        """Give everything back."""


class Changeover:
    """Goes on with another query on the same session and checkpoint. Owned by the application.

    Args:
        application: The application.

    Attributes:
        lock: Held by whoever changes or ends the query.
        steady: Set unless one query is being replaced by another.
        hold: Set while the planner is to plan nothing.
        between_batches: Set when no micro-batch is at work and, under ``hold``, none will be.
        first_batch: Set when the query has committed a micro-batch.
    """

    def __init__(self, application: Running) -> None:
        self._application = application
        self.lock = threading.RLock()
        self.steady = threading.Event()
        self.steady.set()
        self.hold = threading.Event()
        self.between_batches = threading.Event()
        self.first_batch = threading.Event()

    def halt(self, query: StreamingQuery, timeout_s: float | None = None) -> None:
        """Stop a query between two micro-batches, if that is in time."""
        self.hold.set()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while query.isActive and not self.between_batches.wait(_POLL_S):
            if deadline is not None and time.monotonic() > deadline:
                break
        query.stop()

    def restart(self, reason: str) -> None:
        """Stop the query between two micro-batches and start it again."""
        application = self._application
        with self.lock:
            if application._state != "running" or application._query is None:
                return
            log.warning("restarting the query: %s", reason)
            self.steady.clear()
            try:
                self.halt(application._query)
                if application._query.exception() is None:
                    self._begin()
            except Exception as error:  # nobody waits for this thread: whatever it is ends the application
                application._remember(error)
                application._release()
            finally:
                self.steady.set()

    def end_with(self, error: MillstreamError) -> None:
        """Stop the query between two micro-batches because of an error that it has not met itself."""
        application = self._application
        with self.lock:
            if application._state != "running" or application._query is None:
                return
            self.steady.clear()  # who waits for the end hears of it when everything has been given back
            try:
                self.halt(application._query)
            finally:
                application._remember(error)
                application._release()
                self.steady.set()

    def replace(self, change: Callable[[], None], undo: Callable[[], None]) -> None:
        """Go on with a changed program, or with the one before if the first micro-batch of the changed one is not committed.

        Args:
            change: Changes the program that the next query runs.
            undo: Brings the one before back.

        Raises:
            ControlError: If the application does not run.
            MillstreamError: Why the changed program did not start; the one before goes on.
        """
        application = self._application
        with self.lock:
            if application._state != "running" or application._query is None:
                raise ControlError(
                    f"the application is {application._state}, so its topology cannot be edited"
                )
            self.steady.clear()
            try:
                self.halt(application._query)
                change()
                try:
                    self._begin_and_wait()
                except Exception as error:
                    explained = application._explained(error)
                    log.warning("the edit is undone: %s", explained)
                    undo()
                    self._begin_and_wait()
                    raise explained from None
            finally:
                self._end_if_gone()
                self.steady.set()

    def _begin(self) -> None:
        for event in (self.hold, self.between_batches, self.first_batch):
            event.clear()
        self._application._query = self._application._relaunch()

    def _begin_and_wait(self) -> None:
        """Start the query; return when its first micro-batch is committed."""
        before = self._application._query
        self._begin()
        query = self._application._query
        assert query is not None
        assert query is not before
        while not self.first_batch.wait(_POLL_S):
            if not query.isActive:
                raise query.exception() or ControlError(_STOPPED)

    def _end_if_gone(self) -> None:
        """End the application if neither program runs."""
        application = self._application
        query = application._query
        if query is not None and not query.isActive and application._state == "running":
            application._remember(query.exception() or ControlError(_STOPPED))
            application._release()
