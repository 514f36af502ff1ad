"""The producer with fan-out, without a broker: callbacks, failures, and the sessions and control topics that it closes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any, ClassVar

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from millstream import KeyRangeProducer
from millstream.core.fanout.ledger import Ledger
from millstream.core.model.errors import BrokerUnavailableError, FanOutError, MillstreamError, ProductionError
from millstream.core.model.ids import TopicPartition
from millstream.core.model.partitioning import partition_of
from millstream.core.model.record import Records
from millstream.drivers.kafka.clients import hang_up
from millstream.drivers.kafka.fanout import key_range_producer
from millstream.drivers.kafka.fanout.outgoing_records import Outgoing
from millstream.drivers.kafka.fanout.partition_choice import PartitionChoice
from millstream.drivers.kafka.fanout.producer_sessions import LostSessionError
from millstream.drivers.kafka.fanout.sender import FanOutSender
from millstream.drivers.kafka.produce import KafkaSender

FAILURE = BrokerUnavailableError("no broker answers")
opened: list[str] = []
ended: list[str] = []


class Log:
    """A control topic in memory."""

    partitions = 1
    name = "topic-fanout"

    def __init__(self, _settings: object, topic: str, _patience_s: float) -> None:
        self.ledger = Ledger(topic)
        opened.append("log")

    def poll(self, timeout_s: float = 0.0) -> bool:
        threading.Event().wait(timeout_s)
        return False

    def publish(self, key: str, value: Mapping[str, Any] | None) -> None:
        self.ledger.apply(key, value)

    def expect(self, reached: Callable[[], bool], _what: str) -> None:
        assert reached()

    def close(self) -> None:
        opened.remove("log")


class GrowingLog(Log):
    """The control topic of a topic that grows to four partitions."""

    asked_again = threading.Event()

    def count_partitions(self) -> int:
        if self.partitions == 4:
            self.asked_again.set()
        self.partitions = 4
        return self.partitions


class Session:
    """A session that sends nothing."""

    def __init__(self, _settings: object, name: str, _control: Log) -> None:
        self.name = name
        opened.append("session")

    def send(self, _records: Sequence[tuple[TopicPartition, Outgoing]]) -> None: ...

    def refresh(self, _topic: str) -> None: ...

    def end(self) -> bool:
        ended.append(self.name)
        return False

    def close(self) -> None:
        opened.remove("session")


class PickySession(Session):
    """A session whose broker refuses the value "bad". It remembers what it has sent."""

    sent: ClassVar[list[bytes | None]] = []

    def send(self, records: Sequence[tuple[TopicPartition, Outgoing]]) -> None:
        values = [record.value for _, record in records]
        if b"bad" in values:
            raise LostSessionError(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE, "too large"))
        self.sent.extend(values)


class FailingSession(Session):
    def send(self, _records: Sequence[tuple[TopicPartition, Outgoing]]) -> None:
        raise FAILURE


@pytest.fixture(autouse=True)
def _without_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    opened.clear()
    ended.clear()
    monkeypatch.setattr(key_range_producer, "ControlLog", Log)
    monkeypatch.setattr(key_range_producer, "ProducerSession", Session)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "millstream")
    monkeypatch.setattr(key_range_producer, "ProducerSession", FailingSession)


@pytest.fixture
def picky(monkeypatch: pytest.MonkeyPatch) -> list[bytes | None]:
    PickySession.sent.clear()
    monkeypatch.setattr(key_range_producer, "ProducerSession", PickySession)
    return PickySession.sent


def test_a_refused_record_is_a_failed_delivery_and_the_other_records_are_sent(
    picky: list[bytes | None],
) -> None:
    """Previously, it ended the producer, and all waiting records were lost."""
    called: list[tuple[Any, ...]] = []
    values = [b"bad" if n in (0, 40, 41, 99) else b"%d" % n for n in range(100)]
    with KeyRangeProducer({}, "topic") as producer:
        for value in values:
            producer.produce("topic", value, on_delivery=lambda *arguments: called.append(arguments))
        assert producer.flush(30) == 0
        producer.produce("topic", b"later")
    assert picky == [*(value for value in values if value != b"bad"), b"later"]
    refused = [(error.code(), message.value()) for error, message in called if error is not None]
    assert refused == [(KafkaError.MSG_SIZE_TOO_LARGE, b"bad")] * 4
    assert (len(called), opened) == (100, [])


def test_a_refused_record_without_a_callback_is_reported_once_by_flush(picky: list[bytes | None]) -> None:
    with KeyRangeProducer({}, "topic") as producer:
        producer.produce("topic", b"bad")
        with pytest.raises(ProductionError, match="the broker refuses a record for topic-0: too large"):
            producer.flush(30)
        assert producer.flush(30) == 0
        producer.produce("topic", b"good")
    assert picky == [b"good"]


def test_a_broker_that_refuses_every_record_ends_the_producer(
    picky: list[bytes | None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "millstream")
    monkeypatch.setattr(key_range_producer, "_MOST_REFUSALS", 3)
    producer = KeyRangeProducer({}, "topic")
    producer.hand_over(Records([b"k"] * 10, [b"bad"] * 10, [1] * 10))
    with pytest.raises(FanOutError, match="refuse all records"):
        producer.flush(30)
    with pytest.raises(FanOutError):
        producer.close()
    assert picky == []


def test_a_refused_result_fails_the_micro_batch_and_the_producer_continues(picky: list[bytes | None]) -> None:
    sender = FanOutSender(KafkaSender({"client.id": "picky"}), frozenset(["topic"]))
    sender.publish("topic", Records([b"k"] * 2, [b"bad", b"good"], [1, 2]))
    with pytest.raises(ProductionError):
        sender.flush()
    sender.publish("topic", Records([b"k"], [b"again"], [1]))
    sender.flush()
    producer = sender._producer("topic")
    hang_up({"client.id": "picky"})
    assert producer is not None
    producer.close()
    assert (picky, opened) == ([b"good", b"again"], [])


def test_the_producer_uses_partitions_that_are_added_to_the_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Previously, records for them were refused, and keys did not move to them as with other producers."""
    numbers: list[int] = []

    class NumberingSession(Session):
        def send(self, records: Sequence[tuple[TopicPartition, Outgoing]]) -> None:
            numbers.extend(log.partition for log, _ in records)

    monkeypatch.setattr(key_range_producer, "ControlLog", GrowingLog)
    monkeypatch.setattr(key_range_producer, "ProducerSession", NumberingSession)
    keys = [b"key-%d" % n for n in range(20)]
    with KeyRangeProducer({"topic.metadata.refresh.interval.ms": 1}, "topic") as producer:
        assert GrowingLog.asked_again.wait(30)  # the first answer has been used
        for key in keys:
            producer.produce("topic", b"v", key)
        producer.produce("topic", b"v", b"k", 3)
    assert sorted(numbers) == sorted([*(partition_of(key, 4) for key in keys), 3])


@pytest.mark.parametrize("interval", ["-1", 300_000])
def test_the_partition_count_is_not_requested_too_often(interval: object) -> None:
    control: Any = GrowingLog({}, "topic", 1.0)
    choice = PartitionChoice({"topic.metadata.refresh.interval.ms": interval}, "topic", control, 0.0)
    assert not choice.asked_for_more(299.0)
    assert choice.asked_for_more(300.0) is (interval != "-1")
    control.close()


def test_the_partition_count_is_requested_later_if_no_broker_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Log) -> int:
        raise FAILURE

    monkeypatch.setattr(GrowingLog, "count_partitions", fail)
    control: Any = GrowingLog({}, "topic", 1.0)
    assert not PartitionChoice({}, "topic", control, 0.0).asked_for_more(300.0)
    control.close()


def test_closing_with_unsent_records_reports_how_many_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Previously, close() returned as if they had been sent."""
    go_on = threading.Event()

    class HangingSession(Session):
        def send(self, _records: Sequence[tuple[TopicPartition, Outgoing]]) -> None:
            go_on.wait(30)

    monkeypatch.setattr(key_range_producer, "ProducerSession", HangingSession)
    producer = KeyRangeProducer({}, "topic")
    for _ in range(3):
        producer.produce("topic", b"v")
    with pytest.raises(BrokerUnavailableError, match="3 records for topic 'topic' were not sent within 0"):
        producer.close(0)
    go_on.set()
    producer.close()
    assert opened == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"value": 5},
        {"value": bytearray(b"v")},
        {"key": 1.5},
        {"headers": "ab"},
        {"headers": [("name",)]},
        {"headers": [("name", 5)]},
        {"headers": {5: b"v"}},
        {"timestamp": "now"},
    ],
)
def test_a_record_with_a_wrong_type_is_refused_at_once(
    picky: list[bytes | None], wrong: dict[str, Any]
) -> None:
    with KeyRangeProducer({}, "topic") as producer:
        producer.produce("topic", b"before")
        with pytest.raises(TypeError):
            producer.produce("topic", **wrong)
        producer.produce("topic", "after", headers={"name": "v"})
    assert picky == [b"before", b"after"]


@pytest.mark.parametrize("headers", [None, {"a": None}, [("a", "b"), ("\xe4" * 70, b"b" * 100)]])
@pytest.mark.parametrize("key", [None, b"key"])
def test_the_size_limit_of_records_equals_that_of_librdkafka(
    picky: list[bytes | None], key: bytes | None, headers: Any
) -> None:
    settings = {"message.max.bytes": 1_000, "log_level": 0}
    client = Producer(settings)

    def fits(send: Callable[..., None], size: int) -> bool:
        try:
            send("topic", b"v" * size, key, headers=headers)
        except KafkaException as error:
            return bool(error.args[0].code() != KafkaError.MSG_SIZE_TOO_LARGE)
        return True

    with KeyRangeProducer(settings, "topic") as producer:
        sizes = [size for size in range(600, 1_001) if fits(producer.produce, size)]
    assert sizes == [size for size in range(600, 1_001) if fits(client.produce, size)]
    client.purge()
    assert 0 < len(sizes) < 400


def test_a_callback_that_fails_leaves_the_others_for_the_next_poll() -> None:
    called: list[int] = []

    def fail(_error: KafkaError | None, _message: object) -> None:
        raise ValueError("a callback")

    with KeyRangeProducer({}, "topic") as producer:
        producer.produce("topic", b"", on_delivery=fail)
        for number in range(2):
            producer.produce("topic", b"", on_delivery=lambda *_, number=number: called.append(number))
        with pytest.raises(ValueError, match="a callback"):
            producer.flush(30)
        assert (called, len(producer)) == ([], 2)
        assert (producer.poll(), called, len(producer)) == (2, [0, 1], 0)
    assert opened == []


def test_concurrent_polls_call_each_callback_once() -> None:
    """The first callback waits for a poll of another thread, which must not find the callbacks that the first poll has taken."""
    called: list[int] = []
    polls: list[int] = []
    with KeyRangeProducer({}, "topic") as producer:

        def poll_elsewhere(_error: KafkaError | None, _message: object) -> None:
            called.append(0)
            other = threading.Thread(target=lambda: polls.append(producer.poll()))
            other.start()
            other.join(30)

        producer.produce("topic", b"", on_delivery=poll_elsewhere)
        producer.produce("topic", b"", on_delivery=lambda *_: called.append(1))
        producer.flush(30)
    assert (called, polls) == ([0, 1], [0])


@pytest.mark.usefixtures("failing")
def test_closing_a_producer_that_failed_before_everything_was_sent_raises_the_failure() -> None:
    with pytest.raises(MillstreamError) as raised, KeyRangeProducer({}, "topic") as producer:
        producer.produce("topic", b"lost")
    assert raised.value is FAILURE
    assert opened == []


@pytest.mark.usefixtures("failing")
def test_unsent_records_of_a_failed_producer_call_back_with_the_error() -> None:
    """Previously, a program that polled until all callbacks were called never ended."""
    called: list[Any] = []
    producer = KeyRangeProducer({}, "topic")
    producer.produce(
        "topic", b"v", b"k", on_delivery=lambda *arguments: called.append(arguments), timestamp=7
    )
    deadline = monotonic() + 30
    while len(producer) and monotonic() < deadline:
        producer.poll(0.1)
    ((error, message),) = called
    assert (error.code(), error.str()) == (KafkaError._FAIL, str(FAILURE))
    assert (message.topic(), message.partition(), message.key(), message.value()) == ("topic", 0, b"k", b"v")
    assert (message.timestamp(), message.headers(), message.offset()) == ((1, 7), None, None)
    assert message.error() is error
    for ask in (producer.flush, producer.close, lambda: producer.produce("topic", b"later")):
        with pytest.raises(MillstreamError) as raised:
            ask()
        assert raised.value is FAILURE
    assert (len(called), len(producer), opened) == (1, 0, [])


@pytest.mark.usefixtures("failing")
def test_a_producer_that_fails_fences_and_deletes_its_session() -> None:
    """Previously, the session stayed in the control topic, and each later change of the topic had to fence it."""
    producer = KeyRangeProducer({}, "topic")
    session = producer._membership.session.name
    producer.produce("topic", b"v")
    with pytest.raises(MillstreamError):
        producer.close()
    assert (ended, dict(producer._log.ledger.members)) == ([session], {})


def test_a_producer_that_is_closed_deletes_its_session() -> None:
    producer = KeyRangeProducer({}, "topic")
    producer.close()
    assert (ended, dict(producer._log.ledger.members)) == ([], {})


@pytest.mark.usefixtures("failing")
def test_flushing_a_failed_producer_calls_back_before_it_raises() -> None:
    called: list[Any] = []
    producer = KeyRangeProducer({}, "topic")
    producer.produce("topic", b"v", on_delivery=lambda error, _: called.append(error))
    with pytest.raises(MillstreamError):
        producer.flush(30)
    assert len(called) == 1


@pytest.mark.usefixtures("failing")
def test_an_exception_in_a_with_statement_is_not_replaced_by_the_failure() -> None:
    def send() -> None:
        with KeyRangeProducer({}, "topic") as producer:
            producer.produce("topic", b"lost")
            raise ValueError("of the user")

    with pytest.raises(ValueError, match="of the user"):
        send()
    assert opened == []


def test_a_producer_that_cannot_start_closes_its_session_and_its_control_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise FAILURE

    monkeypatch.setattr(Log, "expect", fail)
    with pytest.raises(BrokerUnavailableError):
        KeyRangeProducer({}, "topic")
    assert opened == []


@pytest.mark.parametrize("begins_with", ["publish", "flush"])
def test_a_producer_that_failed_between_two_micro_batches_is_replaced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, begins_with: str
) -> None:
    """Previously, the next micro-batch failed with its error, although its records had been sent."""
    caplog.set_level(logging.CRITICAL, "millstream")
    closed = threading.Event()

    class WatchedLog(Log):
        def close(self) -> None:
            super().close()
            closed.set()

    def fail(*_: object) -> bool:
        raise FAILURE

    monkeypatch.setattr(key_range_producer, "ControlLog", WatchedLog)
    sender = FanOutSender(KafkaSender({"client.id": begins_with}), frozenset(["topic"]))
    batch = Records([b"k"], [b"v"], [1])
    sender.publish("topic", batch)
    sender.flush()
    with monkeypatch.context() as patched:
        patched.setattr(Log, "poll", fail)
        assert closed.wait(30)
    if begins_with == "flush":
        sender.flush()
    sender.publish("topic", batch)
    sender.flush()
    producer = sender._producer("topic")
    assert producer is not None
    hang_up({"client.id": begins_with})
    producer.close()
    assert opened == []
