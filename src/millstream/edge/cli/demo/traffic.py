"""The two ends of the demo: one thread writes lines to a topic, and one reads the counts.

Both are ordinary Kafka clients, independent of Spark. The reader keeps the last count of each word, as any reader of a changelog does:
a later record replaces an earlier record with the same key.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from millstream.core.model.errors import MillstreamError

LINES_PER_S = 5_000.0
"""Writing rate: slow enough to see several micro-batches, fast enough to keep Spark busy."""

_TICK_S = 0.02
_UNACKNOWLEDGED = 50_000  # half the capacity of the producer's queue
_POLL_S = 0.1
_POLL_RECORDS = 2_000
_ANSWER_S = 10.0
_QUIET = {"log_level": 0}


class DemoError(MillstreamError):
    """The demo cannot continue."""


class LineFeeder(threading.Thread):
    """Writes lines at a constant rate. Its producer connects early, so that the first line need not wait for the connection."""

    def __init__(self, servers: str, topic: str, lines: Sequence[str], stop: threading.Event) -> None:
        super().__init__(name="millstream-demo-feeder", daemon=True)
        self._producer = Producer(
            {"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 5, **_QUIET}
        )
        self._topic = topic
        self._lines = lines
        self._halt = stop
        self.written = 0
        self.error: Exception | None = None

    @property
    def is_done(self) -> bool:
        return self.written == len(self._lines)

    def run(self) -> None:
        try:
            self._write()
            self._producer.flush(_ANSWER_S)
        except Exception as error:
            self.error = error

    def _write(self) -> None:
        began, sent = monotonic(), 0
        while sent < len(self._lines) and not self._halt.is_set():
            due = int((monotonic() - began) * LINES_PER_S) + 1
            for line in self._lines[sent : min(due, self.written + _UNACKNOWLEDGED)]:
                self._producer.produce(self._topic, line.encode(), on_delivery=self._delivered)
                sent += 1
            self._producer.poll(_TICK_S)

    def halt(self) -> None:
        """Wait until writing has ended; set ``stop`` first. Harmless if writing never began."""
        if self.is_alive():
            self.join()

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is None:
            self.written += 1
        else:
            self.error = DemoError(f"a line could not be written to {self._topic!r}: {error}")


class Reader(threading.Thread):
    """Reads a topic of words and counts from the beginning, and keeps the last count of each word."""

    def __init__(self, servers: str, topic: str, partitions: int) -> None:
        super().__init__(name="millstream-demo-reader", daemon=True)
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "millstream-demo-reader",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 50,
                **_QUIET,
            }
        )
        self._consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        self._lock = threading.Lock()
        self._halt = threading.Event()
        self._counts: dict[str, int] = {}
        self._positions = dict.fromkeys(range(partitions), 0)
        self.error: Exception | None = None

    def counts(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)

    def positions(self) -> dict[int, int]:
        with self._lock:
            return dict(self._positions)

    def run(self) -> None:
        try:
            while not self._halt.is_set():
                self._take(self._consumer.consume(_POLL_RECORDS, _POLL_S))
        except Exception as error:
            self.error = error

    def halt(self) -> None:
        """Stop reading, and close the consumer; harmless if reading never began."""
        self._halt.set()
        if self.is_alive():
            self.join()
        self._consumer.close()

    def _take(self, messages: list[Any]) -> None:
        with self._lock:
            for message in messages:
                if message.error() is not None:
                    raise KafkaException(message.error())
                self._counts[message.key().decode()] = int.from_bytes(message.value(), "big", signed=True)
                self._positions[message.partition()] = message.offset() + 1


class Observer:
    """Reads the progress of a group and the end offsets of a topic. Used by one thread at a time.

    It has its own consumer. Another thread's consumer is not suitable: a client executes one call at a time, so a thread that polls
    continuously blocks all others. The admin client is not suitable either: its ``list_consumer_group_offsets`` crashes the process while
    the group's coordinator moves or has just been created (librdkafka issue 5040).
    """

    def __init__(self, servers: str, group: str, *, read: str, written: str, partitions: int) -> None:
        self._consumer = Consumer(
            {"bootstrap.servers": servers, "group.id": group, "enable.auto.commit": False, **_QUIET}
        )
        self._read = [TopicPartition(read, partition) for partition in range(partitions)]
        self._written = [TopicPartition(written, partition) for partition in range(partitions)]

    def committed_sum(self) -> int:
        """Return the sum of the group's committed offsets over all partitions; 0 while unknown."""
        try:
            found = self._consumer.committed(self._read, timeout=_ANSWER_S)
        except KafkaException:
            return 0
        return sum(max(partition.offset, 0) for partition in found)

    def ends(self) -> dict[int, int]:
        return {
            partition.partition: self._consumer.get_watermark_offsets(partition, _ANSWER_S)[1]
            for partition in self._written
        }

    def close(self) -> None:
        self._consumer.close()


@dataclass(frozen=True)
class Traffic:
    """All Kafka clients except the application."""

    feeder: LineFeeder
    reader: Reader
    observer: Observer
