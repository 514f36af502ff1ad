"""What the planner writes into offsets of inputs that meet in tasks, and what the reader makes of it for each task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import millstream as ms
from millstream.core.engine.records.readiness import InputFacts
from millstream.core.model.ids import TaskId, TopicPartition
from millstream.core.ports import OffsetRange, TimedOffset
from millstream.core.topology.layout import Layout, lay_out
from millstream.core.topology.plan import Plan
from millstream.drivers.spark.inputs import (
    Held,
    InputPlanner,
    InputReader,
    Prospect,
    TaskInputs,
    WaitSettings,
    changed,
)

FAST, SLOW = TopicPartition("fast", 0), TopicPartition("slow", 0)
NOTHING = Held({})


class Index:
    """A time index of topics whose record n has the time n times a step."""

    def __init__(self, counts: Mapping[TopicPartition, int], steps: Mapping[TopicPartition, int]) -> None:
        self.counts, self.steps = counts, steps

    def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, TimedOffset]:
        first = {p: -(-time_ms // self.steps[p]) for p, time_ms in times.items()}
        return {p: TimedOffset(at, at * self.steps[p]) for p, at in first.items() if at < self.counts[p]}

    def newest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, TimedOffset]:
        last = {p: self.counts[p] - 1 for p in partitions}
        return {p: TimedOffset(at, at * self.steps[p]) for p, at in last.items() if at >= 0}


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
    fast: int, slow: int, *, budget: int = 100, idle_ms: int = 0, held: Held = NOTHING, **more: Any
) -> tuple[Any, Any]:
    plan, layout = joined()
    index = Index({FAST: fast, SLOW: slow}, {FAST: 1, SLOW: 100})
    planner = InputPlanner(plan, layout, WaitSettings(idle_ms, 10, 1_000), index)
    ends = {"fast": {0: fast}, "slow": {0: slow}}
    start = {"fast": {0: 0}, "slow": {0: 0}}
    admitted = {"fast": {0: min(fast, budget)}, "slow": {0: min(slow, budget)}}
    given = {"held": held, "paused": (), "bounded": False, "bytes_per_record": None, "ends": ends, **more}
    return planner.planned(Prospect(start, admitted, log_ends=ends, **given))


class TestThePlanner:
    def test_reads_a_fast_topic_and_a_slow_one_to_one_time(self) -> None:
        ends, facts = planned(1_000, 10)
        time_ms = ends["fast"][0]
        assert 50 <= time_ms <= 110
        assert ends["slow"] == {0: -(-time_ms // 100)}
        assert facts["lag"] == {"fast": {"0": 1_000 - time_ms}, "slow": {"0": 10 - ends["slow"][0]}}
        assert facts["until"] == {"fast": {"0": time_ms}, "slow": {"0": time_ms}}

    def test_reads_what_fits_at_once(self) -> None:
        ends, facts = planned(50, 3)
        assert ends == {"fast": {0: 50}, "slow": {0: 3}}
        assert facts == {"lag": {}, "until": {}, "paused": [], "bounded": False}

    def test_reads_no_more_than_its_buffer_takes_of_what_has_to_wait(self) -> None:
        ends, _ = planned(50, 0, idle_ms=1_000)
        assert ends["fast"] == {0: 10}
        ends, _ = planned(50, 0, idle_ms=1_000, held=Held({FAST: (7, 10, 3)}))
        assert ends["fast"] == {0: 3}
        ends, _ = planned(50, 0, idle_ms=1_000, held=Held({FAST: (7, 1_000, 3)}), bytes_per_record=10.0)
        assert ends["fast"] == {0: 0}

    def test_waits_for_nothing_behind_the_end_of_a_run(self) -> None:
        ends, facts = planned(50, 0, idle_ms=1_000, bounded=True)
        assert (ends["fast"], facts["bounded"]) == ({0: 50}, True)

    def test_does_not_read_what_is_paused_but_tells_it(self) -> None:
        ends, facts = planned(50, 3, ends={"fast": {0: 50}}, paused=["slow"])
        assert ends == {"fast": {0: 50}, "slow": {0: 0}}
        assert (facts["paused"], facts["lag"]) == (["slow"], {"slow": {"0": 3}})

    def test_has_nothing_to_do_if_nothing_is_waited_for(self) -> None:
        plan, layout = joined()
        assert not InputPlanner(plan, layout, WaitSettings(-1), Index({}, {})).active


FACTS = {"lag": {}, "until": {}, "paused": [], "bounded": False}


def told(end: dict[str, Any], start: dict[str, Any] | None = None, **more: Any) -> dict[str, InputFacts]:
    plan, layout = joined(more.pop("shuffled", False))
    given = {"ranges": [], "ticked": (), **more}
    reader = InputReader(plan, layout, WaitSettings())
    before = {} if start is None else {"inputs": {**FACTS, **start}}
    found = reader.told(before, {"inputs": {**FACTS, **end}}, given["ranges"], given["ticked"])
    inputs = TaskInputs(plan, layout)
    facts = {task: inputs.facts(TaskId.parse(task), payload) for task, payload in found}
    return {task: known for task, known in facts.items() if known is not None}


class TestTheReader:
    def test_tells_the_tasks_that_get_records_or_are_woken(self) -> None:
        lag = {"lag": {"slow": {"0": 3}}}
        assert told(lag, lag) == {}
        assert list(told(lag, lag, ranges=[OffsetRange("fast", 0, 0, 1)])) == ["0_0"]
        assert list(told(lag, lag, ticked=["0_0"])) == ["0_0"]

    def test_tells_the_tasks_that_may_go_on_now(self) -> None:
        assert told({"lag": {"slow": {"0": 3}}}, {"lag": {"slow": {"0": 2}}}) == {}
        assert list(told({}, {"lag": {"slow": {"0": 2}}})) == ["0_0"]
        assert list(told({"paused": ["slow"]}, {})) == ["0_0"]
        assert list(told({})) == ["0_0"]

    def test_tells_lag_and_times_and_pauses(self) -> None:
        known = told({"lag": {"slow": {"0": 3}}, "until": {"slow": {"0": 70}}, "paused": ["fast"]})["0_0"]
        assert known == InputFacts((FAST, SLOW), {SLOW: 3}, {SLOW: 70}, False, frozenset(["fast"]))

    def test_tells_which_inputs_of_a_run_to_the_end_are_done(self) -> None:
        known = told({"lag": {"slow": {"0": 3}}, "bounded": True})["0_0"]
        assert known.ended == {FAST}

    def test_does_not_wait_for_what_is_paused(self) -> None:
        known = told({"lag": {"slow": {"0": 3}}, "paused": ["slow"]})["0_0"]
        assert (known.lag, known.paused) == ({}, {"slow"})

    def test_takes_what_feeds_an_input_through_the_shuffle_together(self) -> None:
        lag = {"fast": {"0": 3, "1": 4}}
        (known,) = told({"lag": lag, "until": {"fast": {"0": 9, "1": 8}}}, shuffled=True).values()
        (shuffled,) = known.shuffled
        again = TopicPartition(shuffled, 0)
        assert (known.lag, known.until) == ({again: 7}, {again: 8})
        (known,) = told({"lag": lag, "until": {"fast": {"0": 9}}}, shuffled=True).values()
        assert (known.lag, known.until) == ({again: 7}, {})

    def test_says_nothing_without_facts(self) -> None:
        plan, layout = joined()
        assert not list(InputReader(plan, layout, WaitSettings()).told({}, {}, [], ["0_0"]))


def test_a_task_that_closes_when_it_is_idle_is_told_of_its_one_input() -> None:
    builder = ms.StreamsBuilder()
    emit = ms.EmitStrategy.on_window_close(close_idle_after=1_000)
    windows = builder.stream("fast").group_by_key().windowed_by(ms.TumblingWindows(10, 0), emit=emit)
    windows.count(store="counts").to_stream().to("out")
    plan = builder.build().plan("app")
    layout = lay_out(plan, {"fast": 1})
    for settings in (WaitSettings(), WaitSettings(-1)):
        planner = InputPlanner(plan, layout, settings, Index({FAST: 9}, {FAST: 1}))
        some, all_ = {"fast": {0: 5}}, {"fast": {0: 9}}
        ends, facts = planner.planned(Prospect({"fast": {0: 0}}, some, all_, all_, NOTHING, (), False, None))
        assert (ends, facts["lag"]) == (some, {"fast": {"0": 4}})
        reader = InputReader(plan, layout, settings)
        ((task, payload),) = reader.told({}, {"inputs": facts}, [], ["0_0"])
        assert TaskInputs(plan, layout).facts(TaskId.parse(task), payload) == InputFacts((FAST,), {FAST: 4})


def test_a_lag_that_grows_changes_nothing() -> None:
    before = {**FACTS, "lag": {"slow": {"0": 3}}}
    assert not changed(before, {**FACTS, "lag": {"slow": {"0": 4}}})
    assert changed(before, FACTS)
    assert changed(None, FACTS)


def test_a_task_with_one_input_is_told_nothing() -> None:
    plan, layout = joined()
    assert TaskInputs(plan, layout).facts(TaskId(7, 0), None) is None
