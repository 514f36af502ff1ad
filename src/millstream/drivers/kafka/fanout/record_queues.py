"""The records of a producer with fan-out that wait to be sent: a queue for each partition, so that partitions do not delay each other.

If the broker refuses a transaction because of one of its records, it does not reliably report which one: librdkafka gives the error to all
records of a request. So the records are *searched*: each partition is sent alone, in smaller and smaller parts, until a single record is
refused. The order within a partition stays.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from millstream.drivers.kafka.fanout.outgoing_records import Outgoing


@dataclass(slots=True)
class _Search:
    """The search for refused records among the first records of a queue.

    Attributes:
        left: How many of these records have been neither sent nor refused.
        size: How many are sent next.
        found: Whether a record was found. Then, the others are perhaps all accepted.
    """

    left: int
    size: int
    found: bool = False


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
        self._searches: dict[int, _Search] = {}

    def add(self, records: Iterable[Outgoing]) -> None:
        for record in records:
            self._queues.setdefault(record.topic_partition.partition, deque()).append(record)

    def has_records(self, held: Collection[int]) -> bool:
        """Return whether a partition that is not held back has records. May be called while records are added."""
        return any(queue and number not in held for number, queue in tuple(self._queues.items()))

    def take(self, most: int, held: Collection[int]) -> list[Outgoing]:
        """Take the first records of the partitions that are not held back, equally many of each that has enough.

        While a partition is searched, return only its records.
        """
        for number, search in self._searches.items():
            if number not in held:
                return [self._queues[number].popleft() for _ in range(min(search.size, search.left))]
        taken: list[Outgoing] = []
        apart = {*held, *self._searches}
        ready = [queue for number, queue in self._queues.items() if queue and number not in apart]
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

    def sent(self, records: list[Outgoing]) -> None:
        """Continue a search after records that were taken have been sent."""
        number = records[0].topic_partition.partition
        if search := self._searches.get(number):
            self._continue(number, search, len(records), search.size * (2 if search.found else 1))

    def refused(self, records: list[Outgoing]) -> Outgoing | None:
        """Return the record that the broker refuses, if only one was sent. Otherwise, put the records back and search it."""
        counts = Counter(record.topic_partition.partition for record in records)
        number = records[0].topic_partition.partition
        search = self._searches.get(number)
        if len(records) == 1:
            if search is not None:
                search.found = True
                self._continue(number, search, 1, 1)
            return records[0]
        self.put_back(records)
        if len(counts) > 1:
            self._searches |= {number: _Search(count, count) for number, count in counts.items()}
        else:
            left = len(records) if search is None else search.left
            self._searches[number] = _Search(left, len(records) // 2)
        return None

    def _continue(self, number: int, search: _Search, done: int, size: int) -> None:
        search.left, search.size = search.left - done, size
        if not search.left:
            del self._searches[number]

    def take_all(self) -> Iterator[Outgoing]:
        queues, self._queues = self._queues, {}
        return chain(*queues.values())
