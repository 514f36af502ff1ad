"""Purging: no record is deleted that a restart or a rebuild could still need."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import pytest

from millstream.core.model.errors import BrokerUnavailableError
from millstream.core.model.ids import TopicPartition
from millstream.edge.broker.record_purging import Purge

PARTITION_0, PARTITION_1, SOURCE = TopicPartition("re", 0), TopicPartition("re", 1), TopicPartition("in", 0)


class FakeBroker:
    """A broker that records deletions, and can refuse them or be unavailable."""

    def __init__(self) -> None:
        self.deleted: list[dict[TopicPartition, int]] = []
        self.allowed = True
        self.away = False

    def delete_records(self, before: Mapping[TopicPartition, int]) -> bool:
        if self.away:
            raise BrokerUnavailableError("no broker")
        self.deleted.append(dict(before))
        return self.allowed


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker()


@pytest.fixture
def purge(broker: FakeBroker) -> Purge:
    return Purge(broker, lambda: ("re",))


def test_purging_waits_until_spark_has_committed_the_micro_batch(purge: Purge, broker: FakeBroker) -> None:
    purge.record_committed({PARTITION_0: 5, SOURCE: 9})
    purge.purge()
    assert broker.deleted == []
    purge.planned({"re": {0: 7, 1: 7}, "in": {0: 9}})
    purge.purge()
    assert broker.deleted == [{PARTITION_0: 5}]


def test_purging_stays_behind_the_checkpoint_and_the_finished_records(
    purge: Purge, broker: FakeBroker
) -> None:
    purge.record_committed({PARTITION_0: 9, PARTITION_1: 3})
    purge.planned({"re": {0: 5, 1: 8}})
    purge.purge()
    assert broker.deleted == [{PARTITION_0: 5, PARTITION_1: 3}]


def test_each_offset_is_purged_only_once(purge: Purge, broker: FakeBroker) -> None:
    for _ in range(2):
        purge.record_committed({PARTITION_0: 5})
        purge.planned({"re": {0: 5}})
        purge.purge()
    purge.record_committed({PARTITION_0: 4})  # a repeated micro-batch may have finished less
    purge.planned({"re": {0: 6}})
    purge.purge()
    purge.record_committed({PARTITION_1: 2})
    purge.planned({"re": {0: 6, 1: 2}})
    purge.purge()
    assert broker.deleted == [{PARTITION_0: 5}, {PARTITION_1: 2}]


def test_records_that_could_not_be_deleted_are_deleted_later(purge: Purge, broker: FakeBroker) -> None:
    broker.away = True
    purge.record_committed({PARTITION_0: 5})
    purge.planned({"re": {0: 5}})
    purge.purge()
    broker.away = False
    purge.purge()
    assert broker.deleted == [{PARTITION_0: 5}]


def test_a_missing_permission_to_delete_records_is_logged_once(
    purge: Purge, broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.allowed = False
    with caplog.at_level(logging.WARNING):
        for offset in (5, 6):
            purge.record_committed({PARTITION_0: offset})
            purge.planned({"re": {0: offset}})
            purge.purge()
    assert len(broker.deleted) == 1
    [warning] = caplog.messages
    assert "may not delete records (DELETE on re)" in warning
