"""A running application that answers requests like those of Spark's processes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, cast

import pytest
from pyspark.errors import PySparkException

import millstream as ms
from millstream.core.fanout.epochs import History
from millstream.core.fanout.reading import EpochRead
from millstream.core.model.errors import (
    BrokerUnavailableError,
    ControlError,
    MillstreamError,
    TopicNotFoundError,
)
from millstream.core.model.ids import TopicPartition
from millstream.core.model.positions import Offsets
from millstream.core.queries.question import Question
from millstream.core.runtime.lifecycle import Event
from millstream.core.runtime.messages import PlanRequest
from millstream.core.runtime.origins import Begun, first_offset
from millstream.core.runtime.task_report import CallReport, CommittedBatch, StateReport, TaskReport
from millstream.core.taps.samples import Sample, TapReport
from millstream.core.topology.plan import Plan
from millstream.core.topology.stores import Changelog
from millstream.drivers.spark.executor.copies import CopiesSpec
from millstream.edge.application.application_run import Resources
from millstream.edge.application.running_application import RunningApplication
from millstream.edge.application.topology_edits import TopologyEdit
from millstream.edge.broker.group_offsets import GroupOffsets
from millstream.edge.checkpoint.continuity import continuity
from millstream.edge.checkpoint.state_lease import Lease
from millstream.edge.control.flow_control import FlowControl, FlowLimits
from unit.edge.spark.test_spark_errors import java_error

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery


class GroupUnavailableOnce:
    """A consumer group whose coordinator does not answer the first request."""

    def __init__(self) -> None:
        self.committed: dict[TopicPartition, int] = {}
        self.taken: dict[TopicPartition, int] = {}
        self.renewed: list[Mapping[str, int]] = []
        self._away = True

    def commit(
        self, offsets: Mapping[TopicPartition, int], taken: Mapping[TopicPartition, int] | None = None
    ) -> None:
        if self._away:
            self._away = False
            raise BrokerUnavailableError("away")
        self.committed.update(offsets)
        self.taken = dict(taken or {})

    def committed_offsets(self, partitions: Mapping[str, int]) -> Offsets:
        return {}

    def renew(self, partitions: Mapping[str, int]) -> None:
        self.renewed.append(partitions)

    def delete_records(self, before: Mapping[TopicPartition, int]) -> bool:
        raise AssertionError("there is no repartition topic")


PLAN = PlanRequest({"in": {0: 0}}, {"in": {0: 5}}, 1_000)


@pytest.fixture
def group() -> GroupUnavailableOnce:
    return GroupUnavailableOnce()


@pytest.fixture
def starting(group: GroupUnavailableOnce, tmp_path: Path) -> Iterator[RunningApplication]:
    """The application before its first launch has planned the topology."""
    lease = Lease.take(tmp_path, "app", "running")
    resources = Resources(
        GroupOffsets(group),
        lease,
        FlowControl(tmp_path, FlowLimits()),
        group,
        lambda: None,
        copies=lambda: CopiesSpec(str(tmp_path), {}, {"first": "lmdb", "second": "lmdb"}, 0),
        check_query_key=lambda session: None,
        last_records=lambda topic, last, serdes: [(0, 7, 1_000, topic, last)],
    )
    application = RunningApplication("app", resources)
    yield application
    application._run.release()


@pytest.fixture
def running(starting: RunningApplication) -> RunningApplication:
    starting._run.continues = continuity(plan(), None, {}, exactly_once=False), {}
    return starting


def plan() -> Plan:
    """Sub-topology 0 reads two topics, 1 reads a third."""
    builder = ms.StreamsBuilder()
    for topics, store in ((["in", "in-too"], "first"), (["other"], "second")):
        builder.stream(topics).to_table(store=store)
    return builder.build().plan("app")


def test_an_application_that_is_not_planned_yet_refuses_commands_and_queries(
    starting: RunningApplication,
) -> None:
    """Its page is already open."""
    for refused in (
        starting.pause,
        starting.resume,
        lambda: starting.throttle("in", 5),
        starting.stores,
        lambda: starting.ask(Question("first", "all")),
        lambda: starting.tap("read"),
    ):
        with pytest.raises(ControlError, match="'app' is starting, and its topology is not planned yet"):
            refused()


def test_committed_offsets_are_renewed_between_two_micro_batches(
    running: RunningApplication, group: GroupUnavailableOnce
) -> None:
    positions = {"in": {0: 4, 1: 4}, "no-longer-read": {0: 4}}
    running._requests.answer("plan", replace(PLAN, ends=None, positions=positions))
    assert group.renewed == []
    for _ in range(2):
        running._requests.answer("plan", replace(PLAN, positions=positions))
    assert group.renewed == [{"in": 2}]


def test_offsets_that_could_not_be_committed_are_committed_when_the_broker_is_back(
    running: RunningApplication, group: GroupUnavailableOnce
) -> None:
    running._requests.answer("plan", PLAN)
    running._requests.answer(
        "batch", CommittedBatch(0, [TaskReport("0_0", {TopicPartition("in", 0): 5}).encode()])
    )
    assert group.committed == {}
    running._requests.answer("plan", replace(PLAN, ends=None))
    assert group.committed == {}
    running._requests.answer("plan", PLAN)
    assert group.committed == {TopicPartition("in", 0): 5}


def test_a_query_stops_only_after_the_records_left_out_by_a_repetition_are_planned_again(
    running: RunningApplication,
) -> None:
    query = running._run.query
    query.hold.set()
    assert not running._requests.answer("plan", replace(PLAN, left_out=True)).hold
    assert not query.between_batches.is_set()
    assert running._requests.answer("plan", PLAN).hold
    query.between_batches.clear()
    without_broker = replace(PLAN, left_out=True, ends=None)
    assert running._requests.answer("plan", without_broker).hold, "stopping does not wait for a broker"
    assert query.between_batches.is_set()


def test_a_tap_reaches_the_planner_and_returns_the_samples_of_tasks(running: RunningApplication) -> None:
    assert running._requests.answer("plan", PLAN).taps == ()
    node = running._run.plan.subtopologies[0].sources[0].name
    with running.tap(node) as tap:
        assert running._requests.answer("plan", PLAN).taps == (node,)
        report = TaskReport("0_0", taps=(TapReport(node, 5, 1, (Sample("in", 0, 3, "k", "v", 4),)),))
        running._requests.answer("batch", CommittedBatch(0, [report.encode()]))
        (record,) = tap.records()
        assert (record.batch, record.offset, record.value) == (0, 3, "v")
    assert running._requests.answer("plan", PLAN).taps == ()


def test_the_planner_reports_which_epochs_of_split_partitions_are_read(running: RunningApplication) -> None:
    history = History.new(TopicPartition("in", 0)).changed(1, {TopicPartition("in", 0): 5})
    assert running._requests.answer("epochs", (EpochRead(history, history.current),))
    assert running._run.reports.epochs == (EpochRead(history, history.current),)


def test_a_failure_is_summarised_once(running: RunningApplication, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "millstream.progress"):
        for error in (MillstreamError("first"), MillstreamError("second")):
            running._run.end_with(error)
    (line,) = caplog.messages
    assert line.startswith("app: failed after ")
    assert line.endswith(" s: 0 records read, 0 sent, lag 0")


@pytest.mark.parametrize("changelog", ["kafka", "spark"])
def test_changelogs_of_unfinished_records_are_corrected_after_a_second_attempt(
    running: RunningApplication, changelog: Changelog
) -> None:
    builder = ms.StreamsBuilder()
    calls = ms.stores.options("calls", changelog=changelog)
    builder.stream("in").map_values_async(str, store=calls).to("out")
    running._run.continues = continuity(builder.build().plan("app"), None, {}, exactly_once=False), {}

    def ordered_after(batch: int, *, repeated: bool) -> bool:
        running._requests.answer("batch", CommittedBatch(batch, [], repeated))
        initialize: bool = running._requests.answer("plan", PLAN).initialize
        return initialize

    assert not ordered_after(0, repeated=False)
    assert ordered_after(1, repeated=True) == (changelog == "kafka")
    assert running._requests.answer("plan", PLAN).initialize == (changelog == "kafka"), (
        "until it is committed"
    )
    assert not ordered_after(2, repeated=False)


def test_the_records_of_topics_can_be_read_in_this_process_and_in_others(
    running: RunningApplication,
) -> None:
    for read in (running.read, lambda *data: running._requests.answer("records", data)):
        assert read("in", 5).rows == ((0, 7, 1_000, "in", 5),)
        with pytest.raises(TopicNotFoundError, match="does not write or read the topic 'on'"):
            read("on", 5)


def test_handles_and_edits_have_a_readable_representation(running: RunningApplication) -> None:
    assert repr(running) == "<RunningApplication 'app': starting>"
    assert repr(running.store("first")) == "<StoreReader 'first'>"
    edit = TopologyEdit(kept=("a", "b"), writes=("<out>",))
    assert repr(edit) == "keeps a, b\nwrites <out>"
    assert "<td>keeps</td><td>a, b</td>" in edit._repr_html_()
    assert "&lt;out&gt;" in edit._repr_html_()
    assert TopologyEdit()._repr_html_() == "<p>changes no store and no topic</p>"


def test_an_application_that_has_ended_cannot_be_edited(running: RunningApplication) -> None:
    running._edit = lambda *given, **options: pytest.fail("the edit has begun")
    for event in (Event.FIRST_BATCH_COMMITTED, Event.STOP_REQUESTED, Event.QUERY_ENDED):
        running._run.state.on(event)
    with pytest.raises(ControlError, match="'app' is stopped, so its topology cannot be edited"):
        running.edit(ms.StreamsBuilder().stream("in").to("out"))  # type: ignore[arg-type]  # refused before it is looked at


def test_a_store_query_that_waits_for_a_local_copy_wakes_its_tasks(running: RunningApplication) -> None:
    def commit(state: StateReport) -> None:
        reports = [TaskReport("0_0", state=state), TaskReport("1_0")]
        running._requests.answer("batch", CommittedBatch(0, [report.encode() for report in reports]))

    running._run.reports.plan = running._run.plan
    commit(StateReport(1, ("a",), {}))  # without a copy
    with ThreadPoolExecutor(1) as asking:
        answer = asking.submit(running.store("first").get, "k")
        while not (due := running._requests.answer("plan", PLAN).due):
            assert answer not in wait([answer], 0.01).done, answer.result()
        assert due == ("0_0",)
        commit(StateReport(0, (), {}))
        assert answer.result(30) is None
    assert running._requests.answer("plan", PLAN).due == ()


class TestOrders:
    def test_reach_the_planner_and_the_status(self, running: RunningApplication) -> None:
        running.pause(["in"])
        running.pause(subtopologies=[1])
        running.throttle("in-too", 100)
        orders = running._requests.answer("plan", PLAN)
        assert (orders.paused, orders.rates) == ({"in", "other"}, {"in-too": 100})
        status = running.status()
        assert (status.paused, status.throttled) == (["in", "other"], {"in-too": 100})
        running.resume(["other"])
        running.throttle("in-too", None)
        orders = running._requests.answer("plan", PLAN)
        assert (orders.paused, orders.rates) == ({"in"}, {})
        running.resume()
        assert running.status().paused == []

    def test_without_names_apply_to_all_topics(self, running: RunningApplication) -> None:
        running.pause()
        assert running.status().paused == ["in", "in-too", "other"]

    def test_with_unknown_names_change_nothing(self, running: RunningApplication) -> None:
        for order in (
            lambda: running.pause(["in", "on"]),
            lambda: running.resume(subtopologies=[2]),
            lambda: running.throttle("on", 5),
        ):
            with pytest.raises(ControlError, match=r"'in', 'in-too', 'other'|it has 0, 1"):
                order()
        assert (running.status().paused, running.status().throttled) == ([], {})

    def test_are_refused_after_the_application_has_ended(
        self, running: RunningApplication, tmp_path: Path
    ) -> None:
        running.pause(keep=True)
        running._run.release()
        for order in (running.pause, running.resume, lambda: running.throttle("in", 5)):
            with pytest.raises(
                ControlError, match=r"'app' has ended .* only a running application accepts commands"
            ):
                order()
        assert (tmp_path / "paused.json").exists()

    def test_are_accepted_from_other_processes(self, running: RunningApplication) -> None:
        answer = running._requests.answer(
            "command", ("throttle", {"topic": "other", "records_per_second": 5})
        )
        assert answer.throttled == {"other": 5}
        assert running.status().throttled == {"other": 5}


def test_tasks_whose_topics_are_all_paused_are_not_woken(running: RunningApplication) -> None:
    def due() -> list[str]:
        return list(running._requests.answer("plan", PLAN).due)

    reports = [TaskReport(task, wake_at_ms=1_000).encode() for task in ("0_0", "0_1", "1_0")]
    running._requests.answer(
        "batch", CommittedBatch(0, [*reports, TaskReport("1_1", wake_at_ms=1_001).encode()])
    )
    running._requests.answer("plan", PLAN)
    assert due() == ["0_0", "0_1", "1_0"]
    running.pause(["in"])
    assert due() == ["0_0", "0_1", "1_0"]
    running.pause(["in-too"])
    assert due() == ["1_0"]
    running.resume(["in"])
    assert due() == ["0_0", "0_1", "1_0"]


def test_in_flight_records_of_a_paused_topic_are_finished(running: RunningApplication) -> None:
    calling = CallReport(look_at_ms=1_000, with_async_worker=1)
    asleep = CallReport(look_at_ms=1_001, waiting=1)
    reports = [
        TaskReport("0_0", wake_at_ms=900, calls=calling),
        TaskReport("1_0", wake_at_ms=900, calls=asleep),
    ]
    running._requests.answer("batch", CommittedBatch(0, [report.encode() for report in reports]))
    running.pause()
    assert running._requests.answer("plan", PLAN).due == ("0_0",)


class TestTheApplication:
    def test_waits_while_no_broker_answers(self, running: RunningApplication) -> None:
        running._run.state.on(Event.FIRST_BATCH_COMMITTED)
        for ends, state in ((None, "waiting"), (None, "waiting"), ({"in": {0: 5}}, "running")):
            running._requests.answer("plan", replace(PLAN, ends=ends))
            assert running.status().state == state

    def test_is_starting_whether_or_not_a_broker_answers(self, running: RunningApplication) -> None:
        for ends in (None, {"in": {0: 5}}):
            running._requests.answer("plan", replace(PLAN, ends=ends))
            assert running.status().state == "starting"

    def test_keeps_its_first_error(self, running: RunningApplication) -> None:
        for error in ("the first", "the second"):
            running._run._fail(MillstreamError(error))
            assert (running.status().state, running.status().error) == ("failed", "the first")

    def test_can_be_stopped_while_a_restart_waits_for_a_broker(self, running: RunningApplication) -> None:
        run, waiting = running._run, threading.Event()

        def launch() -> StreamingQuery:
            waiting.set()
            raise BrokerUnavailableError("away")

        run.state.on(Event.FIRST_BATCH_COMMITTED)
        run.query.current, run.query.launch = cast("StreamingQuery", FakeQuery()), launch
        run.query.between_batches.set()
        restart = threading.Thread(target=run.query.restart, args=("a topic has changed",), daemon=True)
        restart.start()
        assert waiting.wait(60)
        running.stop()
        restart.join(60)
        assert not restart.is_alive()
        assert running.status().state == "stopped"
        assert running.await_termination(60)

    def test_releases_its_resources_when_it_is_stopped_after_a_failure(
        self, running: RunningApplication, tmp_path: Path
    ) -> None:
        """After a status had shown the failure, a stop used to do nothing, and no start was possible in this process."""
        running._run.query.current = cast("StreamingQuery", FailedQuery())
        assert running.status().state == "failed"
        running.stop()
        assert (running.status().state, running.status().error) == ("failed", "the query has failed")
        Lease.take(tmp_path, "app", "running").release()

    def test_releases_its_resources_if_its_query_cannot_be_stopped(
        self, running: RunningApplication, tmp_path: Path
    ) -> None:
        running._run.query.current = cast(
            "StreamingQuery", UnstoppableQuery(PySparkException("the query did not end in time"))
        )
        running._run.abandon()
        Lease.take(tmp_path, "app", "running").release()

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            (
                "java.lang.RuntimeException: no query\n\tat a.b.C.d(C.java:1)\n",
                "java.lang.RuntimeException: no query",
            ),
            (None, "its JVM does not answer"),
        ],
        ids=["exception", "no JVM"],
    )
    def test_fails_with_a_one_line_error_if_a_change_of_its_workers_fails(
        self, running: RunningApplication, caplog: pytest.LogCaptureFixture, text: str | None, reason: str
    ) -> None:
        """It used to log an error of Py4J, or to fail with one that contained a stack trace of Java."""
        run = running._run
        run.state.on(Event.FIRST_BATCH_COMMITTED)
        run.query.current = cast("StreamingQuery", UnstoppableQuery(java_error(text)))
        run.query.between_batches.set()
        with caplog.at_level(logging.WARNING, "millstream"):
            run.query.restart("more workers")  # in a thread without a caller
        assert running.status().state == "failed"
        assert caplog.messages == ["restarting the query: more workers"]
        error = running.status().error
        assert error is not None
        assert reason in error
        assert "\n" not in error

    def test_does_not_fail_after_it_has_ended(self, running: RunningApplication) -> None:
        running._run.state.on(Event.QUERY_ENDED)
        running._run._fail(MillstreamError("too late"))
        assert (running.status().state, running.status().error) == ("stopped", None)


class FakeQuery:
    """A query of Spark that runs until it is stopped."""

    isActive = True  # noqa: N815 - Spark's name

    def stop(self) -> None:
        self.isActive = False

    def awaitTermination(self, timeout_s: float) -> bool:  # noqa: N802 - Spark's name
        return not self.isActive

    def exception(self) -> MillstreamError | None:
        return None


class FailedQuery(FakeQuery):
    isActive = False  # noqa: N815 - Spark's name

    def exception(self) -> MillstreamError:
        return MillstreamError("the query has failed")


class UnstoppableQuery(FakeQuery):
    def __init__(self, error: Exception) -> None:
        self._error = error

    def stop(self) -> None:
        raise self._error


class TestDraining:
    """The planner asks between micro-batches; each test decides what the tasks have reported by then."""

    @pytest.fixture
    def stop(self, running: RunningApplication) -> Iterator[StopInThread]:
        running._run.state.on(Event.FIRST_BATCH_COMMITTED)
        running._run.query.current = cast("StreamingQuery", FakeQuery())
        stopping = StopInThread(running)
        yield stopping
        stopping.join(60)

    def test_reads_no_more_records_and_ends_when_no_record_is_unfinished(
        self, running: RunningApplication, stop: StopInThread, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert running._requests.answer("plan", PLAN).intake
        report_calls(running, 0, CallReport(with_async_worker=3, look_at_ms=1_010))
        stop.begin(60)
        orders = running._requests.answer("plan", PLAN)
        assert (orders.intake, orders.hold) == (False, False)
        assert running.status().state == "draining"
        report_calls(running, 1, CallReport(with_async_worker=1, look_at_ms=1_020))
        assert not running._requests.answer("plan", PLAN).hold
        report_calls(running, 2, CallReport())
        running._requests.answer("plan", PLAN)
        with caplog.at_level(logging.WARNING, "millstream.application"):
            stop.end()
        assert running.status().state == "stopped"
        assert caplog.messages[-1].startswith("stopped: 3 unfinished records were finished in ")

    def test_does_not_wait_for_records_that_are_due_after_the_timeout(
        self, running: RunningApplication, stop: StopInThread, caplog: pytest.LogCaptureFixture
    ) -> None:
        report_calls(running, 0, CallReport(waiting=1, parked=4, look_at_ms=61_001))
        stop.begin(60)
        running._requests.answer("plan", PLAN)
        with caplog.at_level(logging.WARNING, "millstream.application"):
            stop.end()
        assert caplog.messages[-1] == ("stopped: 5 unfinished records were carried over to the next start")

    def test_waits_for_a_retry_that_is_due_in_time(
        self, running: RunningApplication, stop: StopInThread
    ) -> None:
        report_calls(running, 0, CallReport(waiting=1, look_at_ms=50_000))
        stop.begin(60)
        running._requests.answer("plan", PLAN)
        assert running.status().state == "draining"
        report_calls(running, 1, CallReport())
        running._requests.answer("plan", PLAN)
        stop.end()

    def test_carries_over_records_that_do_not_finish_in_time(
        self, running: RunningApplication, stop: StopInThread
    ) -> None:
        report_calls(running, 0, CallReport(with_async_worker=1, look_at_ms=1_010))
        stop.begin(0.05)
        stop.drained()
        stop.end()
        assert running.status().calls["0_0"].with_async_worker == 1

    def test_can_be_cut_short_by_a_second_stop(self, running: RunningApplication, stop: StopInThread) -> None:
        report_calls(running, 0, CallReport(with_async_worker=1, look_at_ms=1_010))
        stop.begin(3_600)
        running._requests.answer("plan", PLAN)
        second_stop = threading.Thread(target=running.stop, kwargs={"drain_timeout_s": 0}, daemon=True)
        second_stop.start()
        stop.drained()
        stop.end()
        second_stop.join(60)
        assert running.status().state == "stopped"


class StopInThread:
    """A stop in a separate thread, because it waits for the planner."""

    def __init__(self, running: RunningApplication) -> None:
        self._running = running
        self._thread: threading.Thread | None = None

    def begin(self, drain_timeout_s: float) -> None:
        self._thread = threading.Thread(
            target=self._running.stop, kwargs={"drain_timeout_s": drain_timeout_s}, daemon=True
        )
        self._thread.start()
        while not self._running._run.draining.has_begun:
            self._thread.join(0.001)

    def drained(self) -> None:
        """Wait until the query is being stopped, which does not wait for calls."""
        assert self._running._run.query.hold.wait(60)

    def end(self) -> None:
        """Plan once more, as Spark does between two micro-batches."""
        self.drained()
        assert self._running._requests.answer("plan", PLAN).hold
        self.join(60)

    def join(self, timeout_s: float) -> None:
        if self._thread is not None:
            self._thread.join(timeout_s)
            assert not self._thread.is_alive()


def report_calls(running: RunningApplication, batch: int, figures: CallReport) -> None:
    running._requests.answer("batch", CommittedBatch(batch, [TaskReport("0_0", calls=figures).encode()]))


class TestAnInputTopicInFrontOfTheShuffle:
    """An input topic is committed as far as all tasks behind it have finished its records, once all have reported."""

    READ: ClassVar = replace(PLAN, positions={"in": {0: 90}}, ends={"in": {0: 95}})
    BEGUN: ClassVar = (Begun(6, {"in": {0: 40}}), Begun(7, {"in": {0: 70}}))
    IN = TopicPartition("in", 0)

    @pytest.fixture(autouse=True)
    def behind(self, running: RunningApplication, group: GroupUnavailableOnce) -> None:
        builder = ms.StreamsBuilder()
        builder.stream("in").repartition(name="again").map_values_async(str.upper).to("out")
        running._run.continues = continuity(builder.build().plan("app"), None, {}, exactly_once=False), {}
        group._away = False

    def batch(self, running: RunningApplication, **unfinished_of: int) -> None:
        reports = [
            TaskReport(
                task,
                shuffled={TopicPartition("app-again-repartition", int(task[2:])): first_offset(batch, 0)},
            )
            if batch
            else TaskReport(task)
            for task, batch in (
                ("1_0", unfinished_of.get("first", 0)),
                ("1_1", unfinished_of.get("second", 0)),
            )
        ]
        running._requests.answer("batch", CommittedBatch(7, [report.encode() for report in reports]))

    def test_is_committed_up_to_the_oldest_micro_batch_with_an_unfinished_record(
        self, running: RunningApplication, group: GroupUnavailableOnce
    ) -> None:
        for first, second, committed in ((7, 6, 40), (7, 0, 70), (7, 6, 70), (0, 0, 90)):
            self.batch(running, first=first, second=second)
            answer = running._requests.answer("plan", replace(self.READ, origins=self.BEGUN))
            assert answer.oldest == ({"in": min(filter(None, (first, second)))} if first else {})
            assert group.committed == {self.IN: committed}
            assert running.status().lag == {"in": 95 - committed}

    def test_is_not_committed_before_all_tasks_have_reported(
        self, running: RunningApplication, group: GroupUnavailableOnce
    ) -> None:
        self.batch(running)
        running._requests.answer("plan", replace(self.READ, origins=None))
        assert group.committed == {}

    def test_is_committed_together_with_its_read_position(
        self, running: RunningApplication, group: GroupUnavailableOnce
    ) -> None:
        self.batch(running, first=6)
        running._requests.answer("plan", replace(self.READ, origins=self.BEGUN))
        assert group.taken == {self.IN: 90}
        self.batch(running)
        running._requests.answer("plan", replace(self.READ, origins=self.BEGUN))
        assert group.taken == {}
