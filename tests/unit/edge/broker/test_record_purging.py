"""Purging: nothing is deleted that a restart or a rebuild could ask for again."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import pytest

from millstream.core.model.errors import BrokerUnavailableError
from millstream.core.model.ids import TopicPartition
from millstream.edge.broker.record_purging import Purge

PARTITION_0, PARTITION_1, SOURCE = TopicPartition("re", 0), TopicPartition("re", 1), TopicPartition("in", 0)


class Deleter:
    """Remembers what it was to delete; may refuse to, or be away."""

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
def broker() -> Deleter:
    return Deleter()


@pytest.fixture
def purge(broker: Deleter) -> Purge:
    return Purge(broker, lambda: ("re",))


def test_waits_until_spark_has_committed_the_micro_batch(purge: Purge, broker: Deleter) -> None:
    purge.record_committed({PARTITION_0: 5, SOURCE: 9})
    purge.purge()
    assert broker.deleted == []
    purge.planned({"re": {0: 7, 1: 7}, "in": {0: 9}})
    purge.purge()
    assert broker.deleted == [{PARTITION_0: 5}]


def test_stays_behind_the_checkpoint_and_behind_what_is_finished(purge: Purge, broker: Deleter) -> None:
    purge.record_committed({PARTITION_0: 9, PARTITION_1: 3})
    purge.planned({"re": {0: 5, 1: 8}})
    purge.purge()
    assert broker.deleted == [{PARTITION_0: 5, PARTITION_1: 3}]


def test_asks_only_for_what_is_new(purge: Purge, broker: Deleter) -> None:
    for _ in range(2):
        purge.record_committed({PARTITION_0: 5})
        purge.planned({"re": {0: 5}})
        purge.purge()
    purge.record_committed({PARTITION_0: 4})  # a micro-batch that was done again may have finished less
    purge.planned({"re": {0: 6}})
    purge.purge()
    purge.record_committed({PARTITION_1: 2})
    purge.planned({"re": {0: 6, 1: 2}})
    purge.purge()
    assert broker.deleted == [{PARTITION_0: 5}, {PARTITION_1: 2}]


def test_deletes_later_what_it_could_not(purge: Purge, broker: Deleter) -> None:
    broker.away = True
    purge.record_committed({PARTITION_0: 5})
    purge.planned({"re": {0: 5}})
    purge.purge()
    broker.away = False
    purge.purge()
    assert broker.deleted == [{PARTITION_0: 5}]


def test_warns_once_if_it_may_not(purge: Purge, broker: Deleter, caplog: pytest.LogCaptureFixture) -> None:
    broker.allowed = False
    with caplog.at_level(logging.WARNING):
        for offset in (5, 6):
            purge.record_committed({PARTITION_0: offset})
            purge.planned({"re": {0: offset}})
            purge.purge()
    assert len(broker.deleted) == 1
    [warning] = caplog.messages
    assert "may not delete records (DELETE on re)" in warning
