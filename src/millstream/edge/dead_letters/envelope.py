"""The headers of dead letters, read and taken off again.

A dead letter is a record with headers that say where and why it failed: Millstream's (``millstream.error.*``) and those of Kafka
Streams (``__streams.errors.*``, KIP-1034). A letter of Kafka Streams has only the latter. A *replay* sends the record, without these
headers, back to the topic from which it was read, and counts in a header how often that has happened. If it fails again, this header
comes back with its next dead letter, which is how a loop is noticed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from millstream.core.model.ids import TopicPartition
from millstream.core.model.record import Headers, Records

OURS: Final = "millstream.error."
THEIRS: Final = "__streams.errors."
REPLAYS: Final = "millstream.replay.count"
"""Header with the number of replays of a record."""
REPLAYED_FROM: Final = "millstream.replay.from"
"""Header with the dead letter that a record was replayed from: topic, partition and offset."""
_CALL: Final = "call"
_REACHED: Final = "operator"
"""Value of ``millstream.error.record`` for letters with the record as it reached an operator, not as it was read."""
_INTERNAL: Final = ("-repartition", "-changelog")


@dataclass(frozen=True)
class Envelope:
    """A dead letter; key and value are bytes.

    Attributes:
        topic_partition: Its partition of the dead-letter topic.
        timestamp: Timestamp of the record that failed, ms since the epoch.
    """

    topic_partition: TopicPartition
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Headers

    @property
    def facts(self) -> dict[str, str]:
        """The headers' facts, by the names after ``millstream.error.``; of equal names, the last counts."""
        texts = _texts(self.headers, THEIRS)
        facts = {"error": _error(texts), "traceback": texts.get("stacktrace", "")}
        facts |= {name: texts[name] for name in ("topic", "partition", "offset") if name in texts}
        return facts | _texts(self.headers, OURS)

    @property
    def source(self) -> TopicPartition | None:
        """Where the record was read; None if unknown, as after a failure in a punctuator."""
        facts = self.facts
        topic, partition = facts.get("topic", ""), facts.get("partition", "")
        return TopicPartition(topic, int(partition)) if topic and partition.isdecimal() else None

    @property
    def as_read(self) -> bool:
        """Whether key and value are the bytes that were read, not those that reached an operator."""
        facts = self.facts
        return facts.get("stage") != _CALL and facts.get("record") != _REACHED

    @property
    def replays(self) -> int:
        """How often the record had been replayed before it failed."""
        count = _texts(self.headers, REPLAYS).get("", "0")
        return int(count) if count.isdecimal() else 0

    def sent_back(self) -> Headers:
        """Return the headers for the replayed record: its own, and those of the replay."""
        own = tuple(
            header
            for header in self.headers
            if not header[0].startswith((OURS, THEIRS, REPLAYS, REPLAYED_FROM))
        )
        position = f"{self.topic_partition.topic}/{self.topic_partition.partition}/{self.offset}"
        return (*own, (REPLAYS, str(self.replays + 1).encode()), (REPLAYED_FROM, position.encode()))


@dataclass(frozen=True)
class Chosen:
    """A filter of dead letters; None and empty choose all.

    Attributes:
        source: The topic that the record was read from.
        error: A regular expression to search for in the error.
        key: The key as text.
        since_ms: The earliest timestamp, ms since the epoch.
        until_ms: The exclusive latest timestamp, ms since the epoch.
    """

    stage: str | None = None
    node: str | None = None
    source: str | None = None
    error: re.Pattern[str] | None = None
    key: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    partitions: frozenset[int] = frozenset()
    offsets: frozenset[int] = frozenset()

    def has(self, letter: Envelope) -> bool:
        """Return whether a dead letter passes the filter."""
        facts = letter.facts
        same = (
            (self.stage, facts.get("stage", "")),
            (self.node, facts.get("node", "")),
            (self.source, facts.get("topic", "")),
            (self.key, None if letter.key is None else letter.key.decode(errors="replace")),
        )
        return (
            all(wanted is None or wanted == found for wanted, found in same)
            and (self.error is None or self.error.search(facts["error"]) is not None)
            and (self.since_ms is None or letter.timestamp >= self.since_ms)
            and (self.until_ms is None or letter.timestamp < self.until_ms)
            and (not self.partitions or letter.topic_partition.partition in self.partitions)
            and (not self.offsets or letter.offset in self.offsets)
        )


@dataclass(frozen=True)
class Destination:
    """Where a record is sent back, or why it is not.

    Attributes:
        topic: Empty if it is not sent.
        partition: -1 chooses by key.
        refusal: Empty if it is sent.
    """

    topic: str = ""
    partition: int = -1
    refusal: str = ""


@dataclass(frozen=True)
class Guard:
    """Decides where records are sent back, and which are not.

    Attributes:
        letters: The dead-letter topic.
        to: The topic for all records; None sends each to its original topic.
        most_replays: How often a record may be sent back.
    """

    letters: str
    partitions: Mapping[str, int]
    to: str | None = None
    most_replays: int = 3

    def destination(self, letter: Envelope) -> Destination:
        """Return where a record is sent back, or why it is not."""
        if letter.replays >= self.most_replays:
            return Destination(
                refusal=f"replayed {letter.replays} times before, and failed again (--max-replays {self.most_replays})"
            )
        if self.to is not None:
            return self._existing(Destination(self.to))
        source = letter.source
        if source is None:
            return Destination(refusal="no header names the topic of the record; give one with --to")
        if not letter.as_read:
            return Destination(
                refusal="the letter has the record as it reached an operator, not as it was read; give a topic with --to"
            )
        if source.topic.endswith(_INTERNAL):
            return Destination(
                refusal=f"it was read from the internal topic {source.topic}; give a topic with --to"
            )
        return self._existing(Destination(*source))

    def _existing(self, wanted: Destination) -> Destination:
        if wanted.topic == self.letters:
            return Destination(refusal="it would be sent to the dead-letter topic itself")
        count = self.partitions.get(wanted.topic)
        if count is None:
            return Destination(refusal=f"topic {wanted.topic} does not exist")
        return wanted if wanted.partition < count else Destination(wanted.topic)


def envelopes(partition: TopicPartition, records: Records) -> Iterator[Envelope]:
    """Yield records of a partition as dead letters."""
    headers = records.headers or [()] * len(records)
    rows = zip(records.offsets, records.keys, records.values, records.timestamps, headers)
    for row in rows:
        yield Envelope(partition, *row)


def _texts(headers: Headers, prefix: str) -> dict[str, str]:
    return {
        name.removeprefix(prefix): (value or b"").decode(errors="replace")
        for name, value in headers
        if name.startswith(prefix)
    }


def _error(texts: Mapping[str, str]) -> str:
    kind, message = texts.get("exception", ""), texts.get("message", "")
    return f"{kind.rpartition('.')[2]}: {message}" if kind else message
