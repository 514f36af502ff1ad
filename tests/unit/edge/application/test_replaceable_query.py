"""Replacing the query of an application: without a broker, after errors, and while the application is stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import pytest

from millstream.core.model.errors import (
    BrokerUnavailableError,
    ControlError,
    MillstreamError,
    OffsetsLostError,
    SparkRuntimeError,
    TopicNotFoundError,
)
from millstream.core.runtime.lifecycle import Event, State
from millstream.drivers.spark.crossing import crossing
from millstream.edge.application import replaceable_query
from millstream.edge.application.replaceable_query import ApplicationState, ReplaceableQuery
from millstream.edge.spark.spark_errors import explained

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery


class FakeQuery:
    """A query of Spark between two micro-batches."""

    def __init__(self, error: Exception | None = None) -> None:
        self.isActive = error is None  # Spark's name
        self._error = error

    def exception(self) -> Exception | None:
        return self._error

    def stop(self) -> None:
        self.isActive = False


class FakeApplication:
    """An application whose query is replaced, and its broker.

    Attributes:
        attempts: The outcomes of the next launches: an error, or None for a new query.
        states: The states of the application when these launches began.
    """

    def __init__(self, first: FakeQuery, *, starting: bool = False) -> None:
        self.state = ApplicationState()
        if not starting:
            self.state.on(Event.FIRST_BATCH_COMMITTED)
        self.errors: list[Exception] = []
        self.attempts: list[Exception | None] = []
        self.states: list[State] = []
        self.query = ReplaceableQuery(self.state, self._explained, self.errors.append)
        self.query.current = cast("StreamingQuery", first)
        self.query.launch = self._launch
        self.query.between_batches.set()
        self.stops_after: int | None = None
        self.ends_with: Event | None = None
        """What happens to the application while the next query starts."""
        self.commits = True

    def _explained(self, error: Exception) -> MillstreamError:
        return explained(error, "the checkpoint")

    def _launch(self) -> StreamingQuery:
        self.states.append(self.state.now)
        if self.stops_after == len(self.states):
            self.state.on(Event.STOP_REQUESTED)
        if (error := self.attempts.pop(0)) is not None:
            raise error
        if self.ends_with is not None:
            self.state.on(self.ends_with)
        if self.commits:
            self.query.first_batch.set()
        return cast("StreamingQuery", FakeQuery())


AWAY = BrokerUnavailableError("away")


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replaceable_query, "_RETRY_S", 0)


def test_a_restart_waits_until_a_broker_answers() -> None:
    application = FakeApplication(first := FakeQuery())
    application.attempts = [AWAY, AWAY, None]
    application.query.restart("a topic has changed")
    assert application.errors == []
    assert application.states == [State.RUNNING, State.WAITING, State.WAITING]
    assert application.query.current is not first
    assert application.query.unchanging.is_set()


def test_a_query_that_lost_a_process_is_started_when_a_broker_answers() -> None:
    application = FakeApplication(first := FakeQuery(RuntimeError("a process was lost")))
    application.attempts = [AWAY, None]
    application.query.recover()
    assert application.errors == []
    assert application.query.current is not first


def test_a_query_that_lost_a_process_in_the_first_micro_batch_is_replaced() -> None:
    application = FakeApplication(first := FakeQuery(RuntimeError("a process was lost")), starting=True)
    application.attempts = [AWAY, None]
    application.query.recover()
    assert application.errors == []
    assert application.states == [State.STARTING, State.STARTING]
    assert application.query.current is not first


def test_the_query_of_an_application_that_has_ended_is_not_replaced() -> None:
    application = FakeApplication(first := FakeQuery(RuntimeError("a process was lost")))
    application.state.on(Event.STOP_REQUESTED)
    application.query.recover()
    assert application.query.current is first


def crossed(error: MillstreamError) -> Exception:
    """Return an error of this package as Spark reports it."""
    with pytest.raises(SparkRuntimeError) as through_spark, crossing():
        raise error
    return RuntimeError(str(through_spark.value))


@pytest.mark.parametrize("error", [TopicNotFoundError("no such topic"), OffsetsLostError("it ends before")])
@pytest.mark.parametrize("changed", [True, False])
def test_a_query_that_failed_at_a_deleted_topic_of_a_pattern_is_replaced(
    error: MillstreamError, changed: bool
) -> None:
    """The error used to end the application, and the next start continued without the topic."""
    asked: list[bool] = []
    application = FakeApplication(first := FakeQuery(crossed(error)))
    application.query.topics_changed = lambda: asked.append(changed) or changed
    application.attempts = [AWAY, None]
    for _ in range(2):
        application.query.recoverable_error()
    application.query.recover()
    assert (application.query.current is not first) is changed
    assert asked == [changed], "the broker is asked once"


def test_changed_topics_do_not_make_other_errors_recoverable() -> None:
    application = FakeApplication(first := FakeQuery(crossed(MillstreamError("a bug"))))
    application.query.topics_changed = lambda: True
    application.query.recover()
    assert application.query.current is first


def test_any_other_error_ends_the_application() -> None:
    application = FakeApplication(FakeQuery())
    application.attempts = [AWAY, MillstreamError("refused"), None]
    application.query.restart("a topic has changed")
    assert [str(error) for error in application.errors] == ["refused"]


def test_an_application_that_waits_for_a_broker_can_be_stopped() -> None:
    application = FakeApplication(first := FakeQuery(RuntimeError("a process was lost")))
    application.attempts, application.stops_after = [AWAY, AWAY, AWAY], 2
    application.query.recover()
    assert application.errors == []
    assert application.query.current is first
    assert application.query.abandoned
    assert application.query.unchanging.is_set()


def test_an_edit_that_fails_without_a_broker_is_undone_when_a_broker_answers() -> None:
    application = FakeApplication(FakeQuery())
    application.attempts = [AWAY, AWAY, None]
    done: list[str] = []
    with pytest.raises(BrokerUnavailableError):
        application.query.replace(lambda: done.append("changed"), lambda: done.append("undone"))
    assert done == ["changed", "undone"]
    assert application.errors == []
    assert application.query.current is not None
    assert application.query.current.isActive


class QueryOfAJvmThatEnds(FakeQuery):
    """A query whose JVM ends when the query is stopped: this call and all later ones raise a connection error."""

    def stop(self) -> None:
        del self.isActive
        raise ConnectionRefusedError("Connection refused")

    def __getattr__(self, name: str) -> Any:
        raise ConnectionRefusedError("Connection refused")


def test_an_edit_during_which_the_jvm_ends_fails_the_application() -> None:
    """A check of the query used to raise a connection error, and status() never showed that the application had failed."""
    application = FakeApplication(QueryOfAJvmThatEnds())
    with pytest.raises(SparkRuntimeError, match="JVM"):
        application.query.replace(lambda: None, lambda: None)
    assert [type(error) for error in application.errors] == [ConnectionRefusedError]
    assert application.query.unchanging.is_set()


@pytest.mark.parametrize("ends_with", [Event.ERROR, Event.QUERY_ENDED])
def test_a_query_that_starts_while_the_application_ends_is_stopped(ends_with: Event) -> None:
    """A query that was starting when another driver was elected used to run on and to send records beside the other query."""
    application = FakeApplication(first := FakeQuery())
    application.attempts, application.ends_with = [None], ends_with
    application.query.restart("a topic has changed")
    assert application.query.current is not first
    assert application.query.current is not None
    assert not application.query.current.isActive
    assert application.query.abandoned


def in_thread(call: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


def test_an_application_is_stopped_while_a_changed_program_waits_for_a_broker() -> None:
    """The stop used to wait for the first micro-batch of the changed program, and thus for the broker, without a limit."""
    application = FakeApplication(FakeQuery())
    application.attempts, application.commits = [None], False
    errors: list[ControlError] = []

    def replace() -> None:
        with pytest.raises(ControlError) as raised:
            application.query.replace(lambda: None, lambda: None)
        errors.append(raised.value)

    replacing = in_thread(replace)
    while application.attempts:
        replacing.join(0.01)
    application.state.on(Event.STOP_REQUESTED)
    replacing.join(10)
    assert not replacing.is_alive()
    assert len(errors) == 1
    assert application.errors == []
    assert application.query.current is not None
    assert application.query.current.isActive, "the stop has its own time limit for this query"


@pytest.mark.parametrize("restart", [True, False])
def test_an_application_is_stopped_while_a_restart_waits_for_the_end_of_a_micro_batch(restart: bool) -> None:
    """The stop used to wait for the micro-batch longer than its time limit."""
    application = FakeApplication(first := FakeQuery())
    application.query.between_batches.clear()

    def wait() -> None:
        if restart:
            application.query.restart("a topic has changed")
            return
        with pytest.raises(ControlError):
            application.query.replace(lambda: None, lambda: None)

    waiting = in_thread(wait)
    while not application.query.hold.wait(0.01):
        assert waiting.is_alive()
    application.state.on(Event.STOP_REQUESTED)
    waiting.join(10)
    assert not waiting.is_alive()
    assert application.query.current is first
    assert first.isActive, "the stop has its own time limit for this query"
    assert application.errors == []
    assert not application.query.abandoned, "an error of the query still matters"
    with application.query.lock:
        application.query.stop(cast("StreamingQuery", first), 0)
    assert not first.isActive
