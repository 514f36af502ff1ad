"""The offset in Spark's checkpoint: stored offsets stay readable, and the format does not change."""

from __future__ import annotations

import json

from millstream.core.model.ids import TopicPartition
from millstream.core.ports import BatchId
from millstream.core.runtime.batch_plan import BatchPlan, Initialization, WallClock
from millstream.core.runtime.remaining_inputs import RemainingInputs, TaskInput
from millstream.core.topology.routing import Routing

STORED = (
    '{"topics": {"in": {"0": 5, "1": 7}}, "checkpoint": "5f3a", "batch": 12, "tick": 3, "now_ms": 1000, "ahead_ms": 5000, '
    '"stores": {"s": "key-value"}, "internal": {"app-again-repartition": 2}, "unfinished": {"s": "process_async"}, '
    '"parts": {"0": [["in"], ["s"], 2]}, "topic_ids": {"in": "id"}, '
    '"routing": {"routes": {"in": [2, "producer"]}, "stores": {"s": ["in"]}}, '
    '"inputs": {"lag": {"in": {"0": 9}}, "until": {"in": {"0": 70}}, "paused": ["o"], "bounded": true, "unknown": true, '
    '"written": {"app-again-repartition": 70}}, '
    '"begin": {"rebuild": true, "new_topics": ["s"]}, "woken": ["0_1"], "global": {"g": {"0": 4}}, '
    '"times": {"in": {"0": 60}}, "run": "c41d", "origins": [[11, {"in": {"0": 3}}]], "taps": ["counted"]}'
)


def test_an_offset_is_written_as_it_was_read() -> None:
    assert json.dumps(BatchPlan.from_json(json.loads(STORED)).to_json()) == STORED


def test_missing_fields_of_an_older_offset_get_defaults() -> None:
    offset = {"topics": {"in": {"0": 5}}, "tick": 1, "now_ms": 7, "stores": {"s": "x"}, "internal": {}}
    plan = BatchPlan.from_json(offset)
    assert (plan.positions, plan.id, plan.tick, plan.clock) == (
        {"in": {0: 5}},
        BatchId("", 0),
        1,
        WallClock(7),
    )
    assert (plan.topology.stores, plan.topology.routing) == ({"s": "x"}, Routing())
    more = (plan.inputs, plan.initialization, plan.woken, plan.global_ends, plan.times, plan.origins)
    assert (*more, plan.taps) == (None, None, (), None, None, None, ())


def test_an_older_offset_does_not_name_the_operators_of_unfinished_records() -> None:
    assert BatchPlan.from_json({"topics": {}, "unfinished": ["s"]}).topology.unfinished == {"s": ""}


def test_the_initialization_message_to_a_task_survives_encoding() -> None:
    message = Initialization(rebuild=True, new_topics=("s",))
    assert Initialization.decode(message.encode()) == message


def test_unknown_remaining_inputs_are_written_as_unknown() -> None:
    assert (
        RemainingInputs.from_json({"lag": {}, "until": {}, "paused": [], "bounded": False})
        == RemainingInputs()
    )
    assert RemainingInputs(unknown=True).to_json()["unknown"]


def test_remaining_inputs_survive_encoding() -> None:
    log = TopicPartition("orders-fanout-0", 1)
    remaining = RemainingInputs({log: 3}, {log: 70}, frozenset(["paused"]), closed=frozenset([log]))
    assert RemainingInputs.from_json(json.loads(json.dumps(remaining.to_json()))) == remaining
    task_input = TaskInput({log: 3}, ended=frozenset([log]), closed=frozenset([log]))
    assert TaskInput.decode(task_input.encode()) == task_input
