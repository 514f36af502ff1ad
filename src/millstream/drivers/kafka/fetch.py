"""Reads planned offset ranges into columns. Implements ``Fetcher``."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from millstream.core.model.errors import (
    BrokerUnavailableError,
    MillstreamError,
    lost_offsets,
    shorter_topic,
)
from millstream.core.model.record import Records
from millstream.core.ports import OffsetRange
from millstream.drivers.kafka.broker import Broker
from millstream.drivers.kafka.clients import (
    ClientSettings,
    check,
    discard,
    is_unavailable,
    log,
    translated,
    warm,
)
from millstream.drivers.kafka.overdue import Patience
from millstream.drivers.kafka.small_ranges import collect, groups_of

_CHUNK_RECORDS = 20_000
_CHUNK_BYTES = 4 << 20
_POLL_S = 0.1
_CONNECT_S = 10.0
_QUIET_S = 10.0
"""Time without a record after which the end of the partition is checked, in seconds."""
_SAMPLE_RECORDS = 20
"""The number is small, because records may be large and all records of a sample are in memory together."""
_SAMPLE_S = 2.0
_GONE = {KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET}
_HANDLED = {KafkaError._PARTITION_EOF} | _GONE

# A cached consumer with a new assignment must not wait for the answer to its previous fetch. Planned records already exist, so
# the broker need not wait for more (fetch.wait.max.ms, fetch.queue.backoff.ms). Only the plan determines where reading begins
# (auto.offset.reset).
_FIXED = {
    "enable.auto.commit": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
}
_PRESET = {
    "fetch.queue.backoff.ms": 5,
    "fetch.wait.max.ms": 10,
    "queued.max.messages.kbytes": 65536,
    "fetch.error.backoff.ms": 100,
}


@dataclass(frozen=True)
class KafkaFetcher:
    """Reads ranges of partitions. Picklable. The process that uses it caches the consumer.

    Attributes:
        group: The consumer group's id. The consumer does not join the group.
        read_committed: Whether to omit records of open and aborted transactions.
        patience_s: How long to wait for a broker that does not answer, in seconds (``task.timeout.ms``).
        skip_lost: Whether to continue at the first existing offset if the broker has deleted the beginning of a range.
    """

    settings: ClientSettings = field(repr=False)
    group: str
    read_committed: bool = False
    patience_s: float = 300.0
    skip_lost: bool = False

    def check(self) -> None:
        """Check the settings without connecting."""
        check(Consumer, self._complete_settings())

    def connect(self) -> None:
        """Connect before the first record. If the connection fails, the first record waits for the broker."""
        with suppress(KafkaException):
            self._consumer().list_topics(timeout=_CONNECT_S)

    def fetch(self, planned: OffsetRange) -> Iterator[Records]:
        """Read a range in offset order, at most 20,000 records or 4 MiB at a time.

        Raises:
            OffsetsLostError: If the broker has deleted the beginning of the range, or the partition now ends before it.
            TopicNotFoundError: If there is no such topic or partition.
            BrokerUnavailableError: If no broker answers in time.
        """
        consumer = self._consumer()
        try:
            consumer.assign([ClientPartition(planned.topic, planned.partition, planned.start)])
            yield from self._range(consumer, planned)
            consumer.unassign()
        except BaseException:
            discard(consumer)
            raise

    def fetch_all(self, ranges: Sequence[OffsetRange]) -> Iterator[tuple[OffsetRange, Iterator[Records]]]:
        """Read ranges in sequence. Small ranges of different partitions are fetched together.

        Each range yields the same records as :meth:`fetch` and must be read before the next one.
        """
        for group in groups_of(ranges, _CHUNK_RECORDS):
            collected = self._collect_group(group) if len(group) > 1 else None
            for number, planned in enumerate(group):
                yield planned, self.fetch(planned) if collected is None else _columns(collected[number])

    def _collect_group(self, group: Sequence[OffsetRange]) -> list[list[Any]] | None:
        consumer = self._consumer()
        try:
            collected = collect(consumer, group, _CHUNK_RECORDS)
        except BaseException:
            discard(consumer)
            raise
        if collected is None:
            discard(consumer)
        return collected

    def sample_bytes(self, planned: OffsetRange) -> float | None:
        """Return the larger of the average record sizes at both ends of a range.

        Returns:
            Bytes of key and value, or None if no record can be read within two seconds.
        """
        hasty = replace(self, patience_s=_SAMPLE_S)
        topic, partition, start, end = planned
        ends = {(start, min(start + _SAMPLE_RECORDS, end)), (max(start, end - _SAMPLE_RECORDS), end)}
        try:
            read = [list(hasty.fetch(OffsetRange(topic, partition, *part))) for part in ends]
        except MillstreamError:
            return None
        finally:
            discard(self._consumer())
        sizes = [sum(records.byte_count() for records in part) / sum(map(len, part)) for part in read if part]
        return max(sizes, default=None)

    def _consumer(self) -> Consumer:
        return warm(Consumer, self._complete_settings())

    def _complete_settings(self) -> ClientSettings:
        """Return the settings, combined with defaults that they override and fixed settings that override them."""
        isolation = "read_committed" if self.read_committed else "read_uncommitted"
        return {**_PRESET, **self.settings, **_FIXED, "group.id": self.group, "isolation.level": isolation}

    def _range(self, consumer: Consumer, planned: OffsetRange) -> Iterator[Records]:
        position, patience, check_at_s = planned.start, Patience(self.patience_s), _QUIET_S
        waiting: list[Any] = []
        while position < planned.end:
            messages: list[Any] = consumer.consume(min(_CHUNK_RECORDS, planned.end - position), _POLL_S)
            if not messages:
                self._check_patience(planned, position, patience)
                if patience.waited_s > check_at_s:
                    check_at_s = patience.waited_s + _QUIET_S
                    position = self._past_end(planned, position)
                continue
            events = [message for message in messages if message.error() is not None]
            gone = any(event.error().code() in _GONE for event in events)
            if len(events) < len(messages) or not gone:
                patience.restart()
                check_at_s = _QUIET_S
            good, reached = self._sorted_out(messages, events, planned, position)
            position = max(position, reached)
            waiting += good
            if gone and position < planned.end:
                self._check_patience(planned, position, patience)
                position = self._past_lost(consumer, planned, position)
            yield from chain.from_iterable(
                map(_columns, _take_complete_chunks(waiting, planned.start, position))
            )
        yield from _columns(waiting)

    def _sorted_out(
        self, messages: list[Any], events: list[Any], planned: OffsetRange, position: int
    ) -> tuple[list[Any], int]:
        """Return the records of the range without events, and the position after them."""
        reached = messages[-1].offset() + 1
        if events:
            messages = [message for message in messages if message.error() is None]
            ends = [e.offset() for e in events if e.error().code() == KafkaError._PARTITION_EOF]
            reached = max([position, *ends, *(message.offset() + 1 for message in messages[-1:])])
            for event in events:
                error = event.error()
                if error.code() not in _HANDLED and not is_unavailable(error):
                    raise translated(
                        KafkaException(error), f"reading {planned.topic}-{planned.partition}", self._servers()
                    )
        if messages and (messages[0].offset() < position or messages[-1].offset() >= planned.end):
            messages = [message for message in messages if position <= message.offset() < planned.end]
        return messages, reached

    def _past_lost(self, consumer: Consumer, planned: OffsetRange, position: int) -> int:
        """Return the position to continue from after the broker has refused a position, or raise."""
        try:
            reached = self._past_deleted(planned, position)
            if reached == position:  # it is not before the first offset
                reached = self._past_end(planned, position, wanted=position)
        except BrokerUnavailableError:
            reached = position  # the caller waits for the broker
        if reached < planned.end:  # the client reads no more after this error
            consumer.assign([ClientPartition(planned.topic, planned.partition, reached)])
        return reached

    def _past_deleted(self, planned: OffsetRange, position: int) -> int:
        """Return the position after records that the broker has deleted, or raise."""
        topic, partition = planned.topic, planned.partition
        first = Broker(self.settings, self.group).begin_offsets({topic: partition + 1})[topic][partition]
        if first <= position:
            return position
        if not self.skip_lost:
            raise lost_offsets(topic, partition, position, first)
        reached = min(first, planned.end)
        log.warning(
            "skipping offsets %d to %d of %s-%d, which the broker has deleted",
            position,
            reached,
            topic,
            partition,
        )
        return reached

    def _past_end(self, planned: OffsetRange, position: int, wanted: int | None = None) -> int:
        """Return the position to continue from if the partition now ends before an offset, or raise.

        Args:
            wanted: The offset. None means the end of the range.

        Raises:
            TopicNotFoundError: If there is no such topic or partition.
        """
        topic, partition = planned.topic, planned.partition
        try:
            end = Broker(self.settings, self.group).log_end_offsets({topic: partition + 1})[topic][partition]
        except BrokerUnavailableError:
            return position  # the caller waits for the broker
        if end >= (planned.end if wanted is None else wanted):
            return position
        if not self.skip_lost:
            raise shorter_topic(topic, partition, end, planned.end)
        log.warning("skipping offsets %d to %d of %s-%d, which now ends at offset %d",
                    position, planned.end, topic, partition, end)  # fmt: skip
        return planned.end

    def _check_patience(self, planned: OffsetRange, position: int, patience: Patience) -> None:
        if patience.is_over():
            raise BrokerUnavailableError(
                f"the brokers at {self._servers()} returned no records of topic {planned.topic!r}, partition {planned.partition}, from offset "
                f"{position} (planned up to {planned.end}) for {self.patience_s:.0f} s (setting task_timeout_ms). Nothing "
                "is lost: start the application again when the broker is back"
            )

    def _servers(self) -> str:
        return str(self.settings.get("bootstrap.servers"))


def _take_complete_chunks(waiting: list[Any], start: int, position: int) -> Iterator[list[Any]]:
    """Remove the complete chunks from the list and yield them.

    Chunks end at fixed offsets, so that a repeated read of a range yields the same chunks. Spark compares the shuffle output of a
    repeated task with the first output, and fails the micro-batch if they differ.
    """
    now = (position - start) // _CHUNK_RECORDS
    while waiting and (chunk := (waiting[0].offset() - start) // _CHUNK_RECORDS) < now:
        count = bisect_left(
            waiting, start + (chunk + 1) * _CHUNK_RECORDS, key=lambda message: message.offset()
        )
        taken = waiting[:count]
        del waiting[:count]
        yield taken


def _columns(messages: list[Any]) -> Iterator[Records]:
    """Convert messages to columns. Large messages result in more and smaller chunks."""
    if not messages:
        return
    values = [message.value() for message in messages]
    headers = [message.headers() for message in messages]
    records = Records(
        [message.key() for message in messages],
        values,
        [message.timestamp()[1] for message in messages],
        [message.offset() for message in messages],
        [tuple(each) if each else () for each in headers] if any(headers) else None,
    )
    size = sum(map(len, filter(None, values)))
    if size <= _CHUNK_BYTES:
        yield records
        return
    rows = max(1, len(messages) * _CHUNK_BYTES // size)
    for first in range(0, len(messages), rows):
        yield records.take(range(first, min(first + rows, len(messages))))
