"""The headers of dead letters: reads them, and removes them for a replay.

A dead letter is a record with headers that state where and why it failed: Millstream's headers (``millstream.error.*``) and those of
Kafka Streams (``__streams.errors.*``, KIP-1034). A dead letter of Kafka Streams has only the latter. A *replay* sends the record without
these headers back to the topic from which it was read, and counts the replays in a header. If the record fails again, its next dead
letter contains this header, which limits repeated replays.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from millstream.core.model.ids import TopicPartition
from millstream.core.model.record import Headers, Records

_OF_MILLSTREAM: Final = "millstream.error."
_OF_STREAMS: Final = "__streams.errors."
FAILURE_HEADERS: Final = f"headers of a failure ({_OF_MILLSTREAM}*, or {_OF_STREAMS}* of Kafka Streams)"
REPLAYS: Final = "millstream.replay.count"
"""Header with the number of replays of a record."""
REPLAYED_FROM: Final = "millstream.replay.from"
"""Header with the position of the replayed dead letter: topic, partition and offset."""
_CALL: Final = "call"
_REACHED: Final = "operator"
"""Value of ``millstream.error.record`` if the dead letter contains the record as it reached an operator, not as it was read."""
_INTERNAL: Final = ("-repartition", "-changelog")


@dataclass(frozen=True)
class Envelope:
    """A record of a dead-letter topic; key and value are bytes.

    Attributes:
        topic_partition: The partition of the dead-letter topic.
        timestamp: The timestamp of the failed record, ms since the epoch.
    """

    topic_partition: TopicPartition
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Headers

    @property
    def is_letter(self) -> bool:
        """Whether headers describe a failure. A record without such headers is not a dead letter."""
        return any(name.startswith((_OF_MILLSTREAM, _OF_STREAMS)) for name, _ in self.headers)

    @property
    def facts(self) -> dict[str, str]:
        """The values of the error headers, by their names after ``millstream.error.``; the last of equal names counts."""
        texts = _texts(self.headers, _OF_STREAMS)
        facts = {"error": _error(texts), "traceback": texts.get("stacktrace", "")}
        facts |= {name: texts[name] for name in ("topic", "partition", "offset") if name in texts}
        return facts | _texts(self.headers, _OF_MILLSTREAM)

    @property
    def source(self) -> TopicPartition | None:
        """Where the record was read; None if unknown, for example after a failure in a punctuation."""
        facts = self.facts
        topic, partition = facts.get("topic", ""), _number_in(facts.get("partition", ""))
        return TopicPartition(topic, partition) if topic and partition is not None else None

    @property
    def as_read(self) -> bool:
        """Whether key and value are the bytes that were read, rather than those that reached an operator."""
        facts = self.facts
        return facts.get("stage") != _CALL and facts.get("record") != _REACHED

    @property
    def own_headers(self) -> Headers:
        """The headers that do not describe a failure."""
        return tuple(
            header for header in self.headers if not header[0].startswith((_OF_MILLSTREAM, _OF_STREAMS))
        )

    @property
    def replays(self) -> int:
        """How many times the record was replayed before this failure."""
        return _number_in(_texts(self.headers, REPLAYS).get("", "")) or 0

    def sent_back(self) -> Headers:
        """Return the headers of the replayed record: its own headers, and those of the replay."""
        own = (header for header in self.own_headers if not header[0].startswith((REPLAYS, REPLAYED_FROM)))
        position = f"{self.topic_partition.topic}/{self.topic_partition.partition}/{self.offset}"
        return (*own, (REPLAYS, str(self.replays + 1).encode()), (REPLAYED_FROM, position.encode()))


def _number_in(text: str) -> int | None:
    """Return the number in a header, which anybody may have written; None if it is not one of at most nine digits."""
    return int(text) if text.isdecimal() and len(text) < 10 else None


@dataclass(frozen=True)
class LetterFilter:
    """A filter of dead letters. None and empty sets match everything.

    Attributes:
        error: A regular expression to search for in the error.
        since_ms: The earliest timestamp, inclusive, ms since the epoch.
        until_ms: The latest timestamp, exclusive, ms since the epoch.
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

    def matches(self, letter: Envelope) -> bool:
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
    """Where a record is replayed to, or why it is not replayed.

    Attributes:
        topic: Empty if the record is not sent.
        partition: -1 to choose by key.
        refusal: Why the record is not sent; empty if it is.
    """

    topic: str = ""
    partition: int = -1
    refusal: str = ""


@dataclass(frozen=True)
class Guard:
    """Decides where records are replayed to, and which are refused.

    Attributes:
        to: The topic for all records; None for the original topic of each.
    """

    letters: str
    partitions: Mapping[str, int]
    to: str | None = None
    most_replays: int = 3

    def destination(self, letter: Envelope) -> Destination:
        if not letter.is_letter:
            return Destination(refusal=f"not a dead letter: it has no {FAILURE_HEADERS}")
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
                refusal="the dead letter contains the record as it reached an operator, not as it was read; give a topic "
                "with --to"
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
