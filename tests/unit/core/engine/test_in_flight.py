"""In-flight records of a task: issued calls, snapshots, and restarts."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

import millstream as ms
from millstream.core.asynchronous.call import Call, Done, Failed, Returned, Settled, Skipped, Ticket, Waits
from millstream.core.asynchronous.committable_offset import Progress
from millstream.core.engine.asynchronous import backlog, backpressure, in_flight
from millstream.core.engine.asynchronous.in_flight_record import InFlightStore
from millstream.core.engine.step_outcome import Outcome, Snapshot
from millstream.core.engine.task import Task
from millstream.core.model.errors import ProcessingError
from millstream.core.model.ids import TopicPartition
from millstream.drivers.spark.executor.snapshots import snapshot_from_json, snapshot_to_json
from unit.helpers import Host, sent, values

IN = TopicPartition("in", 0)


@pytest.fixture(autouse=True)
def nothing_is_handed_over_ahead(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hand calls over only when they are due; separate tests cover handing over earlier."""
    if request.cls is not TestAhead:
        monkeypatch.setattr(in_flight, "_AHEAD_MS", 0)


def calling(**options: Any) -> ms.Topology:
    builder = ms.StreamsBuilder()
    builder.stream("in").map_values_async(str.upper, name="call", **options).to("out")
    return builder.build()


def numbers(outcome: Outcome) -> list[int]:
    return [call.ticket.number for call in outcome.issue]


def answer(host: Host, outcome: Outcome) -> None:
    """Answer all calls of an outcome, the last one first."""
    for call in reversed(outcome.issue):
        host.task.done(call.ticket, Done(call.function(*call.args)))


def stored(snapshot: Snapshot) -> Snapshot:
    """Return a snapshot as the next task reads it from the checkpoint."""
    read = snapshot_from_json(json.loads(json.dumps(snapshot_to_json(snapshot))))
    assert read is not None
    return read


def unfinished(host: Host) -> list[int]:
    return [record.number for record in InFlightStore(host.store("call-unfinished")).read()]


class TestIssue:
    def test_a_step_issues_the_calls_of_its_records(self) -> None:
        host = Host(calling())
        (call,) = host.run("in", ("k", "v", 1)).issue
        assert call == Call(Ticket("call", 0, 1, ""), str.upper, ("v",), queue_key="k")

    def test_each_call_is_issued_once(self) -> None:
        host = Host(calling())
        assert numbers(host.run("in", ("k", "v", 1))) == [0]
        assert numbers(host.step()) == []
        assert host.task.under_way() == (Ticket("call", 0, 1, ""),)

    @pytest.mark.parametrize("order", ["key", "completion"])
    def test_the_error_names_a_record_that_cannot_be_stored(self, order: str) -> None:
        opened: ms.Serde[Any] = ms.serdes.of(lambda text: text().encode(), lambda data: lambda: data.decode())
        builder = ms.StreamsBuilder()
        builder.stream("in", key=opened).map_values_async(str.upper, order=order).to("out")
        host = Host(builder.build())
        with pytest.raises(
            ProcessingError, match=r"at offset 0 is in flight and cannot be stored: .*picklable"
        ):
            host.run("in", ("k", "v", 1))

    def test_a_lost_call_is_issued_again(self) -> None:
        host = Host(calling())
        host.run("in", ("k", "v", 1))
        host.task.lost(host.task.under_way())
        assert host.task.under_way() == ()
        assert numbers(host.step()) == [0]

    def test_a_lost_call_of_a_finished_record_is_not_issued_again(self) -> None:
        host = Host(calling())
        outcome = host.run("in", ("k", "v", 1))
        answer(host, outcome)
        assert values(host.step()) == ["V"]
        host.task.lost([call.ticket for call in outcome.issue])
        assert numbers(host.step()) == []

    @pytest.mark.parametrize("operator", ["map_values_async", "foreach_async", "process_async"])
    def test_each_task_issues_the_same_function_object(self, operator: str) -> None:
        """A process pickles a function object once, and the function may be large."""
        builder = ms.StreamsBuilder()
        options = {} if operator == "process_async" else {"batch": (2, 0)}
        function: Any = (
            (lambda values: values) if operator == "map_values_async" else (lambda first, second: None)
        )
        getattr(builder.stream("in"), operator)(function, **options)
        host = Host(builder.build())
        functions = []
        for key in "ab":
            functions += [call.function for call in host.run("in", (key, "v", 1)).issue]
            host.restart()
        assert functions[0] is functions[1]

    def test_effects_are_applied_in_the_step_after_the_answer(self) -> None:
        host = Host(calling())
        outcome = host.run("in", ("k", "v", 1))
        assert outcome.committable == {IN: 0}
        answer(host, outcome)
        outcome = host.step()
        assert sent(outcome) == [("k", "V", 1)]
        assert outcome.committable == {IN: 1}

    def test_only_part_of_the_records_of_a_hot_key_is_handed_over(self) -> None:
        host = Host(calling())
        outcome = host.run("in", *(("hot", "v", 1) for _ in range(1000)), ("cold", "v", 1))
        figures = outcome.calls["call"]
        assert (figures.with_async_worker, figures.parked, figures.most_per_key) == (129, 872, 1000)
        assert 1000 in numbers(outcome)

    def test_a_record_that_an_async_worker_returned_is_handed_over_again_in_order(self) -> None:
        host = Host(calling())
        first, second = host.run("in", ("k", "v", 1), ("k", "w", 2)).issue
        host.task.done(first.ticket, Waits(100, 2, 0, "retry"))
        host.task.done(second.ticket, Returned())
        outcome = host.step(now_ms=50)
        assert (numbers(outcome), outcome.wake_at_ms, outcome.attempts_due_ms) == ([], 100, 100)
        assert (outcome.calls["call"].waiting, outcome.calls["call"].parked) == (1, 1)
        outcome = host.step(now_ms=100)
        assert [(c.ticket.number, c.ticket.turn, c.attempt) for c in outcome.issue] == [(0, 2, 2), (1, 2, 1)]
        assert outcome.attempts_due_ms is None

    @pytest.mark.parametrize("repeats_sends", [True, False])
    @pytest.mark.parametrize("order", ["key", "partition", "completion"])
    def test_the_answer_of_a_retried_record_is_applied_although_the_clock_moves_back(
        self, order: str, repeats_sends: bool
    ) -> None:
        host = Host(calling(order=order), now_ms=1_000, repeats_sends=repeats_sends)
        first, second = host.run("in", ("a", "v", 1), ("b", "w", 2)).issue
        host.task.done(second.ticket, Waits(1_100, 2, 0, "retry"))
        host.step(now_ms=1_050)
        (again,) = host.step(now_ms=1_100).issue
        host.task.done(again.ticket, Done("W"))
        outcomes = [host.step(now_ms=500)]
        host.task.done(first.ticket, Done("V"))
        outcomes += [host.step(now_ms=600), host.step(now_ms=700)]
        assert sorted(value for outcome in outcomes for value in values(outcome)) == ["V", "W"]

    @pytest.mark.parametrize("order", ["key", "partition", "completion"])
    def test_an_attempt_that_was_lost_while_the_clock_moved_back_starts_at_once(self, order: str) -> None:
        host = Host(calling(order=order), now_ms=90_000_000)
        (call,) = host.run("in", ("a", "v", 1)).issue
        host.task.done(call.ticket, Waits(90_000_100, 2, 90_000_000, "retry"))
        host.step(now_ms=90_000_050)
        (again,) = host.step(now_ms=90_000_100).issue
        host.task.lost([again.ticket])
        (after,) = host.step(now_ms=3_600_100).issue
        assert (after.attempt, after.due_ms, after.begun_ms) == (2, 3_600_100, 3_600_000)

    def test_a_record_that_an_async_worker_returned_does_not_count_as_answered(self) -> None:
        host = Host(calling())
        first, *others = host.run("in", *(("hot", "v", 1) for _ in range(1000))).issue
        host.task.done(first.ticket, Waits(10, 2, 0, "retry"))
        for call in others:
            host.task.done(call.ticket, Returned())
        outcome = host.step(now_ms=50)
        assert numbers(outcome) == list(range(128))

    def test_answers_to_old_tickets_are_ignored(self) -> None:
        host = Host(calling())
        (call,) = host.run("in", ("k", "v", 1)).issue
        host.task.done(call.ticket._replace(epoch="other"), Done("X"))
        host.task.done(call.ticket._replace(turn=2), Done("X"))
        host.task.done(call.ticket._replace(operator="gone"), Done("X"))
        outcome = host.step()
        assert (sent(outcome), outcome.calls["call"].ignored) == ([], 2)
        host.task.done(call.ticket, Done("V"))
        host.task.done(call.ticket, Done("again"))
        outcome = host.step()
        assert (values(outcome), outcome.calls["call"].ignored) == (["V"], 1)

    def test_an_error_in_the_endpoint_function_is_a_processing_error(self) -> None:
        topology = calling(circuit_breaker=ms.CircuitBreaker(), endpoint=lambda key, value: 1 / 0)
        host = Host(topology)
        host.feed("in", [("k", "v", 1)])
        with pytest.raises(ProcessingError, match="ZeroDivisionError"):
            host.step()

    def test_a_call_that_cannot_be_created_does_not_block_downstream_tables(self) -> None:
        endpoints = iter(["", "", None])
        options: dict[str, Any] = {
            "circuit_breaker": ms.CircuitBreaker(),
            "endpoint": lambda key, value: next(endpoints).lower(),  # type: ignore[union-attr]  # None raises
            "on_failure": "skip",
        }
        builder = ms.StreamsBuilder()
        called = builder.stream("in").map_values_async(str.upper, name="call", **options)
        called.to_table(store="newest").to_stream().to("out")
        host = Host(builder.build(), cache_bytes=1 << 20)
        first, second = host.run("in", ("k", "a", 1), ("k", "b", 2)).issue
        host.task.done(first.ticket, Waits(100, 2, 0, "retry"))
        host.task.done(second.ticket, Done("B"))
        outputs = []
        for now_ms in (50, 100):
            outcome = host.step(now_ms=now_ms)
            outputs += values(outcome)
        assert outcome.wake_at_ms == 100
        host.restart(stored)
        outcome = host.step(now_ms=100)
        assert outputs + values(outcome) == ["B"]
        assert outcome.metrics.dropped == {"failed call": 1}
        assert outcome.committable == {IN: 2}

    def test_the_metrics_of_calls_cover_the_time_since_the_last_step(self) -> None:
        host = Host(calling(on_failure="skip", order="partition"), now_ms=5)
        a, b, c, d = host.run("in", *((k, "v", 1) for k in "abcd")).issue
        host.task.done(b.ticket, Done("B"))
        host.task.done(c.ticket, Waits(50, 2, 0, "retry"))
        host.task.done(d.ticket, Skipped())
        figures = host.step(now_ms=10).calls["call"]
        assert (figures.with_async_worker, figures.waiting, figures.held) == (1, 1, 2)
        assert (figures.settled, figures.retries, figures.oldest_ms) == (3, 1, 5)
        host.task.done(a.ticket, Failed(1, "no"))
        outcome = host.step(now_ms=20)
        assert values(outcome) == ["B"]
        assert outcome.metrics.dropped == {"failed call": 1}
        assert outcome.notices[0].endswith("failed for good after 1 attempt: no. The record was skipped")
        assert outcome.calls["call"].settled == 1


class TestRestart:
    def test_a_finished_record_is_removed_from_the_store(self) -> None:
        host = Host(calling())
        answer(host, host.run("in", ("k", "v", 1)))
        assert unfinished(host) == [0]
        assert host.step().changes == {"call-unfinished": [(bytes(8), None)]}
        assert unfinished(host) == []

    def test_calls_continue_and_their_answers_are_applied(self) -> None:
        host = Host(calling())
        outcome = host.run("in", ("k", "v", 1), ("k", "w", 2))
        host.restart()
        assert numbers(host.step()) == []
        assert host.task.under_way() == tuple(call.ticket for call in outcome.issue)
        answer(host, outcome)
        assert values(host.step()) == ["V", "W"]
        assert unfinished(host) == []

    def test_lost_calls_are_issued_again_as_the_same_attempts(self) -> None:
        host = Host(calling())
        (first,) = host.run("in", ("k", "v", 1)).issue
        host.task.done(first.ticket, Waits(10, 3, 0, "retry"))
        (second,) = host.step(now_ms=10).issue
        host.restart()
        host.task.lost(host.task.under_way())
        (again,) = host.step().issue
        assert (again.ticket, again.attempt, again.begun_ms) == (Ticket("call", 0, 3, ""), 3, 0)
        host.task.done(second.ticket, Done("late"))
        assert values(host.step()) == []
        host.task.done(again.ticket, Done("V"))
        assert values(host.step()) == ["V"]

    def test_due_times_are_kept(self) -> None:
        host = Host(calling())
        (call,) = host.run("in", ("k", "v", 1)).issue
        host.task.done(call.ticket, Waits(5000, 4, 7, "retry"))
        host.step()
        host.restart()
        assert host.step(now_ms=4999).attempts_due_ms == 5000
        (call,) = host.step(now_ms=5000).issue
        assert (call.attempt, call.begun_ms) == (4, 7)

    def test_records_keep_their_order_and_their_numbers(self) -> None:
        host = Host(calling())
        host.run("in", *(("hot", f"v{i}", i) for i in range(300)))
        host.restart()
        host.feed("in", [("hot", "last", 300)])
        host.task.lost(host.task.under_way())
        seen: list[str | None] = []
        for _ in range(10):
            outcome = host.step()
            answer(host, outcome)
            seen += values(outcome)
        assert seen == [*(f"V{i}" for i in range(300)), "LAST"]

    def test_a_call_whose_answer_is_held_is_not_issued_again(self) -> None:
        host = Host(calling(order="partition"))
        first, second = host.run("in", ("a", "v", 1), ("b", "w", 2)).issue
        host.task.done(second.ticket, Done("W"))
        assert values(host.step()) == []
        host.restart()
        assert host.task.under_way() == (first.ticket,)
        host.task.done(first.ticket, Done("V"))
        assert values(host.step()) == ["V", "W"]
        assert unfinished(host) == []

    def test_a_held_answer_is_applied_when_the_order_changes_to_completion(self) -> None:
        host = Host(calling(order="partition"))
        _, second = host.run("in", ("a", "v", 1), ("b", "w", 2)).issue
        host.task.done(second.ticket, Done("W"))
        host.step()
        host.sub = calling(order="completion").plan("app").subtopologies[0]
        host.restart()
        assert values(host.step()) == ["W"]
        assert unfinished(host) == [0]

    def test_an_exception_that_cannot_be_pickled_does_not_prevent_a_restart(self) -> None:
        host = Host(calling(order="partition", on_failure="skip"))
        _, second = host.run("in", ("a", "v", 1), ("b", "w", 2)).issue
        host.task.done(second.ticket, Failed(1, "no", ValueError(lambda: None)))
        host.step()
        host.restart()
        assert unfinished(host) == [0, 1]


@pytest.mark.parametrize("restarting", [False, True])
class TestExactlyOnce:
    """An answer is stored in one step and applied in the next."""

    @staticmethod
    def step(host: Host, restarting: bool) -> Outcome:
        if restarting:
            host.restart()
        return host.step()

    def test_an_answer_is_applied_in_the_step_after_it_was_stored(self, restarting: bool) -> None:
        host = Host(calling(), repeats_sends=False)
        answer(host, host.run("in", ("k", "v", 1)))
        outcome = host.step()
        assert (sent(outcome), outcome.committable, outcome.calls["call"].with_async_worker) == (
            [],
            {IN: 0},
            0,
        )
        outcome = self.step(host, restarting)
        assert (sent(outcome), outcome.committable) == ([("k", "V", 1)], {IN: 1})

    def test_a_call_reads_the_writes_of_all_earlier_records_of_its_key(self, restarting: bool) -> None:
        def add(record: ms.Record[str, str], context: ms.CallContext) -> None:
            totals = context.state_store("totals")
            totals.put(record.key, (totals.get(record.key) or 0) + int(record.value))
            context.forward(record.with_value(str(totals.get(record.key))))

        builder = ms.StreamsBuilder()
        builder.add_state_store(ms.stores.key_value("totals", ms.serdes.string, ms.serdes.int64))
        stream = builder.stream("in").process_async(add, stores=["totals"], name="call")
        stream.to("out", key=ms.serdes.string, value=ms.serdes.string)
        host = Host(builder.build(), repeats_sends=False)
        outcome = host.run("in", ("k", "1", 1), ("other", "5", 1), ("k", "2", 2), ("k", "4", 3))
        outputs = []
        for _ in range(3):
            answer(host, outcome)
            outcome = host.step()
            assert (numbers(outcome), outcome.calls["call"].with_async_worker) == ([], 0)
            outcome = self.step(host, restarting)
            outputs.append(sorted(values(outcome), key=str))
        assert outputs == [["1", "5"], ["3"], ["7"]]
        assert outcome.committable == {IN: 4}


class TestDelayQueue:
    """Delayed records that block no other record are not read before they are due."""

    @staticmethod
    def delayed(*keys: str | None, order: Any = "key") -> Host:
        host = Host(calling(order=order))
        calls = host.run("in", *((key, f"v{i}", i) for i, key in enumerate(keys))).issue
        for number, call in enumerate(calls):
            host.task.done(call.ticket, Waits(1000 + number, 1, None, "delay"))
        host.step(now_ms=5)
        host.restart()
        return host

    @staticmethod
    def in_memory(host: Host) -> int:
        return sum(len(operator._records) for operator in host.task._async_operators)  # type: ignore[attr-defined]

    def test_a_restart_does_not_read_delayed_records(self) -> None:
        host = self.delayed("a", "b", None, None)
        assert (self.in_memory(host), unfinished(host)) == (0, [])
        outcome = host.step(now_ms=999)
        assert (outcome.attempts_due_ms, outcome.calls["call"].waiting) == (1000, 4)
        assert outcome.committable == {IN: 0}
        assert [call.args for call in host.step(now_ms=1002).issue] == [("v0",), ("v1",), ("v2",)]
        assert host.step(now_ms=1002).attempts_due_ms == 1003

    def test_delayed_records_finish_like_other_records(self) -> None:
        host = self.delayed("a", "b")
        host.restart()
        answer(host, host.step(now_ms=2000))
        outcome = host.step()
        assert sorted(values(outcome), key=str) == ["V0", "V1"]
        assert outcome.committable == {IN: 2}
        assert outcome.attempts_due_ms is None
        host.restart()
        assert host.step().committable == {IN: 2}

    def test_a_delayed_record_returns_to_memory_when_a_later_record_of_its_key_arrives(self) -> None:
        host = self.delayed("a", "b")
        host.feed("in", [("a", "behind", 5)])
        assert numbers(host.step(now_ms=500)) == []
        assert self.in_memory(host) == 2
        host.restart()
        outcome = host.step(now_ms=1000)
        assert [call.args for call in outcome.issue] == [("v0",), ("behind",)]
        answer(host, outcome)
        assert values(host.step()) == ["V0", "BEHIND"]

    def test_a_delayed_record_stays_in_the_queue_with_order_completion(self) -> None:
        host = self.delayed("a", order="completion")
        host.feed("in", [("a", "other", 5)])
        assert [call.args for call in host.step(now_ms=500).issue] == [("other",)]
        assert self.in_memory(host) == 1

    def test_delayed_records_do_not_enter_the_queue_with_order_partition(self) -> None:
        host = self.delayed("a", "b", order="partition")
        assert unfinished(host) == [0, 1]

    def test_delayed_records_leave_the_queue_when_the_order_changes_to_partition(self) -> None:
        host = self.delayed("a", "b", order="completion")
        host.sub = calling(order="partition").plan("app").subtopologies[0]
        host.restart()
        outcome = host.run("in", ("c", "v2", 5))
        (call,) = outcome.issue
        host.task.done(call.ticket, Done("V2"))
        assert values(host.step()) == []
        answer(host, host.step(now_ms=2000))
        assert values(host.step()) == ["V0", "V1", "V2"]

    def test_the_age_of_the_oldest_record_includes_the_queue(self) -> None:
        host = self.delayed("a")
        host.step(now_ms=7)
        host.feed("in", [("b", "w", 2)])
        host.step(now_ms=8)
        assert host.step().calls["call"].oldest_ms == 0
        host.restart()
        assert host.step().calls["call"].oldest_ms == 0
        host.feed("in", [("a", "w", 2)])  # this takes the older "a" out of the delay queue, after "b"
        assert host.step(now_ms=9).calls["call"].oldest_ms == 0
        for _ in range(2):
            host.task.done(host.task.under_way()[0], Done("W"))
            host.step(now_ms=1000)
        assert host.step().calls["call"].oldest_ms == 9

    def test_waiting_and_delayed_records_are_reported(self) -> None:
        host = self.delayed("a", "b", None)
        (call,) = host.run("in", ("c", "v", 1)).issue
        host.task.done(call.ticket, Waits(1000, 2, 5, "retry"))
        host.feed("in", [("c", "behind", 1)])
        for _ in range(2):  # one record is in memory, because a later record of its key exists
            figures = host.step().calls["call"]
            assert (figures.waiting, figures.delayed, figures.parked) == (4, 3, 1)
            host.restart()

    def test_offsets_are_stored_as_runs(self) -> None:
        host = self.delayed("a", "b", "c")
        assert host.task.snapshot().operators["call-unfinished"]["shelved"] == [["in", 0, [[0, 3, 1]]]]
        assert host.task.snapshot().progress == {IN: Progress(3, ((0, 3),))}

    def test_an_offset_is_committable_only_after_all_of_its_records(self) -> None:
        builder = ms.StreamsBuilder()
        doubled = builder.stream("in").flat_map(lambda key, value: [(key, value), (f"{key}2", value)])
        doubled.map_values_async(str.upper, name="call").to("out")
        host = Host(builder.build())
        for call in host.run("in", ("a", "v", 1)).issue:
            host.task.done(call.ticket, Waits(1000 * (1 + call.ticket.number), 1, None, "delay"))
        host.step()
        host.restart()
        answer(host, host.step(now_ms=1000))
        assert host.step(now_ms=1000).committable == {IN: 0}
        host.restart()
        answer(host, host.step(now_ms=2000))
        assert host.step(now_ms=2000).committable == {IN: 1}


def test_a_partition_that_begins_again_reports_its_new_position() -> None:
    host = Host(calling())
    answer(host, host.run("in", ("k", "v", 1)))
    assert host.step().committable == {IN: 1}
    host.restart(stored)
    host.offsets[IN] = 0
    host.feed("in", [])
    assert host.step().committable == {IN: 0}
    host.restart(stored)
    assert host.step().committable == {IN: 0}


class TestAClockThatMovesBack:
    """The clock moves back by a day: a wait for a duration does not become longer, but a wait until a time does."""

    NOW_MS = 10 * 86_400_000
    BACK_MS = 9 * 86_400_000

    @classmethod
    def waiting(cls, waits: Waits, **options: Any) -> Host:
        """Return a host with a record in the delay queue."""
        host = Host(calling(**options))
        host.step(now_ms=cls.NOW_MS)
        (call,) = host.run("in", ("k", "v", 1)).issue
        host.task.done(call.ticket, waits)
        assert host.step().calls["call"].waiting == 1
        return host

    @pytest.mark.parametrize("order", ["key", "partition", "completion"])
    @pytest.mark.parametrize("why", ["retry", "delay"])
    def test_a_wait_for_a_duration_keeps_its_length(self, order: str, why: Any) -> None:
        host = self.waiting(Waits(self.NOW_MS + 100, 2, self.NOW_MS - 7, why), order=order)
        host.restart()
        outcome = host.step(now_ms=self.BACK_MS)
        assert (outcome.attempts_due_ms, numbers(outcome)) == (self.BACK_MS + 100, [])
        host.restart()
        (call,) = host.step(now_ms=self.BACK_MS + 100).issue
        assert (call.attempt, call.begun_ms) == (2, self.BACK_MS - 7)

    def test_a_wait_until_a_time_keeps_its_time(self) -> None:
        host = self.waiting(Waits(self.NOW_MS + 100, 1, None, "until"))
        assert host.step(now_ms=self.BACK_MS).attempts_due_ms == self.NOW_MS + 100

    def test_a_time_in_the_past_is_due_immediately(self) -> None:
        host = Host(calling())
        (call,) = host.run("in", ("k", "v", 1)).issue
        host.task.done(call.ticket, Waits(-5, 1, None, "until"))
        assert host.step(now_ms=0).attempts_due_ms == 1


class TestAhead:
    """Calls that are due soon are handed over early, and start when they are due."""

    @staticmethod
    def waiting(due_ms: int) -> Host:
        host = Host(calling())
        (call,) = host.run("in", ("k", "v", 1)).issue
        host.task.done(call.ticket, Waits(due_ms, 2, 0, "retry"))
        return host

    def test_a_call_that_is_handed_over_early_has_its_due_time(self) -> None:
        outcome = self.waiting(2_500).step(now_ms=500)
        assert [(call.due_ms, call.attempt) for call in outcome.issue] == [(2_500, 2)]
        assert (outcome.attempts_due_ms, outcome.calls["call"].waiting) == (None, 0)

    def test_the_task_wakes_when_the_call_can_be_handed_over_early(self) -> None:
        outcome = self.waiting(2_501).step(now_ms=500)
        assert (outcome.issue, outcome.attempts_due_ms, outcome.calls["call"].waiting) == ((), 501, 1)

    def test_the_async_worker_still_has_the_call_after_a_restart(self) -> None:
        host = self.waiting(1_000)
        (call,) = host.step().issue
        host.restart()
        assert host.task.under_way() == (call.ticket,)
        assert host.step(now_ms=2_000).issue == ()
        host.task.done(call.ticket, Done("V"))
        assert values(host.step()) == ["V"]

    def test_a_lost_call_is_issued_again_with_its_due_time(self) -> None:
        host = self.waiting(1_000)
        (call,) = host.step().issue
        host.restart()
        host.task.lost([call.ticket])
        (again,) = host.step().issue
        assert (again.due_ms, again.attempt, again.ticket.turn) == (1_000, 2, 3)


class TestHotKeys:
    """Of a key with many unfinished records, the first few hundred are in memory, the others in the spill queue."""

    @staticmethod
    def hot(count: int) -> Host:
        host = Host(calling())
        host.feed("in", [("hot", f"v{i}", i) for i in range(count)])
        return host

    def test_a_restart_reads_only_part_of_the_records(self) -> None:
        host = self.hot(2000)
        figures = host.step().calls["call"]
        assert (figures.with_async_worker, figures.parked, figures.most_per_key) == (128, 1872, 2000)
        host.restart()
        assert TestDelayQueue.in_memory(host) == 512
        assert host.step().calls["call"].parked == 1872
        assert host.step().committable == {IN: 0}

    def test_all_records_finish_in_order(self) -> None:
        host = self.hot(1500)
        host.feed("in", [("cold", "c", 1)])
        seen: list[str | None] = []
        for turn in range(40):
            outcome = host.step()
            answer(host, outcome)
            seen += values(outcome)
            if turn % 5 == 2:
                host.restart()
                host.task.lost(host.task.under_way())
            if turn == 3:
                host.feed("in", [("hot", "last", 1)])
        assert [value for value in seen if value != "C"] == [*(f"V{i}" for i in range(1500)), "LAST"]
        assert host.step().committable == {IN: 1502}
        assert host.task.snapshot().operators["call-unfinished"]["overflow"] == []

    def test_records_with_an_unhashable_hot_key_finish_in_order(self) -> None:
        builder = ms.StreamsBuilder()
        stream = builder.stream("in", key=ms.serdes.json, value=ms.serdes.string)
        stream.map_values_async(str.upper, name="call").to("out")
        host = Host(builder.build())
        host.feed("in", [('{"id":1}', f"v{i}", i) for i in range(1000)])
        seen: list[str | None] = []
        for _ in range(30):
            outcome = host.step()
            answer(host, outcome)
            seen += values(outcome)
        assert seen == [f"V{i}" for i in range(1000)]

    def test_the_hottest_key_is_reported(self) -> None:
        host = self.hot(1000)
        host.feed("in", [(f"cold{i}", "c", 1) for i in range(500)])
        host.feed("in", [(None, "c", 1)] * 500)
        key, records, of = host.step().calls["call"].hottest or ("", 0, 0)
        assert (key, of) == ("'hot'", 250)
        assert records == pytest.approx(of / 2, abs=2)
        assert host.step().calls["call"].hottest is None
        host.feed("in", [(None, "c", 1)] * 5)
        assert host.step().calls["call"].hottest is None

    def test_spilled_records_are_handed_over_when_the_order_changes_to_partition(self) -> None:
        host = self.hot(1000)
        host.step()
        host.sub = calling(order="partition").plan("app").subtopologies[0]
        host.restart()
        host.task.lost(host.task.under_way())
        outcome = host.step()
        assert len(outcome.issue) == 1000
        answer(host, outcome)
        assert values(host.step()) == [f"V{i}" for i in range(1000)]


class TestLongPartitions:
    """With order='partition', the first ten thousand unfinished records of each partition are in memory."""

    @staticmethod
    def behind_slow_record(count: int) -> Host:
        """Return a host on which the call of the first record is under way, followed by ``count`` records."""
        host = Host(calling(order="partition"))
        host.feed("in", [(f"k{i}", f"v{i}", i) for i in range(count + 1)])
        slow, *others = host.step().issue
        assert slow.args == ("v0",)
        for call in others:
            host.task.done(call.ticket, Done(call.function(*call.args)))
        return host

    def test_a_restart_reads_only_part_of_the_records(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(backpressure, "_MAX_IN_FLIGHT", 10_000)
        host = self.behind_slow_record(12_000)
        figures = host.step().calls["call"]
        assert (figures.with_async_worker, figures.held, figures.parked) == (1, 9_999, 2_001)
        assert figures.most_per_key == 0  # keys do not matter
        host.restart()
        assert TestDelayQueue.in_memory(host) == 10_000
        figures = host.step().calls["call"]
        assert (figures.with_async_worker, figures.held, figures.parked) == (1, 9_999, 2_001)
        assert host.step().committable == {IN: 0}

    def test_other_partitions_do_not_wait(self) -> None:
        host = self.behind_slow_record(10_500)
        host.step()
        host.feed("in", [("k", "other", 1)], partition=1)
        assert [call.args for call in host.step().issue] == [("other",)]

    @pytest.mark.parametrize("order", ["partition", "key", "completion"])
    def test_all_records_finish_even_if_the_order_changes(self, order: str) -> None:
        host = self.behind_slow_record(10_700)
        host.step()
        host.sub = calling(order=order).plan("app").subtopologies[0]
        host.restart()
        host.task.lost(host.task.under_way())
        seen: list[str | None] = []
        for _ in range(4):
            outcome = host.step()
            answer(host, outcome)
            seen += values(outcome)
        expected = [f"V{i}" for i in range(10_701)]
        assert (seen if order == "partition" else sorted(seen, key=lambda v: int(str(v)[1:]))) == expected
        assert host.step().committable == {IN: 10_701}
        assert unfinished(host) == []


class TestARenamedOperator:
    """An edit changes the generated name of an operator; its store keeps its explicit name."""

    @staticmethod
    def edited(host: Host, *, name: str) -> None:
        builder = ms.StreamsBuilder()
        builder.stream("in").map_values_async(str.upper, name=name, store="kept").to("out")
        host.sub = builder.build().plan("app").subtopologies[0]
        host.restart()

    def test_continues_with_its_records(self) -> None:
        host = Host(calling())
        self.edited(host, name="old")
        waits, _ = host.run("in", ("a", "delayed", 1), ("b", "called", 2)).issue
        host.task.done(waits.ticket, Waits(1000, 1, None, "delay"))
        host.step()
        host.feed("in", [("hot", f"v{i}", 3) for i in range(600)])
        host.step()
        self.edited(host, name="new")
        host.task.lost(host.task.under_way())
        host.feed("in", [("hot", "last", 4)])
        seen: list[str | None] = []
        for now in (0, 0, 0, 1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000):
            outcome = host.step(now_ms=now)
            answer(host, outcome)
            seen += values(outcome)
        assert sorted(seen, key=str) == sorted(["CALLED", "DELAYED", "LAST", *(f"V{i}" for i in range(600))])
        assert [value for value in seen if value[0] in "VL"] == [*(f"V{i}" for i in range(600)), "LAST"]  # type: ignore[index]
        assert outcome.committable == {IN: 603}

    def test_counts_its_records_again_if_its_snapshot_is_lost(self) -> None:
        host = Host(calling())
        host.feed("in", [("hot", f"v{i}", 3) for i in range(600)])
        host.step()
        host.restart(lambda snapshot: replace(snapshot, operators={}))
        host.task.lost(host.task.under_way())
        outcome = host.step()
        seen: list[str | None] = []
        while outcome.issue:
            answer(host, outcome)
            outcome = host.step()
            seen += values(outcome)
        assert (seen, outcome.committable) == ([f"V{i}" for i in range(600)], {IN: 600})
        assert unfinished(host) == []


class TestProgress:
    def test_a_snapshot_has_the_finished_records_beyond_the_committable_offset(self) -> None:
        host = Host(calling(order="completion"))
        calls = host.run("in", *((k, "v", 1) for k in "abcd")).issue
        for number in (1, 3):
            host.task.done(calls[number].ticket, Done("V"))
        assert host.step().committable == {IN: 0}
        assert host.task.snapshot().progress == {IN: Progress(4, ((0, 1), (2, 1)))}

    def test_records_that_are_read_again_are_not_processed_twice(self) -> None:
        host = Host(calling(order="completion"))
        calls = host.run("in", *((k, k, 1) for k in "abc")).issue
        host.task.done(calls[1].ticket, Done("B"))
        host.step()
        host.restart(lambda snapshot: snapshot.without_committed())
        host.offsets[IN] = 0
        host.task.lost(host.task.under_way())
        outcome = host.run("in", *((k, k, 1) for k in "abcd"))
        assert [call.args for call in outcome.issue] == [("a",), ("c",), ("d",)]
        answer(host, outcome)
        outcome = host.step()
        assert sorted(values(outcome), key=str) == ["A", "C", "D"]
        assert outcome.committable == {IN: 4}

    @pytest.mark.parametrize("chunk_size", [1, 2, 6])
    def test_records_that_are_read_again_later_in_chunks_are_not_processed_twice(
        self, chunk_size: int
    ) -> None:
        host = Host(calling(order="completion"))
        calls = host.run("in", *((k, k, 1) for k in "abcd")).issue
        for number in (1, 2):
            host.task.done(calls[number].ticket, Done(calls[number].args[0].upper()))
        assert sorted(values(host.step()), key=str) == ["B", "C"]
        host.restart(lambda snapshot: stored(snapshot.without_committed()))
        host.task.lost(host.task.under_way())
        host.offsets[IN] = 0
        outcome = host.step()  # the first micro-batch of a run reads nothing
        results: list[str | None] = []
        for start in range(0, 6, chunk_size):
            assert outcome.committable == {IN: 4 if start else 0}
            host.restart(stored)
            answer(host, outcome)
            outcome = host.run("in", *((k, k, 1) for k in "abcdef"[start : start + chunk_size]))
            results += values(outcome)
        answer(host, outcome)
        outcome = host.step()
        assert sorted([*results, *values(outcome)], key=str) == ["A", "D", "E", "F"]
        assert outcome.committable == {IN: 6}

    def test_a_task_without_asynchronous_operators_has_no_progress(self) -> None:
        builder = ms.StreamsBuilder()
        builder.stream("in").to("out")
        host = Host(builder.build())
        outcome = host.run("in", ("k", "v", 1))
        assert (outcome.issue, outcome.calls, host.task.calls) == ((), {}, {})
        assert host.task.snapshot().progress == {}


def test_a_task_reports_the_call_options_of_its_operators() -> None:
    host = Host(calling(max_in_flight=7))
    assert isinstance(host.task, Task)
    assert host.task.calls["call"].max_in_flight == 7


class TestHowMuchIsHandedOver:
    def test_an_async_worker_that_ran_dry_receives_four_times_as_many_calls_as_it_answered(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(backpressure, "MIN_IN_FLIGHT", 4)
        monkeypatch.setattr(backpressure, "_TIMES_IN_FLIGHT", 4)
        host = Host(calling(max_in_flight=1, order="completion"))
        outcome = host.run("in", *((f"k{n}", "v", n) for n in range(100)))
        handed_over = []
        while outcome.issue:
            handed_over.append(len(outcome.issue))
            answer(host, outcome)
            outcome = host.step()
        assert handed_over == [4, 16, 64, 16]

    def test_an_async_worker_with_calls_left_receives_up_to_twice_as_many_as_it_answered(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(backpressure, "MIN_IN_FLIGHT", 4)
        monkeypatch.setattr(backpressure, "_TIMES_IN_FLIGHT", 4)
        host = Host(calling(max_in_flight=1, order="completion"))
        outcome = host.run("in", *((f"k{n}", "v", n) for n in range(100)))
        for call in outcome.issue[:3]:
            host.task.done(call.ticket, Done("V"))
        assert len(host.step().issue) == 5

    def test_the_room_shrinks_while_no_calls_are_answered(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(backpressure, "MIN_IN_FLIGHT", 4)
        monkeypatch.setattr(backpressure, "_TIMES_IN_FLIGHT", 4)
        host = Host(calling(max_in_flight=1, order="completion"))
        outcome = host.run("in", *((f"k{n}", "v", n) for n in range(12)))
        while outcome.issue:
            answer(host, outcome)
            outcome = host.step()
        assert [room(host.step()) for _ in range(6)] == [24, 18, 14, 10, 8, 6]

    def test_a_key_with_fast_calls_is_handed_over_in_growing_numbers(self) -> None:
        host = Host(calling())
        outcome = host.run("in", *(("hot", "v", n) for n in range(2_000)))
        handed_over = []
        while outcome.issue:
            handed_over.append(len(outcome.issue))
            answer(host, outcome)
            outcome = host.step()
        assert handed_over[:4] == [128, 256, 512, 1_024]
        assert sum(handed_over) == 2_000

    def test_a_task_has_room_for_the_records_that_it_can_hand_over(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(backpressure, "MIN_IN_FLIGHT", 4)
        monkeypatch.setattr(backpressure, "_TIMES_IN_FLIGHT", 4)
        host = Host(calling(max_in_flight=1, order="completion"))
        assert room(host.run("in", *((f"k{n}", "v", n) for n in range(4)))) == 4
        assert room(host.run("in", ("k", "v", 5))) == 1
        assert room(host.run("in", *((f"k{n}", "v", n) for n in range(3)))) == 0

    def test_spilled_records_take_up_the_room_of_their_partition(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(backpressure, "MIN_IN_FLIGHT", 4)
        monkeypatch.setattr(backpressure, "_TIMES_IN_FLIGHT", 4)
        host = Host(calling(max_in_flight=1, order="partition"))
        assert room(host.run("in", *((f"k{n}", "v", n) for n in range(600)))) == 0

    def test_the_limit_of_spilled_records_leaves_no_room(self, monkeypatch: pytest.MonkeyPatch) -> None:
        host = Host(calling())
        host.run("in", *(("hot", "v", n) for n in range(900)))
        spilled = 900 - len(unfinished(host))
        monkeypatch.setattr(backpressure, "_MAX_SPILLED", spilled)
        assert (spilled > 0, room(host.step())) == (True, 0)
        monkeypatch.setattr(backpressure, "_MAX_SPILLED", spilled + 1)
        assert room(host.step()) > 0

    def test_a_hot_key_leaves_room_for_other_keys(self) -> None:
        host = Host(calling())
        assert room(host.run("in", *(("hot", "v", n) for n in range(20_000)))) > 9_000


def room(outcome: Outcome) -> int:
    return outcome.calls["call"].room


class TestKeysThatWait:
    def test_leave_room_for_other_keys(self) -> None:
        host = Host(calling(retry=ms.Retry(initial=60_000)))
        for step in range(30):
            rows = [(f"poison{n // 2 % 50}" if n % 2 else f"cold{step}-{n}", "v", 1) for n in range(1_000)]
            host.feed("in", rows)
            waiting: set[object] = set()
            for call in host.step(step).issue:
                answer: Settled = Done("V")
                if str(call.queue_key).startswith("poison"):
                    answer = Returned() if call.queue_key in waiting else Waits(10**9, 2, 0, "retry", "down")
                    waiting.add(call.queue_key)
                host.task.done(call.ticket, answer)
            outcome = host.step(step)
        figures = outcome.calls["call"]
        assert (figures.with_async_worker, figures.waiting) == (0, 50)
        assert figures.room >= backpressure.MIN_IN_FLIGHT // 2
        assert len(unfinished(host)) <= 50 * backlog._BLOCKED_KEY

    def test_continue_in_order_with_the_records_that_arrived_meanwhile(self) -> None:
        host = Host(calling(retry=ms.Retry(initial=100)))
        (first,) = host.run("in", ("k", "first", 1)).issue
        host.task.done(first.ticket, Waits(100, 2, 0, "retry", "down"))
        rest = [f"v{n}" for n in range(200)]
        host.feed("in", [("k", value, 1) for value in rest])
        received: list[str] = []
        for now in (1, *range(100, 130)):
            outcome = host.step(now)
            received += values(outcome)
            for call in outcome.issue:
                host.task.done(call.ticket, Done(call.args[0]))
        assert received == ["first", *rest]

    def test_are_reported_with_their_cause(self) -> None:
        host = Host(calling(retry=ms.Retry(initial=1)))
        outcome = host.run("in", ("k", "v", 1))
        notices: list[str] = []
        for attempt in range(1, 12):
            (call,) = outcome.issue
            host.task.done(call.ticket, Waits(attempt, attempt + 1, 0, "retry", "OSError: down"))
            outcome = host.step(attempt)
            notices += outcome.notices
        (line,) = notices
        assert "has failed 5 times and will be retried; the last failure was OSError: down" in line
        assert "topic 'in', partition 0, offset 0" in line


def test_waiting_records_keep_their_position_when_the_order_changes_to_key() -> None:
    host = Host(calling(order="completion", retry=ms.Retry()))
    (first,) = host.run("in", ("k", "first", 1)).issue
    host.task.done(first.ticket, Waits(50, 2, 0, "retry", "down"))
    host.step()
    host.sub = calling(retry=ms.Retry()).plan("app").subtopologies[0]
    host.restart()
    host.feed("in", [("k", "second", 1)])
    received: list[str] = []
    for now in (10, 20, 50, 60, 70):
        outcome = host.step(now)
        received += values(outcome)
        for call in outcome.issue:
            host.task.done(call.ticket, Done(call.args[0]))
    assert received == ["first", "second"]


def test_results_that_are_applied_after_the_commit_stay_unfinished_until_then() -> None:
    host = Host(calling(), repeats_sends=False)
    (call,) = host.run("in", ("k", "v", 1)).issue
    host.restart()
    host.task.done(call.ticket, Done("V"))
    outcome = host.step()
    assert (values(outcome), outcome.calls["call"].unfinished) == ([], 1)
    after = host.step()
    assert (values(after), after.calls["call"].unfinished) == (["V"], 0)
