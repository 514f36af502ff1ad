"""What is still to be written to repartition topics: the time that none of it is before.

A task that reads a repartition topic and another topic is a micro-batch behind those that write it: what they are given now it
reads with the next one. While they work through a backlog, read up to one time in each micro-batch, that is known: what the micro-batch
before left on the broker was not before its time, so nothing that is written now is, either. A micro-batch that begins a backlog
cannot know it; then nothing is taken before the topic's next records, one micro-batch later. Where the writers have read all there
was, or read without such a time, nobody knows what they will write, and a task goes on without it, as Kafka Streams does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

Facts = Mapping[str, Any]


def until_written(writers: Mapping[str, Collection[str]], before: Facts | None, now: Facts) -> dict[str, int]:
    """Return, per repartition topic of which it is known, the time that nothing still to be written is before (ms).

    Args:
        writers: The topics that each one is written from, those of the first ones first.
        before: The facts of the micro-batch before this one, None if there was none.
        now: What is left behind this one.

    Example:
        >>> left = {"lag": {"in": {"0": 9}}, "until": {"in": {"0": 70}}, "paused": []}
        >>> until_written({"again": ["in"]}, left, left), until_written({"again": ["in"]}, None, left)
        ({'again': 70}, {'again': 0})
    """
    found: dict[str, int] = {}
    for topic, feeders in writers.items():
        times = [] if before is None else _left(feeders, before, before.get("written", {}))
        if not times:
            times = [at and 0 for at in _left(feeders, now, found)]
        known = [at for at in times if at is not None]
        if known and len(known) == len(times):
            found[topic] = min(known)
    return found


def _left(feeders: Collection[str], facts: Facts, written: Mapping[str, int]) -> list[int | None]:
    """Return the times of what is left of topics, None where it is not known."""
    times: list[int | None] = [written[topic] for topic in feeders if topic in written]
    for topic in feeders:
        if topic not in facts["paused"]:
            until = facts["until"].get(topic, {})
            times.extend(until.get(p) for p, lag in facts["lag"].get(topic, {}).items() if lag)
    return times
