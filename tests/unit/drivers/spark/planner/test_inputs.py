"""What the planner writes into offsets for tasks with several inputs, and what the reader derives from it for each task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import millstream as ms
from millstream.core.engine.records.readiness import InputFacts
from millstream.core.model.ids import TaskId, TopicPartition
from millstream.core.ports import BatchId, OffsetRange, TimedOffset
from millstream.core.runtime.batch_plan import BatchPlan
from millstream.core.runtime.inputs import WaitSettings, informed
from millstream.core.runtime.messages import BufferedRecords
from millstream.core.runtime.remaining_inputs import RemainingInputs, TaskInput, lets_tasks_continue
from millstream.core.topology.evolution import Remembered
from millstream.core.topology.layout import Layout, lay_out
from millstream.core.topology.plan import Plan
from millstream.drivers.spark.planner.input_planner import InputPlanner, Outlook, TaskInputPlanner

FAST, SLOW = TopicPartition("fast", 0), TopicPartition("slow", 0)
NOTHING = BufferedRecords()


class Index:
    """A time index of topics whose record n has the time n times a step."""

    def __init__(self, counts: Mapping[TopicPartition, int], steps: Mapping[TopicPartition, int]) -> None:
        self.counts, self.steps = counts, steps

    def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, TimedOffset]:
        first = {p: -(-time_ms // self.steps[p]) for p, time_ms in times.items()}
        return {
            p: TimedOffset(offset, offset * self.steps[p])
            for p, offset in first.items()
            if offset < self.counts[p]
        }

    def newest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, TimedOffset]:
        last = {p: self.counts[p] - 1 for p in partitions}
        return {p: TimedOffset(offset, offset * self.steps[p]) for p, offset in last.items() if offset >= 0}


def joined(shuffled: bool = False) -> tuple[Plan, Layout]:
    builder = ms.StreamsBuilder()
    table = builder.table("slow", store="table")
    stream = builder.stream("fast")
    if shuffled:
        stream = stream.select_key(lambda _, value: value)
    stream.join(table, lambda left, right: left).to("out")
    plan = builder.build().plan("app")
    return plan, lay_out(plan, {"fast": 2 if shuffled else 1, "slow": 1})


def planned(
    fast: int,
    slow: int,
    *,
    budget: int = 100,
    idle_ms: int = 0,
    records: BufferedRecords = NOTHING,
    **more: Any,
) -> tuple[Any, Any]:
    plan, layout = joined()
    index = Index({FAST: fast, SLOW: slow}, {FAST: 1, SLOW: 100})
    planner = InputPlanner(plan, layout, WaitSettings(idle_ms, 10, 1_000), index)
    ends = {"fast": {0: fast}, "slow": {0: slow}}
    start = {"fast": {0: 0}, "slow": {0: 0}}
    admitted = {"fast": {0: min(fast, budget)}, "slow": {0: min(slow, budget)}}
    options = {
        "records": records,
        "paused": (),
        "bounded": False,
        "bytes_per_record": None,
        "ends": ends,
        **more,
    }
    return planner.planned(Outlook(start, admitted, log_ends=ends, **options))


class TestThePlanner:
    def test_reads_a_fast_and_a_slow_topic_up_to_the_same_time(self) -> None:
        ends, left = planned(1_000, 10)
        time_ms = ends["fast"][0]
        assert 50 <= time_ms <= 110
        assert ends["slow"] == {0: -(-time_ms // 100)}
        assert left.lag == {FAST: 1_000 - time_ms, SLOW: 10 - ends["slow"][0]}
        assert left.until == {FAST: time_ms, SLOW: time_ms}

    def test_reads_all_records_that_fit_into_a_micro_batch(self) -> None:
        ends, left = planned(50, 3)
        assert ends == {"fast": {0: 50}, "slow": {0: 3}}
        assert left == NOTHING_LEFT

    def test_reads_at_most_one_buffer_of_records_that_have_to_wait(self) -> None:
        ends, _ = planned(50, 0, idle_ms=1_000)
        assert ends["fast"] == {0: 10}
        ends, _ = planned(50, 0, idle_ms=1_000, records=BufferedRecords({FAST: (7, 10, 3)}))
        assert ends["fast"] == {0: 3}
        ends, _ = planned(
            50, 0, idle_ms=1_000, records=BufferedRecords({FAST: (7, 1_000, 3)}), bytes_per_record=10.0
        )
        assert ends["fast"] == {0: 0}

    def test_does_not_wait_for_records_behind_the_end_of_a_bounded_run(self) -> None:
        ends, left = planned(50, 0, idle_ms=1_000, bounded=True)
        assert (ends["fast"], left.bounded) == ({0: 50}, True)

    def test_reports_paused_topics_without_reading_them(self) -> None:
        ends, left = planned(50, 3, ends={"fast": {0: 50}}, paused=["slow"])
        assert ends == {"fast": {0: 50}, "slow": {0: 0}}
        assert (left.paused, left.lag) == ({"slow"}, {SLOW: 3})

    def test_is_inactive_if_tasks_never_wait(self) -> None:
        plan, layout = joined()
        assert not InputPlanner(plan, layout, WaitSettings(-1), Index({}, {})).active


NOTHING_LEFT = RemainingInputs()


def plan_with(remaining: RemainingInputs | None) -> BatchPlan:
    return BatchPlan(BatchId("5f3a", 1), Remembered(), inputs=remaining)


def facts_of(
    end: RemainingInputs, start: RemainingInputs | None = None, *, shuffled: bool = False, **more: Any
) -> dict[str, InputFacts]:
    plan, layout = joined(shuffled)
    options = {"ranges": [], "ticked": (), **more}
    planner = TaskInputPlanner(plan, layout, WaitSettings())
    found = planner.messages(plan_with(start), plan_with(end), options["ranges"], options["ticked"])
    inputs = informed(plan, layout, waits=True)
    return {
        task: TaskInput.decode(message.encode()).facts(inputs[TaskId.parse(task)]) for task, message in found
    }


class TestFactsOfTasks:
    def test_reach_the_tasks_that_get_records_or_are_woken(self) -> None:
        lag = RemainingInputs({SLOW: 3})
        assert facts_of(lag, lag) == {}
        assert list(facts_of(lag, lag, ranges=[OffsetRange("fast", 0, 0, 1)])) == ["0_0"]
        assert list(facts_of(lag, lag, ticked=["0_0"])) == ["0_0"]

    def test_reach_the_tasks_that_can_now_continue(self) -> None:
        assert facts_of(RemainingInputs({SLOW: 3}), RemainingInputs({SLOW: 2})) == {}
        assert list(facts_of(NOTHING_LEFT, RemainingInputs({SLOW: 2}))) == ["0_0"]
        assert list(facts_of(RemainingInputs(paused=frozenset(["slow"])), NOTHING_LEFT)) == ["0_0"]
        assert list(facts_of(NOTHING_LEFT)) == ["0_0"]

    def test_include_lag_times_and_pauses(self) -> None:
        task_facts = facts_of(RemainingInputs({SLOW: 3}, {SLOW: 70}, frozenset(["fast"])))["0_0"]
        assert task_facts == InputFacts((FAST, SLOW), {SLOW: 3}, {SLOW: 70}, False, frozenset(["fast"]))

    def test_include_the_finished_inputs_of_a_run_to_the_end(self) -> None:
        task_facts = facts_of(RemainingInputs({SLOW: 3}, bounded=True))["0_0"]
        assert task_facts.ended == {FAST}

    def test_include_no_lag_of_paused_topics(self) -> None:
        task_facts = facts_of(RemainingInputs({SLOW: 3}, paused=frozenset(["slow"])))["0_0"]
        assert (task_facts.lag, task_facts.paused) == ({}, {"slow"})

    def test_combine_the_partitions_that_feed_an_input_through_the_shuffle(self) -> None:
        other = TopicPartition("fast", 1)
        lag = {FAST: 3, other: 4}
        (task_facts,) = facts_of(RemainingInputs(lag, {FAST: 9, other: 8}), shuffled=True).values()
        (shuffled,) = task_facts.shuffled
        repartition = TopicPartition(shuffled, 0)
        assert (task_facts.lag, task_facts.until) == ({repartition: 7}, {repartition: 8})
        (task_facts,) = facts_of(RemainingInputs(lag, {FAST: 9}), shuffled=True).values()
        assert (task_facts.lag, task_facts.until) == ({repartition: 7}, {})

    def test_are_not_sent_without_a_plan_for_inputs(self) -> None:
        plan, layout = joined()
        planner = TaskInputPlanner(plan, layout, WaitSettings())
        assert not list(planner.messages(plan_with(None), plan_with(None), [], ["0_0"]))


def test_a_task_that_closes_idle_windows_receives_the_facts_of_its_only_input() -> None:
    builder = ms.StreamsBuilder()
    emit = ms.EmitStrategy.on_window_close(close_idle_after=1_000)
    windows = builder.stream("fast").group_by_key().windowed_by(ms.TumblingWindows(10, 0), emit=emit)
    windows.count(store="counts").to_stream().to("out")
    plan = builder.build().plan("app")
    layout = lay_out(plan, {"fast": 1})
    for settings in (WaitSettings(), WaitSettings(-1)):
        planner = InputPlanner(plan, layout, settings, Index({FAST: 9}, {FAST: 1}))
        some, all_ = {"fast": {0: 5}}, {"fast": {0: 9}}
        ends, left = planner.planned(Outlook({"fast": {0: 0}}, some, all_, all_, NOTHING, (), False, None))
        assert left is not None
        assert (ends, left.lag) == (some, {FAST: 4})
        ((task, message),) = TaskInputPlanner(plan, layout, settings).messages(
            plan_with(None), plan_with(left), [], ["0_0"]
        )
        inputs = informed(plan, layout, waits=True)
        assert message.facts(inputs[TaskId.parse(task)]) == InputFacts((FAST,), {FAST: 4})


def test_a_growing_lag_does_not_let_tasks_continue() -> None:
    before = RemainingInputs({SLOW: 3})
    assert not lets_tasks_continue(before, RemainingInputs({SLOW: 4}))
    assert lets_tasks_continue(before, NOTHING_LEFT)
    assert lets_tasks_continue(None, NOTHING_LEFT)
