"""A dead-letter topic: its letters are read, and their records sent back.

Records are sent back in transactions that contain the group's positions, too: a replay that is killed has sent each record once or
not at all, and the next one goes on. A second replay that begins for the same group keeps the first from going on. A replay reads up to
where the topic ended when it began: a record that fails again at once is not sent back in the same run.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from millstream.core.model.errors import MillstreamError, TopicNotFoundError
from millstream.core.model.ids import TopicPartition
from millstream.core.model.record import Records
from millstream.core.ports import OffsetRange
from millstream.drivers.kafka.broker import Broker
from millstream.drivers.kafka.fetch import KafkaFetcher
from millstream.drivers.kafka.forwarding import Forwarder, Forwarding, GroupPosition
from millstream.edge.dead_letters.envelope import Chosen, Destination, Envelope, Guard, envelopes
from millstream.edge.dead_letters.replayed import Replayed
from millstream.edge.settings.settings import Settings

GROUP: str = "millstream-dlq-"
"""Prefix of the group of the replays of a topic."""


class LetterNotFoundError(MillstreamError):
    """There is no such dead letter."""


@dataclass(frozen=True)
class ReplayRequest:
    """What to send back.

    Attributes:
        to: The topic for all records; None sends each to its original topic.
        most_replays: How often a record may be sent back.
        again: Whether to send back letters that were replayed before, too.
        limit: How many to send back at most; None for all.
    """

    chosen: Chosen = field(default_factory=Chosen)
    to: str | None = None
    most_replays: int = 3
    again: bool = False
    limit: int | None = None


@dataclass
class Tally:
    """What a replay has done, or would do.

    Attributes:
        sent: Records by topic.
        refused: Letters that are not replayed, by reason.
        before: Chosen letters that were replayed before.
    """

    sent: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    before: int = 0


class DeadLetterQueue:
    """A dead-letter topic on a broker.

    Args:
        group: The group that stores what was replayed; None for that of the topic.

    Raises:
        TopicNotFoundError: If it does not exist.
        BrokerUnavailableError: If no broker answers.
    """

    def __init__(self, topic: str, settings: Settings, group: str | None = None) -> None:
        self.topic = topic
        self.group = group or GROUP + topic
        consumer, patience_s = settings.client("consumer", self.group), settings.request_timeout_ms / 1000
        self._broker = Broker(settings.client("admin", self.group), self.group, True, patience_s)
        self._fetcher = KafkaFetcher(consumer, self.group, True, patience_s, skip_lost=True)
        producer = settings.client("producer", self.group)
        self._forwarder = Forwarder(producer, consumer, self.group, patience_s)
        self._counts = self._broker.partition_counts([topic])
        if not self._counts:
            raise TopicNotFoundError(
                f"topic {topic!r} does not exist at {settings.bootstrap_servers}; give the name of a dead-letter topic"
            )
        self._ends = self._broker.end_offsets(self._counts)[topic]

    def replayed(self, *, settled: bool = False) -> dict[int, Replayed]:
        """Return what was replayed, by partition.

        Args:
            settled: Whether to wait for an open transaction. A killed replay leaves it open until it times out, or the next
                replay takes over; for display, that is not worth waiting for.
        """
        broker = replace(self._broker, read_committed=settled)
        committed = broker.committed(self._counts)
        found = {
            partition.partition: Replayed.read(partition.offset, partition.metadata or "")
            for partition in committed
        }
        begins = self._broker.begin_offsets(self._counts)[self.topic]
        return {
            number: found.get(number, Replayed()).with_range(0, begin) for number, begin in begins.items()
        }

    def read(self, *, pending: bool = False) -> Iterator[tuple[Envelope, bool]]:
        """Yield the current letters, and whether each was replayed.

        Args:
            pending: Whether to omit replayed letters.
        """
        for number, done in sorted(self.replayed().items()):
            for _, _, letters in self._pieces(number, done, everything=not pending):
                for letter in letters:
                    was = letter.offset in done
                    if not (was and pending):
                        yield letter, was

    def letter(self, partition: int, offset: int) -> tuple[Envelope, bool]:
        """Return one letter, and whether it was replayed.

        Raises:
            LetterNotFoundError: If it does not exist.
        """
        topic_partition = TopicPartition(self.topic, partition)
        begins = self._broker.begin_offsets(self._counts)[self.topic]
        if begins.get(partition, 0) <= offset < self._ends.get(partition, 0):
            for records in self._fetcher.fetch(OffsetRange(*topic_partition, offset, offset + 1)):
                for letter in envelopes(topic_partition, records):
                    return letter, offset in self.replayed()[partition]
        ranges = (
            f"{number}: {begins[number]} to {end - 1}"
            for number, end in sorted(self._ends.items())
            if end > begins[number]
        )
        raise LetterNotFoundError(
            f"topic {self.topic} has no record at partition {partition}, offset {offset}; offsets by partition: "
            f"{', '.join(ranges) or 'it is empty'}"
        )

    def tally(self, request: ReplayRequest) -> Tally:
        """Return what a replay would do now."""
        tally = Tally()
        guard = self._guard(request)
        for number, done in sorted(self.replayed().items()):
            for _, _, letters in self._pieces(number, done, everything=request.again):
                list(_sorted_out(letters, done, request, guard, tally))
        return tally

    def replay(self, request: ReplayRequest, progress: Callable[[Tally], None] = lambda _: None) -> Tally:
        """Send records back.

        Args:
            progress: Called after each transaction.

        Raises:
            DeliveryAbortedError: If another replay of the group has begun.
            MillstreamError: If the broker refuses a record.
        """
        tally = Tally()
        guard = self._guard(request)
        forwarding = self._forwarder.take_over()
        for number, done in sorted(self.replayed(settled=True).items()):
            for start, end, letters in self._pieces(number, done, everything=request.again):
                sending = list(_sorted_out(letters, done, request, guard, tally))
                left = {letter.offset for letter in letters if letter.offset not in done}
                done = done.with_range(start, end, left - {letter.offset for letter, _ in sending})
                if sending:
                    self._send(forwarding, sending, TopicPartition(self.topic, number), done)
                    progress(tally)
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
        forwarding.send(records, {partition: GroupPosition(done.position, done.metadata())})

    def _guard(self, request: ReplayRequest) -> Guard:
        return Guard(self.topic, self._broker.partition_counts(), request.to, request.most_replays)

    def _pieces(
        self, number: int, done: Replayed, *, everything: bool
    ) -> Iterator[tuple[int, int, list[Envelope]]]:
        """Yield the letters of a partition in parts, each with its first offset and the one after its last."""
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


def _sorted_out(
    letters: list[Envelope], done: Replayed, request: ReplayRequest, guard: Guard, tally: Tally
) -> Iterator[tuple[Envelope, Destination]]:
    """Yield the letters to send back, with their destinations; count them and the others."""
    for letter in letters:
        if not request.chosen.has(letter):
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
