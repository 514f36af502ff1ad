"""Forwards records from one topic to others, and commits its position in the same transaction.

The transactional id belongs to the group. If several processes forward for one group, the broker therefore lets only the last one continue.
A process reads the group's positions after it has taken over the id, so transactions of earlier processes cannot change them.

Source: KIP-98, KIP-447.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from time import sleep
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from millstream.core.model.errors import BrokerUnavailableError, DeliveryAbortedError, MillstreamError
from millstream.core.model.ids import TopicPartition
from millstream.core.model.record import Records
from millstream.drivers.kafka.clients import FENCED, ClientSettings, create_client, is_unavailable, translated
from millstream.drivers.kafka.overdue import Overdue, Patience, in_time
from millstream.drivers.kafka.produce import DEFAULTS, FailingProducer, hand_over, production_error

_RETRY_S: Final = 0.05


@dataclass(frozen=True)
class Forwarder:
    """Settings of a process that forwards records in transactions. ``Forwarding`` connects.

    Attributes:
        group: The group whose positions are committed. Also the transactional id.
    """

    producer: ClientSettings = field(repr=False)
    consumer: ClientSettings = field(repr=False)
    group: str
    patience_s: float


class Forwarding:
    """A process that forwards for a group. It ends the transactions of an earlier process of this group and fences it.

    Raises:
        MillstreamError: If the broker refuses, for example because of missing permissions.
    """

    def __init__(self, spec: Forwarder) -> None:
        self._spec = spec
        self._servers = str(spec.producer.get("bootstrap.servers"))
        settings = {**DEFAULTS, **spec.producer, "transactional.id": spec.group}
        self._failing = create_client(FailingProducer, settings)
        consumer = {**spec.consumer, "group.id": spec.group, "enable.auto.commit": False}
        self._members = create_client(Consumer, consumer)
        self._insist("taking over the transactional id", self._failing.producer.init_transactions)

    def send(
        self, records: Mapping[str, Records], positions: Mapping[TopicPartition, tuple[int, str]]
    ) -> None:
        """Send records by topic and commit positions, each an offset with metadata, in one transaction.

        Raises:
            ProductionError: If a record is refused.
            DeliveryAbortedError: If another process has taken over the group, or the transaction was aborted.
        """
        producer = self._failing.producer
        offsets = [ClientPartition(*partition, *position) for partition, position in positions.items()]
        group = self._members.consumer_group_metadata()
        try:
            producer.begin_transaction()
            for topic, some in records.items():
                hand_over(self._failing, topic, some)
            sent = partial(producer.send_offsets_to_transaction, offsets, group)
            self._insist("committing offsets", sent)
            self._insist("committing a transaction", producer.commit_transaction)
        except KafkaException as error:
            raise self._failure(error) from error

    def _insist(self, doing: str, call: Callable[[float], Any]) -> None:
        """Call a function. Retry while the broker is not ready.

        Raises:
            KafkaException: If the transaction must be aborted, or the producer can no longer be used.
            MillstreamError: If the broker refuses, or does not answer in time.
        """
        patience = Patience(self._spec.patience_s)
        while True:
            try:
                in_time(call)
                return
            except KafkaException as error:
                cause = error.args[0]
                if cause.fatal() or cause.txn_requires_abort() or cause.code() in FENCED:
                    raise
                if not is_unavailable(cause) or patience.is_over():
                    raise translated(error, doing, self._servers) from error
                sleep(_RETRY_S)
            except Overdue as error:
                raise BrokerUnavailableError(
                    f"no broker at {self._servers} answered while {doing} ({error}). Replays committed until then are recorded"
                ) from None

    def _failure(self, error: KafkaException) -> MillstreamError:
        cause = error.args[0]
        failures = [each for each in self._failing.failures if each[0].code() != KafkaError._PURGE_QUEUE]
        if cause.code() in FENCED or any(failed[0].code() in FENCED for failed in failures):
            return DeliveryAbortedError(
                f"another process now replays for the group {self._spec.group!r}; nothing of this transaction was sent ({cause.str()}). Wait "
                "until it has ended, or replay with another --group"
            )
        # If this fails, the broker ends the transaction after its timeout, or when the next process takes over.
        with suppress(KafkaException, Overdue):
            in_time(self._failing.producer.abort_transaction)
        if failures:
            return production_error(*failures[0], self._servers)
        if cause.txn_requires_abort():
            return DeliveryAbortedError(
                f"the transaction was aborted, and nothing of it was sent: {cause.str()}. Replay the rest again"
            )
        return translated(error, "sending in a transaction", self._servers)
