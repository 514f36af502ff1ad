"""Whether a task may process now, rule by rule, with a manual clock. Comments show queues as `fast: [3, 5]`, where 3 is next."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.core.engine.records.queue import QueueId
from millstream.core.engine.records.readiness import FOREVER, NEVER_WAIT, InputFacts, Waiting
from millstream.core.engine.step_outcome import Outcome
from millstream.core.model.ids import TopicPartition
from unit.helpers import Host, forwarding, processor_topology, values

FAST, SLOW = TopicPartition("fast", 0), TopicPartition("slow", 0)
IDLE = 100


def host_of(idle_ms: int = 0, topics: tuple[str, ...] = ("fast", "slow")) -> Host:
    """Make a task that forwards the topic and the timestamp of each record."""
    named = forwarding(
        lambda context, record: f"{context.record_metadata.topic} {record.timestamp}"  # type: ignore[union-attr]
    )
    return Host(processor_topology(named, topics=topics), max_task_idle_ms=idle_ms)


def feed(host: Host, topic: str, *timestamps: int, lane: str = "") -> None:
    host.feed(topic, [(None, "x", timestamp) for timestamp in timestamps], lane=lane)


def step(host: Host, now_ms: int = 0, **facts: Any) -> Outcome:
    host.task.inform(InputFacts((FAST, SLOW), **facts))
    return host.step(now_ms)


def waiting_reason(outcome: Outcome) -> tuple[str, str, int] | None:
    waits = outcome.waiting
    return None if waits is None else (waits.partition.topic, waits.reason, waits.since_ms)


def test_a_task_without_facts_about_its_inputs_does_not_wait() -> None:
    host = host_of(FOREVER)
    feed(host, "fast", 1, 2)
    outcome = host.step()
    assert (values(outcome), outcome.waiting, outcome.metrics.enforced) == (["fast 1", "fast 2"], None, 0)


class TestTheLogsOfASplitPartition:
    PRIMARY, LOG, OTHER = (
        TopicPartition("in", 0),
        TopicPartition("in-fanout-0", 0),
        TopicPartition("other", 0),
    )

    def step(self, host: Host, *closed: TopicPartition) -> Outcome:
        host.task.inform(InputFacts((self.PRIMARY, self.LOG, self.OTHER), closed=frozenset(closed)))
        return host.step()

    def test_closed_logs_are_not_waited_for_while_another_log_has_records(self) -> None:
        host = host_of(FOREVER, ("in", "in-fanout-0", "other"))
        feed(host, "in", 1)
        feed(host, "other", 0, 2)
        outcome = self.step(host, self.PRIMARY, self.LOG)
        # in: [], other: [2]
        assert values(outcome) == ["other 0", "in 1"]
        assert (waiting_reason(outcome), outcome.metrics.enforced) == (("in", "lag", 0), 0)

    def test_an_open_log_is_waited_for_like_any_input(self) -> None:
        host = host_of(FOREVER, ("in", "in-fanout-0", "other"))
        feed(host, "other", 2)
        assert waiting_reason(self.step(host, self.PRIMARY)) == ("in-fanout-0", "idle", 0)
        feed(host, "in-fanout-0", 3)
        assert values(self.step(host, self.PRIMARY)) == ["other 2"]


class TestAnEmptyInput:
    def test_is_waited_for_only_after_its_records_are_used_up(self) -> None:
        host = host_of(FOREVER)
        feed(host, "fast", 1, 3, 5)
        feed(host, "slow", 2, 4)
        outcome = step(host)
        # fast: [5]
        # slow: []
        assert values(outcome) == ["fast 1", "slow 2", "fast 3", "slow 4"]
        assert (waiting_reason(outcome), outcome.metrics.enforced) == (("slow", "idle", 0), 0)

    @pytest.mark.parametrize("idle_ms", [0, IDLE, FOREVER])
    def test_with_lag_is_waited_for_without_limit(self, idle_ms: int) -> None:
        host = host_of(idle_ms)
        feed(host, "fast", 1)
        for now_ms in (0, 10_000_000):
            outcome = step(host, now_ms, lag={SLOW: 7})
            assert (values(outcome), waiting_reason(outcome), outcome.wake_at_ms) == (
                [],
                ("slow", "lag", 0),
                None,
            )

    @pytest.mark.parametrize("idle_ms", [0, IDLE, FOREVER])
    def test_with_unknown_lag_is_waited_for_without_limit(self, idle_ms: int) -> None:
        host = host_of(idle_ms)
        feed(host, "fast", 1)
        for now_ms in (0, 10_000_000):
            outcome = step(host, now_ms, unknown=True)
            assert (values(outcome), waiting_reason(outcome)) == ([], ("slow", "unknown lag", 0))

    def test_without_lag_is_not_waited_for_when_the_idle_time_is_zero(self) -> None:
        host = host_of(0)
        feed(host, "fast", 1, 2)
        outcome = step(host)
        assert (values(outcome), outcome.metrics.enforced) == (["fast 1", "fast 2"], 2)
        assert outcome.given_up == (FAST, SLOW)  # by now, fast is empty too

    def test_without_lag_is_waited_for_until_its_idle_time_is_over(self) -> None:
        host = host_of(IDLE)
        feed(host, "fast", 1)
        outcome = step(host, now_ms=50)
        assert (values(outcome), waiting_reason(outcome), outcome.wake_at_ms) == (
            [],
            ("slow", "idle", 50),
            150,
        )
        assert outcome.given_up == ()
        outcome = step(host, now_ms=149)
        assert (values(outcome), waiting_reason(outcome), outcome.wake_at_ms) == (
            [],
            ("slow", "idle", 50),
            150,
        )
        outcome = step(host, now_ms=150)
        assert (values(outcome), waiting_reason(outcome), outcome.wake_at_ms) == (["fast 1"], None, None)
        assert (outcome.metrics.enforced, outcome.given_up) == (1, (SLOW,))

    def test_is_waited_for_only_once_until_it_receives_records(self) -> None:
        host = host_of(IDLE)
        feed(host, "fast", 1)
        step(host, 0)
        assert values(step(host, IDLE)) == ["fast 1"]
        feed(host, "fast", 2)
        assert values(step(host, IDLE + 1)) == ["fast 2"]  # slow is still empty
        feed(host, "slow", 2)
        feed(host, "fast", 3)
        outcome = step(host, IDLE + 2)
        assert (values(outcome), outcome.wake_at_ms) == (["slow 2"], 2 * IDLE + 2)  # it is waited for again
        assert values(step(host, 2 * IDLE + 2)) == ["fast 3"]

    def test_is_waited_for_again_after_it_had_lag(self) -> None:
        host = host_of(IDLE)
        feed(host, "fast", 1)
        step(host, 0)
        step(host, 60, lag={SLOW: 1})
        outcome = step(host, 90)
        assert (values(outcome), outcome.wake_at_ms) == ([], 190)
        step(host, 120, unknown=True)
        assert step(host, 130).wake_at_ms == 230

    def test_uses_up_its_idle_time_while_another_input_is_not_ready(self) -> None:
        host = host_of(IDLE, ("fast", "slow", "third"))
        third = TopicPartition("third", 0)
        feed(host, "fast", 1)
        host.task.inform(InputFacts((FAST, SLOW, third), lag={SLOW: 1}))
        assert waiting_reason(host.step(0)) == ("slow", "lag", 0)
        feed(host, "slow", 2)
        host.task.inform(InputFacts((FAST, SLOW, third)))
        assert values(host.step(IDLE)) == ["fast 1"]

    def test_uses_up_its_idle_time_while_all_inputs_are_empty(self) -> None:
        host = host_of(IDLE)
        assert step(host, 0).wake_at_ms is None  # no record waits
        feed(host, "fast", 1)
        assert values(step(host, IDLE)) == ["fast 1"]

    def test_is_waited_for_forever_with_the_largest_idle_time(self) -> None:
        host = host_of(FOREVER)
        feed(host, "fast", 1)
        outcome = step(host, 5)
        assert (values(outcome), waiting_reason(outcome), outcome.wake_at_ms) == (
            [],
            ("slow", "idle", 5),
            None,
        )
        assert values(step(host, 1 << 62)) == []

    def test_is_not_waited_for_with_minus_one_but_enforced_records_are_counted(self) -> None:
        host = host_of(NEVER_WAIT)
        feed(host, "fast", 1, 2)
        outcome = step(host, lag={SLOW: 9}, unknown=True)
        assert (values(outcome), outcome.metrics.enforced, outcome.waiting) == (["fast 1", "fast 2"], 2, None)
        assert outcome.given_up == ()
        assert step(host).metrics.enforced == 0

    def test_that_is_paused_is_not_waited_for_and_no_record_is_enforced(self) -> None:
        host = host_of(FOREVER)
        feed(host, "fast", 1)
        outcome = step(host, lag={SLOW: 9}, paused=frozenset(["slow"]))
        assert (values(outcome), outcome.metrics.enforced) == (["fast 1"], 0)

    def test_with_a_virtual_head_lets_earlier_records_pass(self) -> None:
        host = host_of(FOREVER)
        feed(host, "fast", 1, 4, 5, 6)
        outcome = step(host, lag={SLOW: 9}, until={SLOW: 5})
        # fast: [6]     "fast" comes before "slow" at 5
        # slow: [] 5...
        assert values(outcome) == ["fast 1", "fast 4", "fast 5"]
        assert (waiting_reason(outcome), outcome.metrics.enforced) == (("slow", "behind", 0), 0)
        host = host_of(FOREVER)
        feed(host, "slow", 1, 5)
        outcome = step(host, lag={FAST: 9}, until={FAST: 5})
        # fast: [] 5...
        # slow: [5]
        assert (values(outcome), waiting_reason(outcome)) == (["slow 1"], ("fast", "behind", 0))


class TestAnInputOfLanes:
    def test_is_ready_when_any_lane_holds_records(self) -> None:
        host = host_of(FOREVER)
        feed(host, "fast", 1, 3, lane="a-0")
        feed(host, "fast", lane="a-1")
        feed(host, "slow", 2, 4)
        assert values(step(host, shuffled=frozenset(["fast"]))) == ["fast 1", "slow 2", "fast 3"]

    def test_with_lag_waits_for_the_records_that_another_lane_may_bring(self) -> None:
        host = host_of(FOREVER)
        feed(host, "fast", 1, 3, 6, lane="a-0")
        feed(host, "slow", 2, 9)
        outcome = step(host, shuffled=frozenset(["fast"]), lag={FAST: 1}, until={FAST: 5})
        assert values(outcome) == ["fast 1", "slow 2", "fast 3"]
        feed(host, "fast", 5, lane="a-1")
        assert values(step(host, shuffled=frozenset(["fast"]))) == ["fast 5", "fast 6"]

    def test_processes_records_up_to_and_including_its_time_bound(self) -> None:
        host = host_of(FOREVER)
        feed(host, "fast", 5, 5, 5, lane="a-0")
        feed(host, "slow", 5)
        facts: dict[str, Any] = {"shuffled": frozenset(["fast"]), "lag": {FAST: 1}, "until": {FAST: 5}}
        assert values(step(host, **facts)) == ["fast 5"] * 3


class TestWaiting:
    def test_starts_when_the_last_record_was_processed(self) -> None:
        host = host_of(FOREVER)
        feed(host, "fast", 1, 9)
        assert waiting_reason(step(host, 10, lag={SLOW: 1}, until={SLOW: 5})) == ("slow", "behind", 10)
        assert waiting_reason(step(host, 20, lag={SLOW: 1})) == ("slow", "lag", 10)
        feed(host, "slow", 8)
        assert waiting_reason(step(host, 30, lag={SLOW: 1})) == ("slow", "lag", 30)
        feed(host, "slow", 9)
        assert waiting_reason(step(host, 40)) == ("fast", "idle", 40)

    def test_names_the_input_with_the_longest_wait(self) -> None:
        host = host_of(IDLE, ("fast", "slow", "third"))
        third = TopicPartition("third", 0)
        feed(host, "slow", 1)
        host.task.inform(InputFacts((FAST, SLOW, third), lag={third: 1}))
        assert waiting_reason(host.step(0)) == ("third", "lag", 0)

    def test_ends_when_no_record_is_left(self) -> None:
        host = host_of(0)
        feed(host, "fast", 1)
        assert waiting_reason(step(host, lag={SLOW: 1})) is not None
        assert step(host).waiting is None

    def test_survives_a_restart_with_its_deadlines(self) -> None:
        host = host_of(IDLE)
        feed(host, "fast", 1)
        step(host, 40)
        host.restart()
        outcome = step(host, 139)
        assert (values(outcome), waiting_reason(outcome), outcome.wake_at_ms) == (
            [],
            ("slow", "idle", 40),
            140,
        )
        host.restart()
        assert values(step(host, 140)) == ["fast 1"]
        host.restart()
        feed(host, "fast", 2)
        assert values(step(host, 141)) == ["fast 2"]

    def test_is_reported_in_one_line(self) -> None:
        assert "(setting max_task_idle_ms)" in Waiting(SLOW, "idle", 0).line()


def test_a_budget_ends_a_step_without_making_it_wait() -> None:
    host = host_of(0)
    feed(host, "fast", 1, 2, 3)
    host.task.inform(InputFacts((FAST, SLOW)))
    outcome = host.step(0, budget=2)
    assert (values(outcome), outcome.metrics.enforced, outcome.waiting) == (["fast 1", "fast 2"], 2, None)


def test_buffered_records_are_reported() -> None:
    host = host_of(FOREVER)
    host.feed("fast", [("key", "value", 5), (None, None, 3)])
    (buffered,) = step(host).buffered.items()
    assert buffered == (QueueId(FAST), (2, 8, 5))


def test_runs_do_not_pass_a_virtual_head() -> None:
    host = host_of(FOREVER)
    feed(host, "fast", *range(10))
    assert len(values(step(host, lag={SLOW: 1}, until={SLOW: 7}))) == 8
    assert values(step(host, lag={SLOW: 1}, until={SLOW: 8})) == ["fast 8"]


def test_results_are_the_same_without_facts_and_with_all_inputs_known() -> None:
    informed, plain = host_of(0), host_of(0)
    for host in (informed, plain):
        feed(host, "fast", 5, 1, 9)
        feed(host, "slow", 4, 9, 2)
    assert values(step(informed)) == values(plain.step())
