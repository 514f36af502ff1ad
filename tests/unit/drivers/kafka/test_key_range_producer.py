"""The producer with fan-out, with a control topic and sessions that need no broker: callbacks, failures and what it closes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any

import pytest
from confluent_kafka import KafkaError

from millstream import KeyRangeProducer
from millstream.core.fanout.ledger import Ledger
from millstream.core.model.errors import BrokerUnavailableError, MillstreamError
from millstream.core.model.ids import TopicPartition
from millstream.core.model.record import Records
from millstream.drivers.kafka.clients import hang_up
from millstream.drivers.kafka.fanout import key_range_producer
from millstream.drivers.kafka.fanout.producer_sessions import Outgoing
from millstream.drivers.kafka.fanout.sender import FanOutSender
from millstream.drivers.kafka.produce import KafkaSender

FAILURE = BrokerUnavailableError("no broker answers")
opened: list[str] = []


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


class Session:
    """A session that sends nothing."""

    def __init__(self, _settings: object, name: str, _control: Log) -> None:
        self.name = name
        opened.append("session")

    def send(self, _records: Sequence[tuple[TopicPartition, Outgoing]]) -> None: ...

    def close(self) -> None:
        opened.remove("session")


class FailingSession(Session):
    def send(self, _records: Sequence[tuple[TopicPartition, Outgoing]]) -> None:
        raise FAILURE


@pytest.fixture(autouse=True)
def _without_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    opened.clear()
    monkeypatch.setattr(key_range_producer, "ControlLog", Log)
    monkeypatch.setattr(key_range_producer, "ProducerSession", Session)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "millstream")
    monkeypatch.setattr(key_range_producer, "ProducerSession", FailingSession)


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


def test_threads_that_poll_together_call_each_callback_once() -> None:
    """A callback that waits for the other threads shows that they do not find the callbacks that the first one has taken."""
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
def test_records_that_a_failed_producer_gives_up_call_back_with_the_error() -> None:
    """A program that polled until all callbacks were called never ended."""
    called: list[Any] = []
    producer = KeyRangeProducer({}, "topic")
    producer.produce("topic", b"v", b"k", on_delivery=lambda *given: called.append(given), timestamp=7)
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


def test_a_producer_that_cannot_begin_closes_its_session_and_its_control_topic(
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
    """Its records had been sent, but the next micro-batch failed with its error."""
    caplog.set_level(logging.CRITICAL, "millstream")
    closed = threading.Event()

    class Watched(Log):
        def close(self) -> None:
            super().close()
            closed.set()

    def fail(*_: object) -> bool:
        raise FAILURE

    monkeypatch.setattr(key_range_producer, "ControlLog", Watched)
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
