"""Asking which micro-batch was delivered last, of a client that does not always return."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from millstream.core.model.errors import (
    BrokerUnavailableError,
    DeliveryAbortedError,
    MillstreamError,
    OtherCheckpointError,
)
from millstream.core.ports import BatchId
from millstream.drivers.kafka import overdue
from millstream.drivers.kafka.delivery import Transaction
from millstream.drivers.kafka.marks import Mark, mark_offset
from millstream.drivers.kafka.transactions import KafkaTransactions

MARK = Mark("5f3a", 7, "c41d", "d8e0")


class Answering:
    """A consumer that knows the mark."""

    def __init__(self, before: Callable[[], object]) -> None:
        self._before = before

    def committed(self, partitions: list[ClientPartition], timeout: float) -> list[ClientPartition]:
        self._before()
        return [mark_offset(partition.partition, MARK, partition.topic) for partition in partitions]


@pytest.fixture
def stands() -> Any:
    event = threading.Event()
    yield event.wait
    event.set()


def asked(monkeypatch: pytest.MonkeyPatch, patience_s: float, *consumers: Answering) -> Transaction:
    """Make a delivery that has these consumers, one after the other."""
    left = list(consumers)
    monkeypatch.setattr(Transaction, "_take_over", lambda _: None)
    monkeypatch.setattr(Transaction, "_consumer", lambda *_, **__: left.pop(0) if left[1:] else left[0])
    monkeypatch.setattr(overdue, "_GRACE_S", 0.05 - overdue.STEP_S)
    return KafkaTransactions({}, {}, "app", patience_s, 1_000).delivery(0)


def test_another_client_is_asked(monkeypatch: pytest.MonkeyPatch, stands: Callable[[], object]) -> None:
    delivery = asked(monkeypatch, 60, Answering(stands), Answering(stands), Answering(lambda: None))
    assert delivery._last_mark() == MARK


@pytest.mark.parametrize(
    "code",
    [KafkaError._TIMED_OUT, KafkaError._TIMED_OUT_QUEUE, KafkaError._WAIT_COORD, KafkaError._TRANSPORT],
)
def test_is_asked_again_while_no_broker_answers(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    errors = [KafkaException(KafkaError(code))]

    def fail_once() -> None:
        if errors:
            raise errors.pop()

    assert asked(monkeypatch, 60, Answering(fail_once))._last_mark() == MARK
    assert not errors


def test_not_for_ever(monkeypatch: pytest.MonkeyPatch, stands: Callable[[], object]) -> None:
    delivery = asked(monkeypatch, 0, Answering(stands))
    with pytest.raises(
        BrokerUnavailableError, match=r"looking up the last delivered micro-batch .*no answer for 0 s"
    ):
        delivery._last_mark()


class Refused:
    """A producer in whose transactions the broker refuses something."""

    def __init__(self, code: int) -> None:
        self.aborted = 0
        self._error = KafkaException(KafkaError(code, "no", txn_requires_abort=True))

    def produce(self, *_: object) -> None: ...

    def send_offsets_to_transaction(self, *_: object) -> None:
        raise self._error

    def abort_transaction(self, timeout: float) -> None:
        self.aborted += 1


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
    ],
)
def test_a_missing_permission_is_named_and_not_tried_again(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """It looked like an aborted transaction, was sent five times, and the error said that the micro-batch is processed again."""
    delivery: Any = asked(monkeypatch, 0)
    monkeypatch.setattr(
        Transaction, "_consumer", lambda *_: SimpleNamespace(consumer_group_metadata=lambda: None)
    )
    delivery._producer = producer = Refused(code)
    delivery._failing = SimpleNamespace(failures=[])
    with pytest.raises(MillstreamError) as raised:
        delivery.commit({})
    tried_again = isinstance(raised.value, DeliveryAbortedError)
    assert tried_again is (code == KafkaError.COORDINATOR_NOT_AVAILABLE)
    assert ("Grant the permission" in raised.value.message) is not tried_again
    assert producer.aborted == 1


def test_a_delivery_that_a_later_run_has_fenced_does_not_fence_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waited, took the transactional id back, and so aborted the transaction of the run that had taken over."""
    delivery: Any = asked(monkeypatch, 60, Answering(lambda: None))
    takeovers: list[None] = []
    monkeypatch.setattr(Transaction, "_take_over", lambda _: takeovers.append(None))
    delivery._lost = delivery._overtaken = True
    with pytest.raises(OtherCheckpointError, match="a later start on that checkpoint"):
        delivery.begin(BatchId(MARK.checkpoint, 8))
    assert takeovers == []
