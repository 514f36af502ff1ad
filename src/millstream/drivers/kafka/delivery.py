"""The delivery of one Spark partition in one micro-batch, as a transaction. ``transactions`` describes the protocol."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from time import monotonic, sleep
from typing import Any, Final, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from millstream.core.model.errors import BrokerUnavailableError, DeliveryAbortedError, MillstreamError
from millstream.core.model.ids import TopicPartition
from millstream.core.model.record import Records
from millstream.core.ports import BatchId
from millstream.core.topology.internal import commits_topic
from millstream.drivers.kafka.clients import (
    FENCED,
    NOT_PERMITTED,
    QUICK_CONNECTION,
    UNUSABLE,
    ClientSettings,
    connect,
    create_client,
    discard,
    is_unavailable,
    translated,
    warm,
)
from millstream.drivers.kafka.marks import (
    Mark,
    Marks,
    ahead_of,
    mark_of,
    mark_offset,
    mark_record,
    owner_of,
    taken_over,
)
from millstream.drivers.kafka.overdue import STEP_S, Overdue, Patience, Stopwatch, in_time
from millstream.drivers.kafka.produce import DEFAULTS, FailingProducer, hand_over, production_error

log = logging.getLogger("millstream.kafka")

Answer = TypeVar("Answer")

_RETRY_S = 0.05
_YIELD_S = 5.0
"""Time that a delivery without its id waits for another attempt of the micro-batch, before it takes the id back, in seconds."""
_REPEATED: Final = "Nothing is lost: the micro-batch is processed again"
_TAKEN_BACK: Final = {KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT, KafkaError._MSG_TIMED_OUT}
"""Errors of records that an aborted transaction discards, or that were not sent while it was open."""


@dataclass(frozen=True)
class TransactionSpec:
    """The settings for an application's transactions.

    Attributes:
        consumer: Consumer settings, for reading the marks.
        application_id: The group whose offsets are committed, and the prefix of the transactional ids.
        patience_s: How long to wait for a broker that does not answer, in seconds (``task.timeout.ms``).
        timeout_ms: Time after which the broker aborts an open transaction, in ms (``transaction.timeout.ms``).
        run: The id of the application's run, which owns the partitions that it has claimed.
    """

    settings: ClientSettings = field(repr=False)
    consumer: ClientSettings = field(repr=False)
    application_id: str
    patience_s: float
    timeout_ms: int
    run: str = ""

    def marks(self) -> Marks:
        return Marks(self.consumer, self.application_id, STEP_S)

    def producer_settings(self, partition: int) -> ClientSettings:
        return {
            **DEFAULTS,
            **QUICK_CONNECTION,
            **self.settings,
            "transactional.id": f"{self.application_id}-{partition}",
            "transaction.timeout.ms": self.timeout_ms,
        }


class Transaction:
    """One transaction. Owned by one Spark task."""

    def __init__(self, spec: TransactionSpec, partition: int) -> None:
        self._spec = spec
        self._servers = str(spec.settings.get("bootstrap.servers"))
        self._mark = ClientPartition(commits_topic(spec.application_id), partition)
        self._marks_partition = TopicPartition(self._mark.topic, partition)
        self._batch = BatchId("", -1)
        self._watch = Stopwatch()
        self._lost = self._overtaken = False
        self._topics: set[str] = set()
        self._take_over()

    def _take_over(self) -> None:
        """Take over the transactional id with a new producer, regardless of the state of the previous one."""
        patience = Patience(self._spec.patience_s)
        doing = "taking over the transactional id"
        while True:
            self._failing = create_client(FailingProducer, self._spec.producer_settings(self._mark.partition))
            self._producer = self._failing.producer
            connect(self._producer, self._mark.topic)
            try:
                self._insist(doing, self._producer.init_transactions)
            except (KafkaException, Overdue) as error:
                if isinstance(error, KafkaException) and error.args[0].code() not in UNUSABLE:
                    raise translated(error, doing, self._servers) from error
                if patience.is_over():
                    raise self._no_answer(doing, error.args[0]) from error
                log.warning("retrying %s: %s", doing, error.args[0])
            else:
                self._lost = self._overtaken = False
                return

    def claim(self, newest: BatchId, before: Mark | None) -> bool:
        """Make the run the owner of the partition. Return False if another run has claimed it in the meantime.

        Args:
            newest: The last micro-batch planned on the run's checkpoint; -1 for a new checkpoint.

        Raises:
            ProductionError: If a delivery of the previous run has interfered. The claim can be retried.
        """
        mark = self._last_mark()
        same_checkpoint = mark is not None and mark.checkpoint == newest.checkpoint
        if mark is not None and same_checkpoint and mark.owner == self._spec.run:
            return True
        if owner_of(mark) != owner_of(before) or (
            mark is not None and same_checkpoint and ahead_of(mark, newest)
        ):
            return False
        self._batch = (
            BatchId(*mark[:3]) if mark is not None and same_checkpoint else BatchId(newest.checkpoint, -1)
        )
        self._open()
        self.commit({})
        return True

    def begin(self, batch: BatchId) -> bool:
        """Begin the transaction and return True. Return False if the micro-batch was already delivered.

        Raises:
            OtherCheckpointError: If the application was reset, or taken over by a later start on another checkpoint or on a copy of
                this one.
        """
        self._batch = batch
        if self._overtaken and self._finished_elsewhere():
            return False
        if self._lost:
            self._take_over()
        mark = self._last_mark() or self._spec.marks().brought_back(self._mark.partition)
        if owner_of(mark) != (batch.checkpoint, self._spec.run):
            raise taken_over(self._spec.application_id, batch, mark)
        if mark is not None and mark.number >= batch.number:
            log.info("batch %d was delivered by an earlier attempt (%s)", batch.number, self._marks_partition)
            return False
        self._open()
        return True

    def _open(self) -> None:
        self._topics.clear()
        self._watch.restart()
        with self._aborting():
            self._producer.begin_transaction()

    def _finished_elsewhere(self) -> bool:
        """Wait a few seconds for the attempt that has taken over the id. Return whether it has delivered the micro-batch.

        Raises:
            OtherCheckpointError: If a later start has taken over. To take the id back would abort its transaction.
        """
        deadline = monotonic() + _YIELD_S
        while monotonic() < deadline:
            mark = self._last_mark(isolation="read_uncommitted")
            if mark is not None and owner_of(mark) != (self._batch.checkpoint, self._spec.run):
                raise taken_over(self._spec.application_id, self._batch, mark)
            if mark is not None and mark.number >= self._batch.number:
                return True
            sleep(_RETRY_S)
        return False

    def publish(self, topic: str, records: Records) -> None:
        """Pass records to the producer.

        Raises:
            ProductionError: If a record is refused.
            DeliveryAbortedError: If the transaction was aborted, or another attempt has taken over.
        """
        self._topics.add(topic)
        with self._aborting():
            hand_over(self._failing, topic, records)

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit records, offsets and the mark atomically.

        Raises:
            ProductionError: If a record was refused.
            DeliveryAbortedError: If the transaction was aborted, another attempt has taken over, or the outcome is unknown.
            BrokerUnavailableError: If no broker answers for ``patience_s``.
        """
        positions = [
            ClientPartition(topic_partition.topic, topic_partition.partition, offset)
            for topic_partition, offset in offsets.items()
        ]
        topic, partition = self._mark.topic, self._mark.partition
        with self._aborting():
            mark = Mark(*self._batch, self._spec.run)
            key, value = mark_record(partition, mark)
            self._producer.produce(topic, value, key, partition)
            self._send_offsets([mark_offset(partition, mark, topic)], topic)
            if positions:
                self._send_offsets(positions, self._spec.application_id)
            self._insist("committing a transaction", self._producer.commit_transaction)

    def abort(self) -> None:
        """Abort the transaction if the producer is still usable. The next transaction has a new producer.

        The broker may have stored records whose acknowledgement was lost. The same producer would give their sequence numbers to the
        next records, and the broker would acknowledge those as duplicates without storing them.
        """
        if self._lost:
            return
        self._lost = True
        with suppress(KafkaException, Overdue):
            in_time(self._producer.abort_transaction)

    def _last_mark(self, *, isolation: str = "read_committed") -> Mark | None:
        """Return the mark of the last delivered micro-batch, or None."""
        doing = "looking up the last delivered micro-batch"
        patience = Patience(self._spec.patience_s)
        while True:
            marks = self._consumer(self._mark.topic, isolation=isolation)
            try:
                [mark] = self._insist(doing, partial(_fetch_committed, marks, self._mark))
            except Overdue as error:
                discard(marks)
                if patience.is_over():
                    raise self._no_answer(doing, error) from None
            except BrokerUnavailableError as error:
                if self._answers_at_once():
                    raise self._hanging() from error
                raise
            else:
                return mark_of(mark)

    def _answers_at_once(self) -> bool:
        """Return whether the mark can be read with ``read_uncommitted``, that is, without waiting for transactions."""
        marks = self._consumer(self._mark.topic, isolation="read_uncommitted")
        try:
            return bool(marks.committed([self._mark], timeout=STEP_S))
        except KafkaException:
            return False

    def _hanging(self) -> BrokerUnavailableError:
        """Return the error for a mark that remains pending although all transactions that could write it have ended."""
        return BrokerUnavailableError(
            f"the broker at {self._servers} has a hanging transaction: it blocks {self._marks_partition}, and no producer "
            "can end it. Find it with 'kafka-transactions find-hanging --broker-id ... --max-transaction-timeout 0', "
            "abort it with 'kafka-transactions abort' in all partitions that are listed, and start the application again"
        )

    def _send_offsets(self, positions: list[Any], group: str) -> None:
        metadata = self._consumer(group).consumer_group_metadata()
        self._insist(
            "committing offsets",
            lambda timeout: self._producer.send_offsets_to_transaction(positions, metadata, timeout),
        )

    def _consumer(self, group: str, *, isolation: str = "read_committed") -> Consumer:
        """Return a consumer of a group. With ``read_committed`` it waits for transactions that are being committed or aborted."""
        settings = {"group.id": group, "enable.auto.commit": False, "isolation.level": isolation}
        return warm(Consumer, {**self._spec.consumer, **settings})

    def _insist(self, doing: str, call: Callable[[float], Answer]) -> Answer:
        """Call a function. Retry while the broker is unavailable or not ready.

        Raises:
            KafkaException: If the transaction must be aborted, or the producer can no longer be used.
            Overdue: If the call does not return in time.
            MillstreamError: If the broker refuses, or does not answer for ``patience_s``.
        """
        patience = Patience(self._spec.patience_s)
        while True:
            try:
                answer = in_time(call)
                self._watch.look()
                return answer
            except KafkaException as error:
                cause = error.args[0]
                if cause.fatal() or cause.txn_requires_abort() or cause.code() in UNUSABLE:
                    raise
                if not is_unavailable(cause):
                    raise translated(error, doing, self._servers) from error
                if patience.is_over():
                    raise self._no_answer(doing, cause.str()) from error
                sleep(_RETRY_S)

    def _no_answer(self, doing: str, cause: object) -> BrokerUnavailableError:
        return BrokerUnavailableError(
            f"no broker at {self._servers} answered while {doing} for {self._spec.patience_s:.0f} s (setting "
            f"task_timeout_ms; {cause}). Nothing is lost: start the application again when the broker is back"
        )

    @contextmanager
    def _aborting(self) -> Iterator[None]:
        """Translate errors of the client for users. Abort the transaction if necessary."""
        self._watch.look()
        try:
            yield
        except Overdue as error:
            self._lost = True
            raise DeliveryAbortedError(
                f"the transaction of {self._marks_partition} was abandoned: {error} (the client exceeded its own time limit of "
                f"{STEP_S:.0f} s). Nothing is lost: its mark shows whether it was committed, and if not, the micro-batch is processed again"
            ) from None
        except KafkaException as error:
            raise self._failure(error) from error
        self._watch.look()

    def _failure(self, error: KafkaException) -> MillstreamError:
        cause = error.args[0]
        refusals = [failure for failure in self._failing.failures if failure[0].code() not in _TAKEN_BACK]
        self._failing.failures.clear()
        if (
            cause.code() in UNUSABLE
            or cause.fatal()
            or any(failure[0].code() in FENCED for failure in refusals)
        ):
            return self._fenced(cause)
        if refusals and not is_unavailable(refusals[0][0]):
            return production_error(*refusals[0], self._servers)
        self.abort()
        if cause.code() in NOT_PERMITTED:  # another attempt would end in the same way
            topics = ", ".join(sorted({*self._topics, self._mark.topic}))
            doing = f"sending to {topics} and committing offsets of group {self._spec.application_id!r} in a transaction"
            return translated(error, doing, self._servers)
        if cause.txn_requires_abort() or cause.code() in _TAKEN_BACK:
            return DeliveryAbortedError(
                f"the transaction of {self._marks_partition} for micro-batch {self._batch.number} was aborted: {cause.str()}. {_REPEATED}"
            )
        return translated(error, "sending in a transaction", self._servers)

    def _fenced(self, cause: KafkaError) -> DeliveryAbortedError:
        """Return the error for a fenced producer, with the reason: it was too slow or has a successor."""
        self._lost = True
        self._watch.look()
        name = f"{self._spec.application_id}-{self._mark.partition}"
        if self._watch.passed_s * 1000 >= self._spec.timeout_ms:
            why = (
                f"it was open for {self._watch.passed_s:.0f} s, and the broker ends one after "
                f"{self._spec.timeout_ms / 1000:.0f} s (setting transaction_timeout_ms). For {self._watch.longest_s:.0f} s of "
                "that time, this process made no progress: it was paused, or waited for its task or for the broker"
            )
        else:
            self._overtaken = True
            why = f"another attempt of the micro-batch has taken over the transactional id {name}, or the broker has ended it"
        return DeliveryAbortedError(
            f"the transaction of {self._marks_partition} for micro-batch {self._batch.number} was aborted: {why} ({cause.str()}). {_REPEATED}"
        )


def _fetch_committed(consumer: Consumer, partition: ClientPartition, timeout: float) -> list[Any]:
    return consumer.committed([partition], timeout=timeout)
