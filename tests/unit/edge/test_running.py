"""A running application, asked as the processes of Spark ask it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import penstock as ps
from penstock.core.model.errors import BrokerUnavailableError, ControlError
from penstock.core.model.ids import TopicPartition
from penstock.core.plan.split import Plan
from penstock.drivers.spark.worker.report import Report
from penstock.edge.continuity import continuity
from penstock.edge.lease import Lease
from penstock.edge.orders import Orders, StandingOrders
from penstock.edge.running import RunningApplication


class AwayOnce:
    """A group whose coordinator does not answer the first time."""

    def __init__(self) -> None:
        self.committed: dict[TopicPartition, int] = {}
        self._away = True

    def commit(self, offsets: Mapping[TopicPartition, int], metadata: str = "") -> None:
        if self._away:
            self._away = False
            raise BrokerUnavailableError("away")
        self.committed.update(offsets)


PLAN = {"positions": {"in": {0: 0}}, "ends": {"in": {0: 5}}, "now_ms": 1_000, "held_back_ms": 0}


@pytest.fixture
def group() -> AwayOnce:
    return AwayOnce()


@pytest.fixture
def running(group: AwayOnce, tmp_path: Path) -> Iterator[RunningApplication]:
    lease = Lease.take(tmp_path, "app", "running")
    made = RunningApplication("app", group, lease, StandingOrders(tmp_path, Orders()))
    made._continues = continuity(plan(), None, {}), {}
    yield made
    made._release()


def plan() -> Plan:
    """Sub-topology 0 reads two topics, 1 reads a third."""
    builder = ps.StreamsBuilder()
    for topics, store in ((["in", "in-too"], "first"), (["other"], "second")):
        builder.stream(topics).to_table(store=store)
    return builder.build().plan("app")


def test_offsets_that_could_not_be_committed_are_committed_when_the_broker_is_back(
    running: RunningApplication, group: AwayOnce
) -> None:
    running._answer("plan", PLAN)
    running._answer("batch", {"batch": 0, "reports": [Report("0_0", {"in": {"0": 5}}).encode()]})
    assert group.committed == {}
    running._answer("plan", {**PLAN, "ends": None})
    assert group.committed == {}
    running._answer("plan", PLAN)
    assert group.committed == {TopicPartition("in", 0): 5}


class TestOrders:
    def test_are_told_to_the_planner_and_shown(self, running: RunningApplication) -> None:
        running.pause(["in"])
        running.pause(subtopologies=[1])
        running.throttle("in-too", 100)
        told = running._answer("plan", PLAN)
        assert (told["paused"], told["rates"]) == (["in", "other"], {"in-too": 100})
        status = running.status()
        assert (status.paused, status.throttled) == (["in", "other"], {"in-too": 100})
        running.resume(["other"])
        running.throttle("in-too", None)
        told = running._answer("plan", PLAN)
        assert (told["paused"], told["rates"]) == (["in"], {})
        running.resume()
        assert running.status().paused == []

    def test_without_names_are_about_everything(self, running: RunningApplication) -> None:
        running.pause()
        assert running.status().paused == ["in", "in-too", "other"]

    def test_about_what_is_not_there_change_nothing(self, running: RunningApplication) -> None:
        for order in (
            lambda: running.pause(["in", "on"]),
            lambda: running.resume(subtopologies=[2]),
            lambda: running.throttle("on", 5),
        ):
            with pytest.raises(ControlError, match=r"'in', 'in-too', 'other'|it has 0, 1"):
                order()
        assert (running.status().paused, running.status().throttled) == ([], {})

    def test_are_not_for_an_application_that_has_ended(
        self, running: RunningApplication, tmp_path: Path
    ) -> None:
        running.pause(keep=True)
        running._release()
        for order in (running.pause, running.resume, lambda: running.throttle("in", 5)):
            with pytest.raises(ControlError, match=r"'app' has ended .* orders are for one that runs"):
                order()
        assert (tmp_path / "paused.json").exists()

    def test_come_from_other_processes_too(self, running: RunningApplication) -> None:
        answer = running._answer("order", ("throttle", {"topic": "other", "records_per_second": 5}))
        assert answer["throttled"] == {"other": 5}
        assert running.status().throttled == {"other": 5}


def test_only_what_can_be_reached_is_woken(running: RunningApplication) -> None:
    def due() -> list[str]:
        return list(running._answer("plan", PLAN)["due"])

    reports = [Report(task, wake_at_ms=1_000).encode() for task in ("0_0", "0_1", "1_0")]
    running._answer("batch", {"batch": 0, "reports": [*reports, Report("1_1", wake_at_ms=1_001).encode()]})
    running._answer("plan", PLAN)
    assert due() == ["0_0", "0_1", "1_0"]
    running.pause(["in"])
    assert due() == ["0_0", "0_1", "1_0"]
    running.pause(["in-too"])
    assert due() == ["1_0"]
    running.resume(["in"])
    assert due() == ["0_0", "0_1", "1_0"]
