"""The producer of a process under at-least-once delivery."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from millstream.core.model.errors import MillstreamError
from millstream.core.model.record import Records
from millstream.drivers.kafka import produce
from millstream.drivers.kafka.produce import KafkaSender


class Producing:
    """A producer of librdkafka. The first one has a fatal error, after which it accepts no record."""

    made: list[Producing]

    def __init__(self, settings: dict[str, Any]) -> None:
        self.made.append(self)
        self.broken = len(self.made) == 1
        self.sent: list[Any] = []

    def list_topics(self, timeout: float) -> None:
        pass

    def produce(self, topic: str, value: Any, *rest: Any) -> None:
        if self.broken:
            raise KafkaException(KafkaError(KafkaError._FATAL, "out of order sequence number"))
        self.sent.append(value)

    def poll(self, timeout: float) -> None:
        pass


def test_a_producer_with_a_fatal_error_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Producing, "made", [], raising=False)
    monkeypatch.setattr(produce, "Producer", Producing)
    sender = KafkaSender({"bootstrap.servers": "fatal:1"})
    with pytest.raises(MillstreamError, match="out of order sequence number"):
        sender.publish("out", Records([b"k"], [b"v"], [1]))
    sender.publish("out", Records([b"k"], [b"v"], [1]))
    assert [producer.sent for producer in Producing.made] == [[], [b"v"]]
