"""A running application, asked as the processes of Spark ask it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from penstock.core.model.errors import BrokerUnavailableError
from penstock.core.model.ids import TopicPartition
from penstock.drivers.spark.worker.report import Report
from penstock.edge.lease import Lease
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


def test_offsets_that_could_not_be_committed_are_committed_when_the_broker_is_back(tmp_path: Path) -> None:
    group = AwayOnce()
    running = RunningApplication("app", group, Lease.take(tmp_path, "app", "running"))
    plan = {"positions": {"in": {0: 0}}, "ends": {"in": {0: 5}}}
    running._answer("plan", plan)
    running._answer("batch", {"batch": 0, "reports": [Report("0_0", {"in": {"0": 5}}).encode()]})
    assert group.committed == {}
    running._answer("plan", {**plan, "ends": None})
    assert group.committed == {}
    running._answer("plan", plan)
    assert group.committed == {TopicPartition("in", 0): 5}
    running._release()
