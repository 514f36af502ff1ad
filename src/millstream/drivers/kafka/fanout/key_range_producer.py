"""``KeyRangeProducer``: a producer with the interface of confluent-kafka's, for topics whose hot partitions are split by key range.

A thread sends waiting records in consecutive transactions, by the newest epochs it has read; ``ledger`` defines the protocol. The
producer has one queue per partition, so a partition that is held back during a change does not delay the others, and each transaction
takes equally many records of each queue, so a hot partition does not delay the others either.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from itertools import islice, repeat
from threading import Condition, Thread
from time import monotonic
from typing import Any, Final, Self
from uuid import uuid4

from confluent_kafka import KafkaError

from millstream.core.fanout.epochs import control_topic
from millstream.core.model.errors import BrokerUnavailableError, FanOutError, MillstreamError, ProductionError
from millstream.core.model.ids import TopicPartition
from millstream.core.model.record import Records
from millstream.drivers.kafka.clients import ThreadedClient, log
from millstream.drivers.kafka.fanout.control_log import ControlLog
from millstream.drivers.kafka.fanout.membership import Membership
from millstream.drivers.kafka.fanout.outgoing_records import (
    Delivered,
    Outgoing,
    check_size,
    checked_bytes,
    checked_headers,
    checked_time,
    refusal,
    undelivered,
)
from millstream.drivers.kafka.fanout.partition_choice import PartitionChoice
from millstream.drivers.kafka.fanout.producer_sessions import LostSessionError, ProducerSession
from millstream.drivers.kafka.fanout.record_queues import RecordQueues
from millstream.drivers.kafka.fanout.restrictions import Restrictions
from millstream.drivers.kafka.produce import DEFAULTS

_MOST: Final = 5_000
"""Maximum number of records in a transaction."""
_QUEUED: Final = 100_000
_IDLE_S: Final = 0.01
_MOST_FAILURES: Final = 5
"""Maximum number of consecutive transactions that fail, except for fenced ones."""
_MOST_REFUSALS: Final = 100
"""Maximum number of records that the broker refuses without accepting one. Each costs a session."""


class KeyRangeProducer(ThreadedClient):
    """Sends records to a topic whose partitions may be split by key range, and merged again, at any time.

    Records are sent in transactions, so readers need ``isolation.level=read_committed``. As with confluent-kafka's ``Producer``, ``poll``
    and ``flush`` call the callbacks. The producer may be used from one thread or several.

    Args:
        config: librdkafka's settings. The ids of its sessions begin with ``transactional.id``, by default the name of the control topic,
            followed by a random part.
        topic: The topic. All its producers must be of this class as soon as one of its partitions is split.
        patience_s: How long to wait for brokers, in seconds.

    Raises:
        TopicNotFoundError: If the topic does not exist.
        BrokerUnavailableError: If no broker answers in time.

    Source: the draft proposal "Parallel processing beyond the partition count", *Second part*.
    """

    def __init__(self, config: Mapping[str, Any], topic: str, *, patience_s: float = 30.0) -> None:
        given = dict(config)
        prefix = f"{given.pop('transactional.id', control_topic(topic))}-{uuid4().hex[:12]}"
        reports = {"delivery.report.only.error": False, "linger.ms": 5, "transaction.timeout.ms": 10_000}
        self._settings = {**DEFAULTS, **reports, **given}
        self._most_bytes = int(self._settings.get("message.max.bytes", 1_000_000))
        self._topic = topic
        self._log = ControlLog(given, topic, patience_s)
        self._partitions = PartitionChoice(self._settings, topic, self._log, monotonic())
        self._failures = self._unsent = 0
        self._queues = RecordQueues()
        self._done: deque[tuple[Delivered, KafkaError | None, Any]] = deque()
        self._change = Condition()
        self._closed = self._undelivered = False
        self._failure: MillstreamError | None = None
        self._refusals = 0
        """How many records the broker has refused since it accepted one."""
        self._unreported: ProductionError | None = None
        """The error of the first refused record without a callback, until it is raised."""
        self._sending: list[Outgoing] = []
        self._restrictions = Restrictions(self._settings, self._log)
        try:
            self._membership = Membership(self._open_session, prefix, self._log)
        except BaseException:
            self._log.close()
            raise
        self._thread = Thread(target=self._run, name=f"{prefix}-sender", daemon=True)
        self._thread.start()

    @property
    def longest_restriction_s(self) -> float:
        """The longest time for which a partition was held back, in seconds."""
        return self._restrictions.longest_s

    @property
    def failed(self) -> bool:
        """True if the producer can no longer be used."""
        return self._failure is not None

    @property
    def failed_idle(self) -> bool:
        """True if the producer has failed after all its records were sent. Another producer can continue."""
        with self._change:
            return self._failure is not None and not self._undelivered

    def __len__(self) -> int:
        return self._unsent + len(self._done)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            self.close()
        except MillstreamError:
            if kind is None:
                raise

    def produce(
        self,
        topic: str,
        value: bytes | str | None = None,
        key: bytes | str | None = None,
        partition: int = -1,
        on_delivery: Delivered | None = None,
        *,
        timestamp: int = 0,
        headers: Any = None,
    ) -> None:
        """Put a record into the queue. It is sent in the background.

        Args:
            topic: The topic of this producer.
            value: The value.
            key: The key. A record without a key goes to the partition of the empty key.
            partition: The partition. With -1, the key selects it by Murmur2, as in Java producers.
            on_delivery: Called by ``poll`` or ``flush`` with an error or None and the message, when its transaction has ended, or the
                broker has refused the record. Without it, ``flush`` raises an error for a refused record.
            timestamp: The time in ms since the epoch. 0 means now.
            headers: The headers.

        Raises:
            BufferError: If the queue is full. Call ``poll`` and try again.
            FanOutError: If the topic is not the producer's, the partition does not exist, or the producer is closed.
            TypeError: If the key, the value or the headers have a wrong type.
            KafkaException: If the record is larger than the setting ``message.max.bytes``.

        Source: ``confluent_kafka.Producer.produce``.
        """
        encoded, data = checked_bytes(key, "key"), checked_bytes(value, "value")
        if partition == -1:
            partition = self._partitions.of_key[encoded or b""]
        primary, time = self._partitions.primary(topic, partition), checked_time(timestamp)
        record = Outgoing(primary, encoded, data, time, checked_headers(headers), on_delivery)
        check_size(record, self._most_bytes)
        with self._change:
            self._check()
            if self._unsent >= _QUEUED:
                raise BufferError(
                    f"the producer already holds {_QUEUED:,} records that are not sent; call poll() and produce again"
                )
            self._queue([record])

    def hand_over(self, records: Records) -> None:
        """Put the records of a sink into the queue. Waits while the queue is full. Records without a time get the time 1.

        Raises:
            MillstreamError: If a partition does not exist, or the producer is closed or has failed.
        """
        given = repeat(-1) if records.partitions is None else records.partitions
        of_key = self._partitions.of_key
        partitions = [of_key[key or b""] if n == -1 else n for n, key in zip(given, records.keys)]
        primaries = {
            partition: self._partitions.primary(self._topic, partition) for partition in set(partitions)
        }
        headers = repeat(None) if records.headers is None else map(list, records.headers)
        columns = zip(partitions, records.keys, records.values, records.timestamps, headers, strict=False)
        outgoing = (
            Outgoing(primaries[n], key, value, time or 1, more, None) for n, key, value, time, more in columns
        )
        while some := list(islice(outgoing, _MOST)):
            with self._change:
                self._change.wait_for(lambda: self._unsent < _QUEUED or self._failure is not None)
                self._check()
                self._queue(some)

    def poll(self, timeout: float = 0.0) -> int:
        """Call the callbacks of records whose transaction has ended.

        Args:
            timeout: How long to wait for the first one, in seconds.

        Returns:
            The number of these records.

        Source: ``confluent_kafka.Producer.poll``.
        """
        with self._change:
            if timeout and not self._done:
                self._change.wait_for(lambda: bool(self._done) or self._failure is not None, timeout)
            done, self._done = self._done, deque()
        count = len(done)
        try:
            while done:
                call, error, message = done.popleft()
                call(error, message)
        finally:
            if done:  # a callback has failed
                with self._change:
                    self._done.extendleft(reversed(done))
        return count

    def flush(self, timeout: float | None = None) -> int:
        """Wait until everything is sent, and call the callbacks.

        Args:
            timeout: How long to wait, in seconds. None means no limit.

        Returns:
            The number of records that are not sent yet.

        Raises:
            ProductionError: If the broker has refused a record without a callback. The producer can still be used.
            MillstreamError: If the producer has failed.

        Source: ``confluent_kafka.Producer.flush``.
        """
        with self._change:
            self._change.wait_for(lambda: not self._unsent or self._failure is not None, timeout)
        self.poll()
        if self._failure is not None:
            raise self._failure
        self._report_refusal()
        return self._unsent

    def close(self, timeout: float = 30.0) -> None:
        """Send all waiting records and end the session. A ``with`` statement calls it.

        Args:
            timeout: How long to wait, in seconds; afterwards, sending continues in the background until the process ends.

        Raises:
            BrokerUnavailableError: If not everything was sent in time.
            ProductionError: If the broker has refused a record without a callback.
            MillstreamError: If the producer has failed before everything was sent. An exception that leaves the ``with`` statement
                takes precedence.

        Source: ``org.apache.kafka.clients.producer.KafkaProducer.close``.
        """
        with self._change:
            self._closed = True
        self._thread.join(timeout)
        self.poll()
        if self._failure is not None and self._undelivered:
            raise self._failure
        if self._thread.is_alive() and self._unsent:
            raise BrokerUnavailableError(
                f"{self._unsent:,} records for topic {self._topic!r} were not sent within {timeout:g} s. They are lost if the process ends "
                "now. Check that the brokers run, and close again with a longer timeout"
            )
        self._report_refusal()

    def _report_refusal(self) -> None:
        with self._change:
            error, self._unreported = self._unreported, None
        if error is not None:
            raise error

    def _queue(self, records: Sequence[Outgoing]) -> None:
        self._queues.add(records)
        self._unsent += len(records)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._closed:
            raise FanOutError(f"the producer of {self._topic!r} is closed; create a new one")

    def _open_session(self, name: str) -> ProducerSession:
        return ProducerSession(self._settings, name, self._log)

    def _run(self) -> None:
        try:
            while self._step():
                pass
        except Exception as error:
            log.exception("the producer of %r has failed", self._topic)
            self._fail(error if isinstance(error, MillstreamError) else MillstreamError(str(error)))
        finally:
            with closing(self._log):
                with suppress(Exception):  # without brokers, the next change deletes it
                    self._membership.leave(failed=self.failed)
                self._membership.session.close()

    def _fail(self, failure: MillstreamError) -> None:
        """Discard all unsent records, including those of a transaction in progress, and report the error to their callbacks."""
        with self._change:
            self._failure = failure
            unsent = [*self._sending, *self._queues.take_all()]
            self._done.extend(undelivered(unsent, KafkaError(KafkaError._FAIL, str(failure))))
            self._unsent, self._undelivered = 0, bool(unsent)
            self._change.notify_all()

    def _step(self) -> bool:
        """Read the control topic, answer, and send one transaction. Return whether there will be more work."""
        while self._log.poll(0.0 if self._sendable() else _IDLE_S):
            pass
        self._restrictions.follow(self._membership.session.name)
        if self._membership.ended:
            self._membership.renew()
        self._membership.answer()
        if self._partitions.asked_for_more(monotonic()):
            self._membership.session.refresh(self._topic)
            with self._change:
                self._partitions.add()
        held = self._log.ledger.held_partitions()
        with self._change:
            self._sending = self._queues.take(_MOST, held)
        if self._sending:
            self._send(self._sending)
            self._sending = []
        with self._change:
            return not (self._closed and not self._unsent)

    def _sendable(self) -> bool:
        return self._queues.has_records(self._log.ledger.held_partitions())

    def _routed(self, batch: Iterable[Outgoing]) -> list[tuple[TopicPartition, Outgoing]]:
        """Return records with the logs that take them in the current epochs."""
        numbers = {record.topic_partition.partition for record in batch}
        epochs = {number: self._log.ledger.state(number).history.current for number in numbers}
        return [(epochs[record.topic_partition.partition].log_of(record.key), record) for record in batch]

    def _send(self, batch: list[Outgoing]) -> None:
        try:
            self._membership.session.send(self._routed(batch))
        except LostSessionError as error:
            log.info("session %s of a producer has ended: %s", self._membership.session.name, error)
            if self._membership.renew():
                self._finish(batch)
            elif error.refused:
                self._refuse(batch, error.cause)
            else:
                self._retry(batch, error)
        else:
            self._failures = self._refusals = 0
            self._finish(batch)

    def _retry(self, batch: list[Outgoing], error: LostSessionError) -> None:
        self._failures += not error.fenced
        if self._failures >= _MOST_FAILURES:
            raise FanOutError(
                f"records for topic {self._topic!r} could not be sent in {_MOST_FAILURES} transactions: {error}. Check "
                "that the brokers run and that this user may write, then send them again with a new producer"
            ) from error
        with self._change:
            self._queues.put_back(batch)

    def _refuse(self, batch: list[Outgoing], cause: KafkaError) -> None:
        """Search a batch for the record that the broker refuses. Report that record as not delivered, and send the others again."""
        if self._refusals >= _MOST_REFUSALS:
            raise FanOutError(
                f"the brokers refuse all records for topic {self._topic!r}: {cause.str()}. Correct the configuration of the topic, "
                "or the records, then send them again with a new producer"
            )
        with self._change:
            if (record := self._queues.refused(batch)) is None:
                return
            self._refusals += 1
            self._unsent -= 1
            self._done.extend(undelivered([record], cause))
            if record.delivered is None and self._unreported is None:
                self._unreported = refusal(record, cause)
            self._change.notify_all()

    def _finish(self, batch: list[Outgoing]) -> None:
        with self._change:
            self._queues.sent(batch)
            self._done.extend((r.delivered, None, r.message) for r in batch if r.delivered is not None)
            self._unsent -= len(batch)
            self._change.notify_all()
