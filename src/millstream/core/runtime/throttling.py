"""Throttling: limits the records per second of a topic, over the planned micro-batches.

A topic with a rate has a *token bucket*: it fills at the rate, and each planned record takes a token. Tokens that a plan does not use are
kept for at most one second. The time between two plans counts in full, so a throttled topic reaches its rate however long micro-batches
take. Between two plans that are t seconds apart, at most ``rate * t`` records and a burst of one second are planned. All numbers are
integer thousandths of a token, so that rounding cannot starve a slow rate.

Partitions share the tokens fairly, and the fan-out topics of a split partition share those of its topic. There are often fewer tokens
than partitions, because an idle planner runs many times per second. Indivisible tokens are therefore assigned round-robin, starting
behind the partition that got the last one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from millstream.core.model.ids import TopicPartition
from millstream.core.model.positions import Offsets, flat, nested

_TOKEN = 1_000


@dataclass
class _Bucket:
    """Thousandths of tokens, the time of the last update (ms, monotonic clock), and the last partition that got an odd token."""

    content: int
    updated_ms: int
    held_back: bool = False
    last: TopicPartition | None = None


class Throttle:
    """The token buckets of a query. Owned by its planner, which calls ``advance``, then ``limited`` and ``taken``.

    Args:
        split: By fan-out topic, the topic whose rate includes it.
    """

    def __init__(self, split: Mapping[str, str] | None = None) -> None:
        self._split = split or {}
        self._buckets: dict[str, _Bucket] = {}
        self._held_back_ms = 0

    def advance(self, rates: Mapping[str, int], now_ms: int) -> None:
        """Advance time.

        Args:
            rates: Records per second of each throttled topic, at least 1. A new topic starts with a full bucket.
            now_ms: Time of a monotonic clock, ms.
        """
        for topic in [topic for topic in self._buckets if topic not in rates]:
            del self._buckets[topic]
        for topic, rate in rates.items():
            bucket = self._buckets.setdefault(topic, _Bucket(rate * _TOKEN, now_ms))
            passed = now_ms - bucket.updated_ms
            self._held_back_ms += passed if bucket.held_back else 0
            bucket.content = min(bucket.content, rate * _TOKEN) + rate * passed
            bucket.updated_ms, bucket.held_back = now_ms, False

    def limited(self, positions: Offsets, ends: Offsets) -> Offsets:
        """Lower the ends of throttled topics to what their buckets allow, shared fairly among partitions.

        Args:
            ends: Offset up to which each partition could be read. Missing topics stay missing.
        """
        lowered: dict[TopicPartition, int] = {}
        for bucket, start in self._starts(positions):
            left = {
                p: max(ends[p.topic][p.partition] - offset, 0)
                for p, offset in start.items()
                if _has_offset(ends, p)
            }
            shares, bucket.last = _shared(left, bucket.content // _TOKEN, bucket.last)
            bucket.held_back = shares != left
            lowered.update({p: start[p] + share for p, share in shares.items()})
        return {**ends, **nested(lowered)}

    def take_tokens(self, positions: Offsets, planned: Offsets) -> None:
        for bucket, start in self._starts(positions):
            ahead = sum(
                planned[p.topic][p.partition] - offset
                for p, offset in start.items()
                if _has_offset(planned, p)
            )
            bucket.content -= ahead * _TOKEN

    def _starts(self, positions: Offsets) -> Iterator[tuple[_Bucket, dict[TopicPartition, int]]]:
        """Yield each bucket with the positions of the partitions that share it."""
        sharing: dict[str, list[str]] = {topic: [] for topic in self._buckets}
        for topic in positions:
            if (limited := self._split.get(topic, topic)) in sharing:
                sharing[limited].append(topic)
        for topic, topics in sharing.items():
            yield self._buckets[topic], flat({each: positions[each] for each in topics})

    def take_held_back_ms(self) -> int:
        """Return the time (ms) since the last call during which throttled topics had more records than their rates allowed."""
        taken, self._held_back_ms = self._held_back_ms, 0
        return taken


def _has_offset(offsets: Offsets, partition: TopicPartition) -> bool:
    return partition.partition in offsets.get(partition.topic, {})


def _shared(
    left: Mapping[TopicPartition, int], tokens: int, last: TopicPartition | None
) -> tuple[dict[TopicPartition, int], TopicPartition | None]:
    """Share tokens among partitions and pass unneeded ones to the others; return the shares and who got the last odd token."""
    shares = dict.fromkeys(left, 0)
    wanting = sorted((p for p in left if left[p]), key=lambda p: (last is not None and p <= last, p))
    while wanting and tokens >= len(wanting):
        each = min(tokens // len(wanting), min(left[p] - shares[p] for p in wanting))
        for p in wanting:
            shares[p] += each
        tokens -= each * len(wanting)
        wanting = [p for p in wanting if shares[p] < left[p]]
    odd = wanting[: max(tokens, 0)]
    for p in odd:
        shares[p] += 1
    return shares, odd[-1] if odd else last
