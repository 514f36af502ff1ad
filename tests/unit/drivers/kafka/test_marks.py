"""Restoring marks whose committed offsets the broker has deleted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from millstream.core.model.errors import MillstreamError
from millstream.core.ports import OffsetRange
from millstream.drivers.kafka import marks as module
from millstream.drivers.kafka.broker import Broker
from millstream.drivers.kafka.marks import Mark, Marks, mark_of

MARK = Mark("5f3a", 7, "c41d", "d8e0")


class FakeConsumer:
    """A consumer whose commits fail with these errors, and then succeed."""

    def __init__(self, *codes: int) -> None:
        self.errors = [KafkaException(KafkaError(code)) for code in codes]
        self.committed: list[ClientPartition] = []

    def commit(self, offsets: list[ClientPartition], asynchronous: bool) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.committed += offsets


def restored(monkeypatch: pytest.MonkeyPatch, consumer: FakeConsumer) -> Mark | None:
    """Restore the mark of a partition from the topic."""
    monkeypatch.setattr(module, "warm", lambda *_: consumer)
    admin = SimpleNamespace(list_topics=lambda timeout: None, last_problem=lambda: None)
    monkeypatch.setattr(Broker, "admin", lambda _: admin)
    monkeypatch.setattr(Broker, "partition_counts", lambda *_: {"app-commits": 2})
    ranges: Any = [OffsetRange("app-commits", number, 0, 9) for number in (0, 1)]
    monkeypatch.setattr(Marks, "_ranges_without_mark", lambda *_, **__: ranges)
    monkeypatch.setattr(Marks, "_recorded_mark", lambda *_: MARK)
    return Marks({"bootstrap.servers": "here:1"}, "app", 1.0).brought_back(1)


def test_a_mark_is_restored_although_the_coordinator_is_still_loading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Previously, the delivery or the start failed with an exception of the client."""
    consumer = FakeConsumer(KafkaError.COORDINATOR_LOAD_IN_PROGRESS)
    assert restored(monkeypatch, consumer) == MARK
    (committed,) = consumer.committed
    assert (committed.topic, committed.partition, mark_of(committed)) == ("app-commits", 1, MARK)


def test_a_missing_permission_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MillstreamError, match="does not permit"):
        restored(monkeypatch, FakeConsumer(KafkaError.GROUP_AUTHORIZATION_FAILED))
