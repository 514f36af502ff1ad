"""Exactly-once delivery. Implements ``Publisher`` and ``Delivery``.

Per Spark partition and micro-batch there is one Kafka transaction. It carries the records, the offsets of what was
processed, and a *mark*: the number of the batch. The mark is what makes a batch that is run again harmless, because Spark
commits a batch only after Kafka has, and may die in between. Per Spark partition:

* The transactional id is ``<application>-<partition>``. Whoever gets ready to send takes it over: the broker then refuses
  every other producer of that id (a zombie: an executor that was thought lost, a speculative copy), and ends its open
  transaction.
* Only then the mark is read. A batch that is already marked was delivered by an earlier attempt; it is not sent again.
* A mark of another checkpoint means that a start on another one has taken the application over: nothing is sent any more.
* Reading the mark waits for a transaction that is being ended, so it is never read too early.

A checkpoint that begins claims all partitions in the same way, one after the other: whoever claims the first one goes on to
the next, and whoever finds it claimed by somebody else gives up.

Where marks are kept is in ``marks``.

Source: KIP-98, KIP-447; Kafka Streams ``StreamsProducer``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import Any, Final, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from penstock.core.model.errors import (
    BrokerUnavailableError,
    DeliveryAbortedError,
    OtherCheckpointError,
    PenstockError,
    ProductionError,
)
from penstock.core.model.ids import TopicPartition
from penstock.core.model.record import Records
from penstock.core.plan.internal import commits_topic
from penstock.core.ports import BatchId
from penstock.drivers.kafka.clients import ClientSettings, check, is_unavailable, made, translated, warm
from penstock.drivers.kafka.marks import Marks, mark_of, mark_offset, mark_record
from penstock.drivers.kafka.produce import DEFAULTS, FailingProducer, hand_over, refused

log = logging.getLogger("penstock.kafka")

Answer = TypeVar("Answer")

_STEP_S = 10.0
_RETRY_S = 0.05
_CLAIMS = 5
"""How often a claim is repeated that a delivery of the checkpoint before has cut off."""
_FENCED: Final = {
    KafkaError._FENCED,
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.INVALID_PRODUCER_ID_MAPPING,
}
_TAKEN_BACK: Final = {KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT}
"""What records are reported with that an aborted transaction takes back."""


@dataclass(frozen=True)
class KafkaTransactions:
    """Sends records exactly once. Picklable.

    Attributes:
        settings: Producer settings.
        consumer: Consumer settings, to read the marks with.
        application_id: The group whose offsets are committed, and the prefix of the transactional ids.
        patience_s: How long to wait for a broker that does not answer, seconds (``task.timeout.ms``).
        timeout_ms: When the broker ends a transaction that nobody has ended (``transaction.timeout.ms``).
    """

    settings: ClientSettings = field(repr=False)
    consumer: ClientSettings = field(repr=False)
    application_id: str
    patience_s: float
    timeout_ms: int

    def delivery(self, partition: int) -> Transaction:
        """Take over the transactional id of a Spark partition.

        Raises:
            BrokerUnavailableError: If no broker answers for ``patience_s``.
            PenstockError: If the broker refuses, for example because of missing permissions.
        """
        return Transaction(self, partition)

    def marks(self) -> Marks:
        """Return the marks of the application."""
        return Marks(self.consumer, self.application_id, _STEP_S)

    def producer_settings(self, partition: int) -> dict[str, Any]:
        """Return the settings of the producer of a Spark partition."""
        return {
            **DEFAULTS,
            **self.settings,
            "transactional.id": f"{self.application_id}-{partition}",
            "transaction.timeout.ms": self.timeout_ms,
        }

    def check(self) -> None:
        """Refuse settings that no transactional producer can have; connects to nobody.

        Raises:
            SettingsError: If librdkafka does not take a setting.
        """
        check(FailingProducer, self.producer_settings(0))

    def end_open(self, partitions: int) -> None:
        """End the transactions that an earlier run has left open, instead of waiting until the broker does.

        While one is open, nobody can tell which offsets are committed.

        Args:
            partitions: Number of Spark partitions of the earlier run.

        Raises:
            BrokerUnavailableError: If no broker answers for ``patience_s``.
        """
        for partition in range(partitions):
            self.delivery(partition)

    def claim(self, checkpoint: str, known: Mapping[int, BatchId], partitions: int) -> None:
        """Let a checkpoint own all partitions; whoever delivered for another one cannot any more.

        Args:
            checkpoint: Its id.
            known: The marks on which it was decided that it may.
            partitions: How many partitions there are.

        Raises:
            OtherCheckpointError: If another checkpoint has claimed one since.
            BrokerUnavailableError: If no broker answers for ``patience_s``.
        """
        for partition in range(partitions):
            before = known.get(partition)
            if before is None or before.checkpoint != checkpoint:
                self._claim(partition, checkpoint, before)

    def _claim(self, partition: int, checkpoint: str, before: BatchId | None) -> None:
        owners = {checkpoint, None if before is None else before.checkpoint}
        for attempt in range(1, _CLAIMS + 1):
            try:
                if self.delivery(partition).claim(checkpoint, owners):
                    return
            except ProductionError:
                if attempt == _CLAIMS:
                    raise
                continue
            raise OtherCheckpointError(
                f"application {self.application_id!r} was started on another checkpoint at the same moment, and that start was "
                "first. Nothing was read or sent here. Stop the other one, or leave this one stopped"
            )


class Transaction:
    """One transaction. Owned by one Spark task."""

    repeatable = True

    def __init__(self, spec: KafkaTransactions, partition: int) -> None:
        self._spec = spec
        self._servers = str(spec.settings.get("bootstrap.servers"))
        self._mark = ClientPartition(commits_topic(spec.application_id), partition)
        self._place = TopicPartition(self._mark.topic, partition)
        self._batch = BatchId("", -1)
        self._failing = made(FailingProducer, spec.producer_settings(partition))
        self._producer = self._failing.producer
        with self._aborting():
            self._insist("taking over the transactional id", self._producer.init_transactions)

    def claim(self, checkpoint: str, owners: Collection[str | None]) -> bool:
        """Write the mark of a checkpoint that has delivered nothing, unless the partition belongs to none of these.

        Args:
            checkpoint: Its id.
            owners: Whose mark it may replace; None is none.

        Returns:
            Whether the partition is the checkpoint's.

        Raises:
            ProductionError: If a delivery for the checkpoint before has come between; it can be done again.
        """
        mark = self._last_mark()
        if mark is not None and mark.checkpoint == checkpoint:
            return True
        if (mark and mark.checkpoint) not in owners:
            return False
        self._batch = BatchId(checkpoint, -1)
        with self._aborting():
            self._producer.begin_transaction()
        self.commit({})
        return True

    def begin(self, batch: BatchId) -> bool:
        """Begin, unless the batch has been delivered before.

        Raises:
            OtherCheckpointError: If a start on another checkpoint, or a reset, has taken the application over.
        """
        self._batch = batch
        mark = self._last_mark() or self._spec.marks().brought_back(self._mark.partition)
        if mark is None or mark.checkpoint != batch.checkpoint:
            raise taken_over(self._spec.application_id, batch, mark)
        if mark.number >= batch.number:
            log.info("batch %d was delivered by an earlier attempt (%s)", batch.number, self._place)
            return False
        with self._aborting():
            self._producer.begin_transaction()
        return True

    def publish(self, topic: str, records: Records) -> None:
        """Hand records to the producer.

        Raises:
            ProductionError: If a record is refused, or another attempt has taken over.
            DeliveryAbortedError: If the transaction was aborted.
        """
        with self._aborting():
            hand_over(self._failing, topic, records)

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit records, offsets and the mark: all of them, or none.

        Raises:
            ProductionError: If a record was refused, or another attempt has taken over.
            DeliveryAbortedError: If the transaction was aborted.
            BrokerUnavailableError: If no broker answers for ``patience_s``.
        """
        positions = [ClientPartition(at.topic, at.partition, offset) for at, offset in offsets.items()]
        topic, partition = self._mark.topic, self._mark.partition
        with self._aborting():
            key, value = mark_record(partition, self._batch)
            self._producer.produce(topic, value, key, partition)
            self._send_offsets([mark_offset(partition, self._batch, topic)], topic)
            if positions:
                self._send_offsets(positions, self._spec.application_id)
            self._insist("committing a transaction", self._producer.commit_transaction)

    def abort(self) -> None:
        """End the transaction without an effect, if the broker can still be told."""
        with suppress(KafkaException):
            self._producer.abort_transaction(_STEP_S)

    def _last_mark(self) -> BatchId | None:
        """Read the mark of the batch that was delivered last."""
        doing = "asking which batch was delivered last"
        marks = self._consumer(self._mark.topic)
        try:
            [mark] = self._insist(doing, lambda timeout: marks.committed([self._mark], timeout=timeout))
        except BrokerUnavailableError as error:
            if self._answers_at_once():
                raise self._hanging() from error
            raise
        return mark_of(mark)

    def _answers_at_once(self) -> bool:
        """Tell whether the mark can be read by those who do not wait for transactions."""
        marks = self._consumer(self._mark.topic, isolation="read_uncommitted")
        try:
            return bool(marks.committed([self._mark], timeout=_STEP_S))
        except KafkaException:
            return False

    def _hanging(self) -> BrokerUnavailableError:
        """Make the error for a mark that stays undecided although all transactions that could write it are over."""
        return BrokerUnavailableError(
            f"the broker at {self._servers} has a hanging transaction: {self._place} waits for it, and no producer can end it "
            "(KIP-664). This happens when a broker is killed while it ends a transaction. Find it with 'kafka-transactions "
            "find-hanging --broker-id ... --max-transaction-timeout 0', abort it with 'kafka-transactions abort' in all "
            "partitions that are listed, and start the application again"
        )

    def _send_offsets(self, positions: list[Any], group: str) -> None:
        metadata = self._consumer(group).consumer_group_metadata()
        self._insist(
            "committing offsets",
            lambda timeout: self._producer.send_offsets_to_transaction(positions, metadata, timeout),
        )

    def _consumer(self, group: str, *, isolation: str = "read_committed") -> Consumer:
        """Give a consumer of a group; read_committed makes it wait for transactions that are being ended."""
        settings = {"group.id": group, "enable.auto.commit": False, "isolation.level": isolation}
        return warm(Consumer, {**self._spec.consumer, **settings})

    def _insist(self, doing: str, call: Callable[[float], Answer]) -> Answer:
        """Call, and call again while the broker is not there or not ready."""
        deadline = monotonic() + self._spec.patience_s
        while True:
            try:
                return call(_STEP_S)
            except KafkaException as error:
                cause = error.args[0]
                if cause.fatal() or cause.txn_requires_abort() or cause.code() in _FENCED:
                    raise
                if not is_unavailable(cause):
                    raise translated(error, doing, self._servers) from error
                if monotonic() > deadline:
                    raise BrokerUnavailableError(
                        f"no broker at {self._servers} answered while {doing} for {self._spec.patience_s:.0f} s (setting "
                        f"task_timeout_ms; {cause.str()}). Nothing is lost: start the application again when the broker is back"
                    ) from error
                sleep(_RETRY_S)

    @contextmanager
    def _aborting(self) -> Iterator[None]:
        """Make errors of the client errors for people; abort what has to be aborted."""
        try:
            yield
        except KafkaException as error:
            raise self._failure(error) from error

    def _failure(self, error: KafkaException) -> PenstockError:
        cause = error.args[0]
        if cause.code() in _FENCED or cause.fatal():
            return ProductionError(
                f"this attempt of batch {self._batch.number} may no longer send: another attempt has taken over the "
                f"transactional id {self._spec.application_id}-{self._mark.partition} ({cause.str()}). That is how a batch "
                "is kept from being sent twice. If it happens again and again, two applications share one application id"
            )
        refusals = [failure for failure in self._failing.failures if failure[0].code() not in _TAKEN_BACK]
        self._failing.failures.clear()
        if any(failure[0].code() in _FENCED for failure in refusals):
            return self._failure(KafkaException(KafkaError(KafkaError._FENCED)))
        if refusals and not is_unavailable(refusals[0][0]):
            return refused(*refusals[0], self._servers)
        self.abort()
        self._failing.failures.clear()
        if cause.txn_requires_abort():
            return DeliveryAbortedError(f"the transaction of {self._place} was aborted: {cause.str()}")
        return translated(error, "sending in a transaction", self._servers)


def taken_over(application_id: str, batch: BatchId, mark: BatchId | None) -> OtherCheckpointError:
    """Make the error for a delivery that comes after somebody else has taken the application over.

    Args:
        application_id: The application.
        batch: The batch that was to be delivered.
        mark: What lies there in place of the checkpoint's mark; None is nothing.
    """
    if mark is None:
        who = f"its topic {commits_topic(application_id)!r} was deleted, as `penstock reset` does"
    else:
        who = f"a start on another checkpoint ({mark.checkpoint}) has taken it over"
    return OtherCheckpointError(
        f"application {application_id!r} may no longer send from checkpoint {batch.checkpoint}: {who}. Nothing of micro-batch "
        f"{batch.number} was sent from here, so nothing is there twice. If this one was to go on, stop the other one and see "
        "'Two checkpoints' in the page on delivery"
    )
