"""Planning a reset: the fan-out topics of a split topic move with it, also those that the application has not read yet."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from millstream.core.model.errors import BrokerUnavailableError
from millstream.core.model.positions import Offsets
from millstream.core.runtime.reset import Target
from millstream.drivers.spark.driver.checkpoint import LocalFiles
from millstream.edge.checkpoint.application_reset import ResetRequest, planned
from millstream.edge.cli.reset_command import check_listed


@dataclass(frozen=True)
class Brokers:
    """Brokers with a topic that was split twice. The group has read the topic and one of its fan-out topics.

    A transaction is open, so a client that reads only committed records would get an answer only after its end.
    """

    read_committed: bool = True

    def partition_counts(self) -> dict[str, int]:
        return {"orders": 2, "orders-fanout": 1, "orders-fanout-0": 1, "orders-fanout-1": 1, "payments": 1}

    def committed_offsets(self, _counts: Any) -> Offsets:
        if self.read_committed:
            raise BrokerUnavailableError("no Kafka broker responds")
        return {"orders": {0: 5, 1: 6}, "orders-fanout-0": {0: 7}, "payments": {0: 8}}

    def groups(self) -> list[str]:
        return ["shop"]

    def begin_offsets(self, counts: dict[str, int]) -> Offsets:
        return {topic: dict.fromkeys(range(count), 0) for topic, count in counts.items()}

    def end_offsets(self, counts: dict[str, int]) -> Offsets:
        return {topic: dict.fromkeys(range(count), 100) for topic, count in counts.items()}


def moved(home: Path, target: Target, *input_topics: str) -> dict[str, int]:
    brokers: Any = Brokers()
    plan = planned(ResetRequest("shop", target, input_topics), brokers, LocalFiles(home), home)
    return {f"{move.topic}-{move.partition}": move.after for move in plan.moves}


@pytest.mark.parametrize("input_topics", [(), ("orders",)])
def test_the_fan_out_topics_move_with_their_topic(tmp_path: Path, input_topics: tuple[str, ...]) -> None:
    """With --input-topic they used to keep their positions, or to be read from their beginning if they were not read yet."""
    assert moved(tmp_path, Target("latest"), *input_topics) == {
        "orders-0": 100,
        "orders-1": 100,
        "orders-fanout-0-0": 100,
        "orders-fanout-1-0": 100,
        "payments-0": 8 if input_topics else 100,
    }


def test_the_fan_out_topics_of_other_topics_do_not_move(tmp_path: Path) -> None:
    assert moved(tmp_path, Target("latest"), "payments") == {
        "orders-0": 5,
        "orders-1": 6,
        "orders-fanout-0-0": 7,
        "orders-fanout-1-0": 0,
        "payments-0": 100,
    }


def test_a_fan_out_topic_that_was_not_read_yet_is_not_shifted(tmp_path: Path) -> None:
    shifted = moved(tmp_path, Target("shift", -2), "orders")
    assert (shifted["orders-0"], shifted["orders-fanout-0-0"], shifted["orders-fanout-1-0"]) == (3, 5, 0)


def test_a_file_may_list_fan_out_topics_of_the_topics_that_are_named(tmp_path: Path) -> None:
    request = ResetRequest("shop", Target("listed", listed={"orders-fanout-0": {0: 3}}), ("orders",))
    brokers: Any = Brokers()
    check_listed(request, planned(request, brokers, LocalFiles(tmp_path), tmp_path))
    assert moved(tmp_path, request.target, "orders")["orders-fanout-0-0"] == 3
