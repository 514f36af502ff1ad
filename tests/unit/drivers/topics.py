"""A topic in this process instead of on a broker; it can be planned, fetched, truncated and recreated."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

from millstream.core.model.errors import BrokerUnavailableError
from millstream.core.model.ids import TopicPartition
from millstream.core.model.positions import Offsets
from millstream.core.model.record import Records
from millstream.core.ports import OffsetRange, TimedOffset, TopicFacts

Entry = tuple[bytes | None, bytes | None, int]
"""Key, value and timestamp."""


class FakeTopic:
    """One topic. Implements ``TopicReader`` and ``Fetcher`` as far as tests need them.

    Attributes:
        entries: Per partition, all records ever written.
        first: Per partition, the first offset that is not deleted.
        open_records: Per partition, how many of the last records belong to an open transaction.
        id: The broker's id of the topic.
        available: Whether the broker answers.
        fetched: The ranges that were read.
    """

    def __init__(self, name: str, partitions: int, chunk_size: int = 2) -> None:
        self.name = name
        self.entries: list[list[Entry]] = [[] for _ in range(partitions)]
        self.first = [0] * partitions
        self.open_records = [0] * partitions
        self.id = "first"
        self.available = True
        self.fetched: list[OffsetRange] = []
        self._chunk_size = chunk_size

    def write(self, key: str | None, value: str | bytes | None, timestamp: int = 0) -> None:
        """Write a record to the partition of its key."""
        raw = None if key is None else key.encode()
        data = value.encode() if isinstance(value, str) else value
        self.entries[zlib.crc32(raw or b"") % len(self.entries)].append((raw, data, timestamp))

    @property
    def ends(self) -> dict[int, int]:
        """The end offsets: how far the topic can be read now."""
        return self.end_offsets({self.name: len(self.entries)})[self.name]

    def connect(self) -> None:
        """Do nothing."""

    def fetch(self, planned: OffsetRange) -> Iterator[Records]:
        self.fetched.append(planned)
        first = max(planned.start, self.first[planned.partition])
        for start in range(first, planned.end, self._chunk_size):
            end = min(start + self._chunk_size, planned.end)
            keys, values, timestamps = zip(*self.entries[planned.partition][start:end], strict=True)
            yield Records(list(keys), list(values), list(timestamps), list(range(start, end)))

    def fetch_all(self, ranges: Sequence[OffsetRange]) -> Iterator[tuple[OffsetRange, Iterator[Records]]]:
        for planned in ranges:
            yield planned, self.fetch(planned)

    def sample_bytes(self, planned: OffsetRange) -> float | None:
        return None

    def begin_offsets(self, partitions: Mapping[str, int]) -> Offsets:
        return {self.name: dict(enumerate(self.first))} if self.name in partitions else {}

    def end_offsets(self, partitions: Mapping[str, int]) -> Offsets:
        ends = self.log_end_offsets(partitions)
        return {t: {p: end - self.open_records[p] for p, end in ends[t].items()} for t in ends}

    def log_end_offsets(self, partitions: Mapping[str, int]) -> Offsets:
        if not self.available:
            raise BrokerUnavailableError("nobody answers")
        if self.name not in partitions:
            return {}
        return {self.name: {p: len(entries) for p, entries in enumerate(self.entries)}}

    def topic_facts(self, topics: Iterable[str]) -> dict[str, TopicFacts]:
        return {self.name: TopicFacts(self.id, len(self.entries))} if self.name in set(topics) else {}

    def partition_counts(self, topics: Iterable[str]) -> dict[str, int]:
        return {self.name: len(self.entries)} if self.name in set(topics) else {}

    def committed_offsets(self, partitions: Mapping[str, int]) -> Offsets:
        return {}

    def reset_offsets(self, partitions: Mapping[str, int]) -> Offsets:
        return {}

    def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, TimedOffset]:
        return {}

    def newest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, TimedOffset]:
        return {}
