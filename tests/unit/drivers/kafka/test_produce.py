"""The producer of a process under at-least-once delivery."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from millstream.core.model.errors import MillstreamError
from millstream.core.model.record import Records
from millstream.drivers.kafka import produce
from millstream.drivers.kafka.produce import KafkaSender


class FakeProducer:
    """A producer of librdkafka. The first instance has a fatal error and accepts no record."""

    made: list[FakeProducer]

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


class ProducerWithASmallQueue(FakeProducer):
    """Has room for five small records between two polls, and refuses an empty value."""

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__(settings)
        self.room = 5

    def produce(self, topic: str, value: Any, *rest: Any) -> None:
        if not self.room or len(value) > 1_000:
            raise BufferError
        if not value:
            raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
        self.room -= 1
        self.sent.append((value, *rest))

    def poll(self, timeout: float) -> None:
        self.room = 5

    def __len__(self) -> int:
        return 5 - self.room


def test_a_producer_with_a_fatal_error_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeProducer, "made", [], raising=False)
    monkeypatch.setattr(produce, "Producer", FakeProducer)
    sender = KafkaSender({"bootstrap.servers": "fatal:1"})
    with pytest.raises(MillstreamError, match="out of order sequence number"):
        sender.publish("out", Records([b"k"], [b"v"], [1]))
    sender.publish("out", Records([b"k"], [b"v"], [1]))
    assert [producer.sent for producer in FakeProducer.made] == [[], [b"v"]]


def test_a_full_queue_neither_loses_nor_repeats_nor_reorders_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeProducer, "made", [], raising=False)
    monkeypatch.setattr(produce, "Producer", ProducerWithASmallQueue)
    keys: list[bytes | None] = [b"%d" % number for number in range(10_000)]
    records = Records(keys, keys, [*range(10_000)], partitions=[number % 7 for number in range(10_000)])
    KafkaSender({"bootstrap.servers": "crowded:1"}).publish("out", records)
    [producer] = FakeProducer.made
    assert producer.sent == [
        (b"%d" % number, b"%d" % number, number % 7, None, None, number or 1, None)
        for number in range(10_000)
    ]


def test_the_error_for_a_refused_record_names_its_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeProducer, "made", [], raising=False)
    monkeypatch.setattr(produce, "Producer", ProducerWithASmallQueue)
    records = Records([None] * 12, [b"v"] * 8 + [b""] + [b"v"] * 3, [1] * 12, partitions=[*range(12)])
    with pytest.raises(
        MillstreamError, match=r"topic 'out' was not accepted \(stage 'produce', partition 8,"
    ):
        KafkaSender({"bootstrap.servers": "refusing:1"}).publish("out", records)


@pytest.mark.parametrize("before", [0, 3, 9])
def test_a_record_that_is_too_large_for_the_queue_is_refused(
    monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    """The queue accepts no record larger than queue.buffering.max.kbytes. Previously, the task waited forever."""
    monkeypatch.setattr(FakeProducer, "made", [], raising=False)
    monkeypatch.setattr(produce, "Producer", ProducerWithASmallQueue)
    values: list[bytes | None] = [*[b"v"] * before, b"v" * 5_000, b"v"]
    records = Records([None] * len(values), values, [1] * len(values), partitions=[*range(len(values))])
    with pytest.raises(
        MillstreamError, match=rf"partition {before}, .*raise the producer setting queue.buffering.max.kbytes"
    ):
        KafkaSender({"bootstrap.servers": f"narrow{before}:1"}).publish("out", records)
