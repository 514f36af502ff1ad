"""A session of a producer with fan-out: one transactional id, and the marks that show which of its transactions were committed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic
from typing import Final

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
)
from confluent_kafka import TopicPartition as ClientPartition

from millstream.core.model.ids import TopicPartition
from millstream.drivers.kafka.clients import (
    NOT_PERMITTED,
    QUICK_CONNECTION,
    UNUSABLE,
    ClientSettings,
    connect,
    create_client,
    translated,
)
from millstream.drivers.kafka.fanout.control_log import ControlLog, connection
from millstream.drivers.kafka.fanout.coordinator import fence
from millstream.drivers.kafka.fanout.outgoing_records import Outgoing

_STEP_S: Final = 5.0
_REFUSALS: Final = {
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.INVALID_MSG,
    KafkaError.INVALID_RECORD,
    KafkaError.INVALID_TIMESTAMP,
    KafkaError._INVALID_DIFFERENT_RECORD,
}
"""Errors of a transaction that contains a record that the broker does not accept."""


class LostSessionError(Exception):
    """A session failed in a transaction and cannot be used again: after an abort, records of the same producer may be lost silently.

    See ``Transaction.abort``. :meth:`ProducerSession.end` returns whether the transaction was committed.

    Attributes:
        cause: Why the transaction failed.
        fenced: Whether another client has ended the session.
        refused: Whether the broker does not accept at least one of the records.
    """

    def __init__(self, cause: KafkaError) -> None:
        super().__init__(cause.str())
        self.cause = cause
        self.fenced = cause.fatal() or cause.code() in UNUSABLE
        self.refused = not self.fenced and cause.code() in _REFUSALS


class ProducerSession:
    """A transactional producer with a new transactional id."""

    def __init__(self, settings: ClientSettings, name: str, control: ControlLog) -> None:
        self.name = name
        self._settings = settings
        self._control = control
        self._patience_s = control.patience_s
        self._sequence = 0
        self._marked: ClientPartition | None = None
        self._producer = create_client(Producer, {**QUICK_CONNECTION, **settings, "transactional.id": name})
        group = {"group.id": name, "enable.auto.commit": False, "isolation.level": "read_committed"}
        self._marks = create_client(Consumer, {**connection(settings), **group})
        try:
            connect(self._producer, control.name)
            self._producer.init_transactions(self._patience_s)
        except KafkaException as error:
            self._marks.close()
            servers = str(settings.get("bootstrap.servers"))
            raise translated(error, f"taking over the transactional id {name!r}", servers) from error
        except BaseException:
            self._marks.close()
            raise

    def refresh(self, topic: str) -> None:
        """Refresh the metadata of a topic to discover added partitions."""
        self._producer.list_topics(topic, self._patience_s)

    def send(self, records: Sequence[tuple[TopicPartition, Outgoing]]) -> None:
        """Send records to their logs in one transaction.

        Raises:
            LostSessionError: If the transaction failed, or its outcome is unknown.
        """
        self._sequence += 1
        mark = self._marked = ClientPartition(self._control.name, 0, self._sequence)
        try:
            self._producer.begin_transaction()
            for log, record in records:
                self._produce(log, record)
            metadata = self._marks.consumer_group_metadata()
            self._insist(lambda: self._producer.send_offsets_to_transaction([mark], metadata, _STEP_S))
            self._insist(lambda: self._producer.commit_transaction(_STEP_S))
        except KafkaException as error:
            # After a refusal, nothing was committed, and this user may not be permitted to read the mark.
            if error.args[0].code() in NOT_PERMITTED:
                self._marked = None
            raise LostSessionError(error.args[0]) from error

    def _produce(self, log: TopicPartition, record: Outgoing) -> None:
        keep = None if record.delivered is None else record.keep  # a callback costs more than sending
        more = (log.partition, keep, None, record.timestamp, record.headers)
        while True:
            try:
                self._producer.produce(log.topic, record.value, record.key, *more)
                return
            except BufferError:
                self._producer.poll(0.1)

    def _insist(self, call: Callable[[], object]) -> None:
        deadline = monotonic() + self._patience_s
        while True:
            try:
                call()
                return
            except KafkaException as error:
                if not error.args[0].retriable() or monotonic() > deadline:
                    raise

    def end(self) -> bool:
        """Fence this session, which aborts an open transaction, and return whether its last transaction was committed."""
        fence(connection(self._settings), self._control, self.name)
        if self._marked is None:
            return False
        [committed] = self._marks.committed(
            [ClientPartition(self._marked.topic, 0)], timeout=self._patience_s
        )
        return bool(committed.offset >= self._sequence)

    def close(self) -> None:
        self._marks.close()
