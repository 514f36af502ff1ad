"""A dead-letter topic: reads its dead letters, and replays them by sending their records back.

A replay sends records in transactions that also contain the group's positions. An interrupted replay has sent each record once or not at
all, and the next replay continues after it. A second replay of the same group fences the first. A replay reads up to the end offsets at
its start, so a record that fails again immediately is not replayed in the same run.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from millstream.core.model.errors import MillstreamError, SettingsError, TopicNotFoundError
from millstream.core.model.ids import TopicPartition
from millstream.core.model.record import Records
from millstream.core.ports import OffsetRange
from millstream.drivers.kafka.forwarding import Forwarder, Forwarding
from millstream.edge.dead_letters.envelope import (
    FAILURE_HEADERS,
    Destination,
    Envelope,
    Guard,
    LetterFilter,
    envelopes,
)
from millstream.edge.dead_letters.replayed import Replayed
from millstream.edge.records.chosen_records import check_partitions
from millstream.edge.records.topic_records import broker_of, fetcher_of
from millstream.edge.settings.settings import Settings

GROUP: str = "millstream-dlq-"
"""Prefix of the group that stores the replays of a topic."""


class LetterNotFoundError(MillstreamError):
    """There is no such dead letter."""


@dataclass(frozen=True)
class ReplayRequest:
    """What to replay.

    Attributes:
        to: The topic for all records; None for the original topic of each.
        most_replays: How many times a record may be replayed.
        again: Whether to replay dead letters that were already replayed, too.
        limit: The maximum number of records to send; None for all.
    """

    wanted: LetterFilter = field(default_factory=LetterFilter)
    to: str | None = None
    most_replays: int = 3
    again: bool = False
    limit: int | None = None


@dataclass
class Tally:
    """What a replay has done, or would do.

    Attributes:
        refused: The number of dead letters that cannot be replayed, by reason.
        before: The number of wanted dead letters that were already replayed.
    """

    sent: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    before: int = 0


class DeadLetterQueue:
    """A dead-letter topic on a broker.

    Args:
        group: The group that stores what was replayed; None for the default group of the topic.

    Raises:
        TopicNotFoundError: If the topic does not exist.
        BrokerUnavailableError: If no broker answers.
    """

    def __init__(self, topic: str, settings: Settings, group: str | None = None) -> None:
        self.topic = topic
        self.group = group or GROUP + topic
        self._broker, self._fetcher = broker_of(settings, self.group), fetcher_of(settings, self.group)
        self._forwarder = Forwarder(
            settings.client("producer", self.group),
            settings.client("consumer", self.group),
            self.group,
            settings.request_timeout_ms / 1000,
        )
        self._counts = self._broker.partition_counts([topic])
        if not self._counts:
            raise TopicNotFoundError(
                f"topic {topic!r} does not exist at {settings.bootstrap_servers}; give the name of a dead-letter topic"
            )
        self._ends = self._broker.end_offsets(self._counts)[topic]

    def check(self, wanted: LetterFilter, to: str | None = None) -> None:
        """Check that a filter names only partitions of this topic, and that records can be sent to a topic.

        Args:
            to: The topic for all records; None for the original topic of each.

        Raises:
            SettingsError: If a partition does not exist, or the topic is this one.
            TopicNotFoundError: If the topic does not exist.
        """
        check_partitions(wanted.partitions, self._counts)
        if to == self.topic:
            raise SettingsError(f"--to {to!r} is the dead-letter topic itself; name another topic")
        if to is not None and to not in self._broker.partition_counts([to]):
            raise TopicNotFoundError(
                f"--to {to!r} names a topic that does not exist; create it, or correct its name"
            )

    def replayed(self, *, settled: bool = False) -> dict[int, Replayed]:
        """Return what was replayed, by partition.

        Args:
            settled: Whether to wait for an open transaction. A killed replay leaves its transaction open until it times out or the next
                replay takes over. A display need not wait for that.
        """
        broker = replace(self._broker, read_committed=settled)
        committed = broker.committed_partitions(self._counts)
        found = {
            partition.partition: Replayed.read(partition.offset, partition.metadata or "")
            for partition in committed
        }
        begins = self._broker.begin_offsets(self._counts)[self.topic]
        return {
            number: found.get(number, Replayed()).with_range(0, begin) for number, begin in begins.items()
        }

    def read(self, *, pending: bool = False) -> Iterator[tuple[Envelope, bool]]:
        """Yield the current records, each with whether it was replayed."""
        for number, done in sorted(self.replayed().items()):
            for _, _, letters in self._pieces(number, done, everything=not pending):
                for letter in letters:
                    was = letter.offset in done
                    if not (was and pending):
                        yield letter, was

    def letter(self, partition: int, offset: int) -> tuple[Envelope, bool]:
        """Return one dead letter, and whether it was replayed.

        Raises:
            LetterNotFoundError: If it does not exist, or the record is not a dead letter.
        """
        topic_partition = TopicPartition(self.topic, partition)
        begins = self._broker.begin_offsets(self._counts)[self.topic]
        if begins.get(partition, 0) <= offset < self._ends.get(partition, 0):
            for records in self._fetcher.fetch(OffsetRange(*topic_partition, offset, offset + 1)):
                for letter in envelopes(topic_partition, records):
                    if not letter.is_letter:
                        raise LetterNotFoundError(
                            f"the record of topic {self.topic} in partition {partition} at offset {offset} is not a dead letter: it "
                            f"has no {FAILURE_HEADERS}"
                        )
                    return letter, offset in self.replayed()[partition]
        ranges = (
            f"{number}: {begins[number]} to {end - 1}"
            for number, end in sorted(self._ends.items())
            if end > begins[number]
        )
        raise LetterNotFoundError(
            f"topic {self.topic} has no record in partition {partition} at offset {offset}; available offsets by "
            f"partition: {', '.join(ranges) or 'it is empty'}"
        )

    def tally(self, request: ReplayRequest) -> Tally:
        tally = Tally()
        guard = self._guard(request)
        for number, done in sorted(self.replayed().items()):
            for _, _, letters in self._pieces(number, done, everything=request.again):
                list(_to_replay(letters, done, request, guard, tally))
        return tally

    def replay(self, request: ReplayRequest) -> Tally:
        """Replay dead letters.

        Raises:
            DeliveryAbortedError: If another replay of the group has begun.
        """
        tally = Tally()
        guard = self._guard(request)
        forwarding = Forwarding(self._forwarder)
        for number, done in sorted(self.replayed(settled=True).items()):
            for start, end, letters in self._pieces(number, done, everything=request.again):
                sending = list(_to_replay(letters, done, request, guard, tally))
                left = {letter.offset for letter in letters if letter.offset not in done}
                done = done.with_range(start, end, left - {letter.offset for letter, _ in sending})
                if sending:
                    self._send(forwarding, sending, TopicPartition(self.topic, number), done)
        return tally

    def _send(
        self,
        forwarding: Forwarding,
        sending: list[tuple[Envelope, Destination]],
        partition: TopicPartition,
        done: Replayed,
    ) -> None:
        records: defaultdict[str, Records] = defaultdict(lambda: Records(headers=[], partitions=[]))
        for letter, destination in sending:
            some = records[destination.topic]
            some.keys.append(letter.key)
            some.values.append(letter.value)
            some.timestamps.append(letter.timestamp)
            assert some.headers is not None
            assert some.partitions is not None
            some.headers.append(letter.sent_back())
            some.partitions.append(destination.partition)
        forwarding.send(records, {partition: (done.position, done.metadata())})

    def _guard(self, request: ReplayRequest) -> Guard:
        return Guard(self.topic, self._broker.partition_counts(), request.to, request.most_replays)

    def _pieces(
        self, number: int, done: Replayed, *, everything: bool
    ) -> Iterator[tuple[int, int, list[Envelope]]]:
        """Yield the dead letters of a partition in parts, each with its start offset and its end offset (exclusive)."""
        begins: Mapping[int, int] = self._broker.begin_offsets(self._counts)[self.topic]
        start, last = begins[number] if everything else max(begins[number], done.position), self._ends[number]
        partition = TopicPartition(self.topic, number)
        if start >= last:
            return
        for records in self._fetcher.fetch(OffsetRange(*partition, start, last)):
            if len(records):
                end = records.offsets[-1] + 1
                yield start, end, list(envelopes(partition, records))
                start = end


def _to_replay(
    letters: list[Envelope], done: Replayed, request: ReplayRequest, guard: Guard, tally: Tally
) -> Iterator[tuple[Envelope, Destination]]:
    """Yield the dead letters to replay, with their destinations; count these and the others in ``tally``."""
    for letter in letters:
        if not request.wanted.matches(letter):
            continue
        if letter.offset in done and not request.again:
            tally.before += 1
            continue
        destination = guard.destination(letter)
        if destination.refusal:
            tally.refused[destination.refusal] += 1
        elif request.limit is None or tally.sent.total() < request.limit:
            tally.sent[destination.topic] += 1
            yield letter, destination
