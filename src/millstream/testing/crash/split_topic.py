"""A topic whose partition is split and merged while the application reads it.

Its records are in several logs: the topic and the fan-out topics beside it. Producers write them in transactions, whose markers also have
offsets, so records are counted by reading the logs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import Final, final

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from millstream.core.fanout.epochs import primary_of
from millstream.testing._broker import QUIET_CLIENT

_ANSWER_S: Final = 2.0
_READ_AT_ONCE: Final = 1_000


@final
class SplitLogs:
    """The offsets of the records in all logs of a topic. Use it from one thread."""

    def __init__(self, servers: str, topic: str) -> None:
        self._topic = topic
        self._offsets: dict[tuple[str, int], list[int]] = {}
        """The offsets of the records, by topic and partition."""
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": f"{topic}-records",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                **QUIET_CLIENT,
            }
        )

    def partitions(self) -> list[TopicPartition]:
        """Return the partitions of the topic and of its fan-out topics, and read on in all of them.

        Raises:
            KafkaException: If no broker answers in time.
        """
        counts = _logs(self._consumer, self._topic)
        found = [
            TopicPartition(name, number, OFFSET_BEGINNING)
            for name, count in counts.items()
            for number in range(count)
        ]
        if new := [log for log in found if (log.topic, log.partition) not in self._offsets]:
            self._consumer.incremental_assign(new)
            self._offsets.update({(log.topic, log.partition): [] for log in new})
        while messages := self._consumer.consume(_READ_AT_ONCE, timeout=0):
            for message in messages:
                if message.error() is None:
                    log = message.topic() or "", message.partition() or 0
                    self._offsets[log].append(message.offset() or 0)
        return found

    def records_before(self, offsets: Mapping[tuple[str, int], int]) -> int:
        """Return how many records are before the given offsets, by topic and partition."""
        return sum(bisect_left(self._offsets[log], offset) for log, offset in offsets.items())

    def close(self) -> None:
        self._consumer.close()


def logs_of(servers: str, topic: str) -> list[str]:
    """Return a topic and its fan-out topics.

    Raises:
        KafkaException: If no broker answers in time.
    """
    return sorted(_logs(AdminClient({"bootstrap.servers": servers, **QUIET_CLIENT}), topic))


def _logs(client: Consumer | AdminClient, topic: str) -> dict[str, int]:
    """Return the numbers of partitions of a topic and of its fan-out topics."""
    return {
        name: len(found.partitions)
        for name, found in client.list_topics(timeout=_ANSWER_S).topics.items()
        if name == topic or ((split := primary_of(name)) is not None and split.topic == topic)
    }
