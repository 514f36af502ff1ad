"""Looking up the last delivered micro-batch with clients that may hang, and errors that end a delivery."""

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


class FakeConsumer:
    """A consumer that returns the mark."""

    def __init__(self, before: Callable[[], object]) -> None:
        self._before = before

    def committed(self, partitions: list[ClientPartition], timeout: float) -> list[ClientPartition]:
        self._before()
        return [mark_offset(partition.partition, MARK, partition.topic) for partition in partitions]


@pytest.fixture
def stands() -> Any:
    """Yield a function that hangs until the end of the test."""
    event = threading.Event()
    yield event.wait
    event.set()


def delivery_with(
    monkeypatch: pytest.MonkeyPatch, patience_s: float, *consumers: FakeConsumer
) -> Transaction:
    """Return a delivery that uses these consumers one after the other."""
    remaining = list(consumers)
    monkeypatch.setattr(Transaction, "_take_over", lambda _: None)
    monkeypatch.setattr(
        Transaction, "_consumer", lambda *_, **__: remaining.pop(0) if remaining[1:] else remaining[0]
    )
    monkeypatch.setattr(overdue, "_GRACE_S", 0.05 - overdue.STEP_S)
    return KafkaTransactions({}, {}, "app", patience_s, 1_000).delivery(0)


def test_a_lookup_that_hangs_is_repeated_with_another_client(
    monkeypatch: pytest.MonkeyPatch, stands: Callable[[], object]
) -> None:
    delivery = delivery_with(
        monkeypatch, 60, FakeConsumer(stands), FakeConsumer(stands), FakeConsumer(lambda: None)
    )
    assert delivery._last_mark() == MARK


@pytest.mark.parametrize(
    "code",
    [KafkaError._TIMED_OUT, KafkaError._TIMED_OUT_QUEUE, KafkaError._WAIT_COORD, KafkaError._TRANSPORT],
)
def test_a_lookup_is_repeated_while_no_broker_answers(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    errors = [KafkaException(KafkaError(code))]

    def fail_once() -> None:
        if errors:
            raise errors.pop()

    assert delivery_with(monkeypatch, 60, FakeConsumer(fail_once))._last_mark() == MARK
    assert not errors


def test_a_lookup_ends_with_an_error_when_the_patience_is_over(
    monkeypatch: pytest.MonkeyPatch, stands: Callable[[], object]
) -> None:
    delivery = delivery_with(monkeypatch, 0, FakeConsumer(stands))
    with pytest.raises(
        BrokerUnavailableError, match=r"looking up the last delivered micro-batch .*no answer for 0 s"
    ):
        delivery._last_mark()


class RefusedProducer:
    """A producer whose transactions the broker refuses."""

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
def test_a_missing_permission_is_reported_and_the_delivery_is_not_repeated(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Previously, it was treated like an aborted transaction, and the micro-batch was sent five times."""
    delivery: Any = delivery_with(monkeypatch, 0)
    monkeypatch.setattr(
        Transaction, "_consumer", lambda *_: SimpleNamespace(consumer_group_metadata=lambda: None)
    )
    delivery._producer = producer = RefusedProducer(code)
    delivery._failing = SimpleNamespace(failures=[])
    with pytest.raises(MillstreamError) as raised:
        delivery.commit({})
    tried_again = isinstance(raised.value, DeliveryAbortedError)
    assert tried_again is (code == KafkaError.COORDINATOR_NOT_AVAILABLE)
    assert ("Grant the permission" in raised.value.message) is not tried_again
    assert producer.aborted == 1


def test_a_delivery_that_a_later_run_has_fenced_does_not_fence_that_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Previously, it took the transactional id back, which aborted the transaction of the later run."""
    delivery: Any = delivery_with(monkeypatch, 60, FakeConsumer(lambda: None))
    takeovers: list[None] = []
    monkeypatch.setattr(Transaction, "_take_over", lambda _: takeovers.append(None))
    delivery._lost = delivery._overtaken = True
    with pytest.raises(OtherCheckpointError, match="a later start on that checkpoint"):
        delivery.begin(BatchId(MARK.checkpoint, 8))
    assert takeovers == []
