"""Lower bounds: a time such that no record still to be written to a repartition topic is before it.

A task that reads a repartition topic and another topic is a micro-batch behind the tasks that write it: what they are given now it
reads with the next one. While they work through a backlog, read up to one time in each micro-batch, that time is known: what the
micro-batch before left on the broker was not before its time, so nothing that is written now is, either. A micro-batch that begins a
backlog cannot know it; then nothing is taken before the topic's next records, one micro-batch later. Where the writers have read all
there was, or read without such a time, nobody knows what they will write, and a task goes on without it, as Kafka Streams does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from millstream.core.runtime.remaining_inputs import RemainingInputs


def lower_bounds(
    writers: Mapping[str, Collection[str]], before: RemainingInputs | None, now: RemainingInputs
) -> dict[str, int]:
    """Return, per repartition topic, a time that no record still to be written is before, ms; missing if unknown.

    Args:
        writers: The topics that each one is written from, in topological order.
        before: What the previous micro-batch left; None if there was none.

    Example:
        >>> from millstream.core.model.ids import TopicPartition
        >>> left = RemainingInputs({TopicPartition("in", 0): 9}, {TopicPartition("in", 0): 70})
        >>> lower_bounds({"again": ["in"]}, left, left), lower_bounds({"again": ["in"]}, None, left)
        ({'again': 70}, {'again': 0})
    """
    bounds: dict[str, int] = {}
    for topic, inputs in writers.items():
        times = [] if before is None else _times_left(inputs, before, before.to_be_written)
        if not times:
            times = [ms and 0 for ms in _times_left(inputs, now, bounds)]
        known = [ms for ms in times if ms is not None]
        if known and len(known) == len(times):
            bounds[topic] = min(known)
    return bounds


def _times_left(
    topics: Collection[str], remaining: RemainingInputs, to_be_written: Mapping[str, int]
) -> list[int | None]:
    """Return the times of what is left of topics, ms; None if unknown."""
    times: list[int | None] = [to_be_written[topic] for topic in topics if topic in to_be_written]
    read = set(topics) - remaining.paused
    times.extend(
        remaining.until.get(partition)
        for partition, lag in remaining.lag.items()
        if lag and partition.topic in read
    )
    return times
