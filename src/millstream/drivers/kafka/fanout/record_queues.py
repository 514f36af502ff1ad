"""The records of a producer with fan-out that wait to be sent: a queue for each partition, so that partitions do not delay each other."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from itertools import chain

from millstream.drivers.kafka.fanout.producer_sessions import Outgoing


class RecordQueues:
    """The queues of a producer. Callers synchronise their calls.

    Example:
        >>> from millstream.core.model.ids import TopicPartition
        >>> queues = RecordQueues()
        >>> queues.add(Outgoing(TopicPartition("orders", n), None, b"%d" % n, 0, None, None) for n in (0, 0, 0, 0, 1))
        >>> [record.value for record in queues.take(2, held=())]
        [b'0', b'1']
    """

    def __init__(self) -> None:
        self._queues: dict[int, deque[Outgoing]] = {}

    def add(self, records: Iterable[Outgoing]) -> None:
        for record in records:
            self._queues.setdefault(record.topic_partition.partition, deque()).append(record)

    def has_records(self, held: Collection[int]) -> bool:
        """Return whether a partition that is not held back has records. May be called while records are added."""
        return any(queue and number not in held for number, queue in tuple(self._queues.items()))

    def take(self, most: int, held: Collection[int]) -> list[Outgoing]:
        """Take the first records of the partitions that are not held back, equally many of each that has enough."""
        taken: list[Outgoing] = []
        ready = [queue for number, queue in self._queues.items() if queue and number not in held]
        while ready and len(taken) < most:
            share = max(1, (most - len(taken)) // len(ready))
            for queue in ready[: most - len(taken)]:
                taken.extend(queue.popleft() for _ in range(min(share, len(queue))))
            ready = [queue for queue in ready if queue]
        return taken

    def put_back(self, records: list[Outgoing]) -> None:
        """Put records that were taken in front of the others again."""
        for record in reversed(records):
            self._queues[record.topic_partition.partition].appendleft(record)

    def take_all(self) -> Iterator[Outgoing]:
        queues, self._queues = self._queues, {}
        return chain(*queues.values())
