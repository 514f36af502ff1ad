"""The dead letter of a record that stops the application: sent from the worker, with settings that are sent to it as cloudpickle."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark import cloudpickle

import millstream as ms
from millstream.core.model.errors import ProcessingError
from millstream.core.model.ids import TaskId
from millstream.core.ports import OffsetRange
from millstream.core.runtime.batch_plan import WallClock
from millstream.core.topology.layout import lay_out
from millstream.drivers.spark.driver.placement import grouping_keys
from millstream.drivers.spark.source import MapStage
from millstream.drivers.spark.spec import PlannedRead, TopologySpec
from unit.helpers import records


class FakeSender:
    """Stores the delivered records, or raises an error instead of delivering them."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure
        self.handed_over: list[Any] = []
        self.delivered: list[Any] = []

    def publish(self, topic: str, sent: Any) -> None:
        self.handed_over.append((topic, sent.keys, sent.values))

    def flush(self) -> None:
        if self.failure is not None:
            raise self.failure
        self.delivered += self.handed_over


def stopping(sender: FakeSender) -> ProcessingError:
    """Run a map stage that stops at its second record, as a worker does; return the error."""
    limit = 2

    def decide(context: ms.ErrorContext, error: Exception) -> str:
        return "retry" if context.attempt < limit else "fail"

    def refuse(value: str) -> str:
        if value == "bad":
            raise LookupError(value)
        return value

    builder = ms.StreamsBuilder()
    builder.stream("in").map_values(refuse, name="parse").group_by(lambda key, value: value).count()
    plan = builder.build().plan("app")
    layout = lay_out(plan, {"in": 1})
    policies = ms.ErrorPolicies(operators={"parse": decide}, dead_letter_topic="dead")
    spec = TopologySpec(plan, layout, grouping_keys(layout.tasks), policies, {})
    spec_on_worker: TopologySpec = cloudpickle.loads(cloudpickle.dumps(spec))
    object.__setattr__(spec_on_worker, "dead_letters", sender)
    read = PlannedRead("5f3a:4", WallClock(0))
    stage = MapStage(spec_on_worker, TaskId(0, 0), OffsetRange("in", 0, 0, 2), read)
    with pytest.raises(ProcessingError) as caught:
        list(stage.run(records([("a", "good", 1), ("b", "bad", 2)])))
    return caught.value


def test_a_dead_letter_is_delivered_before_the_error_is_raised() -> None:
    sender = FakeSender()
    error = stopping(sender)
    assert sender.delivered == [("dead", [b"b"], [b"bad"])]
    assert "decided: fail" in error.message
    assert error.letter is None


def test_the_error_mentions_a_dead_letter_that_cannot_be_sent() -> None:
    sender = FakeSender(OSError("the broker is away"))
    error = stopping(sender)
    assert not sender.delivered
    assert "LookupError: bad" in error.message
    assert error.message.endswith("The dead letter could not be sent to topic 'dead': the broker is away")
