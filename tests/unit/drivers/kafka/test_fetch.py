"""Offset ranges that cannot be read as planned: the topic or records were deleted, or no broker answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pytest
from confluent_kafka import KafkaError

from millstream.core.model.errors import BrokerUnavailableError, OffsetsLostError, TopicNotFoundError
from millstream.core.model.positions import Offsets
from millstream.core.ports import OffsetRange
from millstream.drivers.kafka import fetch
from millstream.drivers.kafka.broker import Broker
from millstream.drivers.kafka.fetch import KafkaFetcher


class Message(NamedTuple):
    record_offset: int
    record_error: KafkaError | None = None

    def offset(self) -> int:
        return self.record_offset

    def error(self) -> KafkaError | None:
        return self.record_error

    def key(self) -> bytes:
        return b"k"

    def value(self) -> bytes:
        return b"v"

    def timestamp(self) -> tuple[int, int]:
        return (1, 5)

    def headers(self) -> None:
        return None


class Partition:
    """A consumer of one partition, and the broker's answers about it.

    A fetch out of range returns an event, in the same call as the records before it. The first ``unavailable_count`` requests for
    offsets raise BrokerUnavailableError.
    """

    unavailable_count = 0
    exists = True

    def __init__(self, begin: int, end: int) -> None:
        self.begin, self.end = begin, end
        self.assigned: list[int] = []
        self._at: int | None = None
        self.deleted_while_reading: int | None = None

    def assign(self, partitions: list[Any]) -> None:
        self._at = partitions[0].offset
        self.assigned.append(partitions[0].offset)

    def unassign(self) -> None:
        self._at = None

    def consume(self, max_messages: int, _timeout_s: float) -> list[Message]:
        if self._at is None or not self.exists:
            return []
        messages: list[Message] = []
        if self.begin <= self._at <= self.end:
            last = min(self._at + max_messages, self.end, self.deleted_while_reading or self.end)
            messages = [Message(offset) for offset in range(self._at, last)]
            self._at = last
        if self.deleted_while_reading is not None:
            self.begin, self.deleted_while_reading = self.deleted_while_reading + 1, None
        if not self.begin <= self._at <= self.end:
            messages.append(Message(self._at, KafkaError(KafkaError._AUTO_OFFSET_RESET, "out of range")))
            self._at = None  # the client fetches no more until it is assigned again
        return messages

    def begin_offsets(self, _: Broker, counts: Mapping[str, int]) -> Offsets:
        return self._answer(self.begin, counts)

    def log_end_offsets(self, _: Broker, counts: Mapping[str, int]) -> Offsets:
        return self._answer(self.end, counts)

    def _answer(self, offset: int, counts: Mapping[str, int]) -> Offsets:
        if self.unavailable_count:
            self.unavailable_count -= 1
            raise BrokerUnavailableError("away")
        if not self.exists:
            raise TopicNotFoundError("no such topic")
        return {topic: dict.fromkeys(range(count), offset) for topic, count in counts.items()}


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[int]]:
    """Return a function that reads a range of a partition, and returns the offsets."""
    monkeypatch.setattr(fetch, "_QUIET_S", 0.01)

    def read(partition: Partition, start: int, end: int, **options: Any) -> list[int]:
        monkeypatch.setattr(KafkaFetcher, "_consumer", lambda _: partition)
        for question in ("begin_offsets", "log_end_offsets"):
            answer = getattr(partition, question)
            monkeypatch.setattr(
                Broker, question, lambda broker, counts, answer=answer: answer(broker, counts)
            )
        fetcher = KafkaFetcher({"bootstrap.servers": "nowhere:1"}, "group", **options)
        chunks = fetcher.fetch(OffsetRange("in", 0, start, end))
        return [offset for records in chunks for offset in records.offsets]

    return read


Reading = Callable[..., list[int]]


@pytest.mark.parametrize("start", [1, 500])
def test_the_error_for_a_range_beyond_the_end_names_the_end_offset(reading: Reading, start: int) -> None:
    with pytest.raises(OffsetsLostError, match="ends at offset 3, but offsets up to 600"):
        reading(Partition(0, 3), start, 600)


@pytest.mark.parametrize(("start", "read"), [(1, [1, 2]), (500, [])])
def test_a_range_beyond_the_end_is_skipped_if_lost_records_may_be_skipped(
    reading: Reading, start: int, read: list[int]
) -> None:
    """Previously, each start repeated the same micro-batch and failed with the error that recommends this setting."""
    assert reading(Partition(0, 3), start, 600, skip_lost=True) == read


def test_deleted_records_are_skipped_but_records_before_them_are_read(reading: Reading) -> None:
    """One call of the client can return records and the event that the records after them were deleted."""
    partition = Partition(0, 9)
    partition.deleted_while_reading = 4
    assert reading(partition, 2, 9, skip_lost=True) == [2, 3, 5, 6, 7, 8]
    assert partition.assigned == [2, 5]
    with pytest.raises(OffsetsLostError, match=r"no longer has offset 2 .* its first offset is 5"):
        reading(partition, 2, 9)


def test_the_reader_waits_for_a_broker_that_cannot_report_the_offsets(reading: Reading) -> None:
    partition = Partition(5, 9)
    partition.unavailable_count = 3
    assert reading(partition, 2, 9, skip_lost=True) == [5, 6, 7, 8]
    partition.unavailable_count = 1_000_000
    with pytest.raises(BrokerUnavailableError, match="no records of topic 'in', partition 0, from offset 2"):
        reading(partition, 2, 9, skip_lost=True, patience_s=0.05)


def test_the_reader_does_not_wait_for_a_topic_that_does_not_exist(reading: Reading) -> None:
    partition = Partition(0, 9)
    partition.exists = False
    with pytest.raises(TopicNotFoundError):
        reading(partition, 0, 9)


def test_the_end_offset_is_checked_again_while_no_records_arrive(reading: Reading) -> None:
    """Previously, it was checked once. If no broker answered, the reader waited for records that no longer exist."""
    partition = Partition(0, 3)
    partition.unavailable_count = 2
    with pytest.raises(OffsetsLostError, match="ends at offset 3"):
        reading(partition, 1, 9)
