"""Split partitions in the status.

The records of a split partition count for the topic that the program reads, whichever log they are in. The offsets of its logs are shown as
one *position* (``core.fanout.epochs``), which increases through all epochs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from millstream.core.fanout.epochs import Epoch
from millstream.core.fanout.reading import EpochRead
from millstream.core.metrics.metric import Key, Number
from millstream.core.model.ids import TopicPartition
from millstream.core.model.partitioning import KeyRange
from millstream.core.model.positions import Offsets, flat
from millstream.core.topology.plan import Plan
from millstream.drivers.spark.executor.measures import TASK_METRICS
from millstream.edge.status.application_status import SplitStatus

_ALL_KEYS: Final = KeyRange(0, 1)

_BY_TOPIC: Final = {
    metric.name: metric.labels.index("topic") for metric in TASK_METRICS if "topic" in metric.labels
}
"""The index of the label ``topic``, by metric."""


def by_stream(plan: Plan | None, rows: Sequence[Number]) -> Sequence[Number]:
    """Return the measurements of a task, with those of fan-out topics added to those of the topic that was split.

    A dashboard or an alert for a topic then also holds while one of its partitions is split.
    """
    if plan is None or not plan.fan_outs:
        return rows
    summed: dict[Key, float] = {}
    others: list[Number] = []
    for name, labels, value in rows:
        if (index := _BY_TOPIC.get(name)) is None:
            others.append((name, labels, value))
        else:
            topic = plan.stream_of(labels[index])
            key = name, (*labels[:index], topic, *labels[index + 1 :])
            summed[key] = summed.get(key, 0) + value
    return [*others, *((name, labels, value) for (name, labels), value in summed.items())]


def split_status(
    plan: Plan, epochs: Iterable[EpochRead], ends: Offsets, positions: Offsets
) -> dict[str, SplitStatus]:
    """Return the status of each partition that was ever split and that the application reads.

    Args:
        ends: The ends of the logs.
        positions: The offset before which everything in a log has been processed.
    """
    found, last, known = {}, flat(ends), flat(positions)
    for history, epoch in _split(epochs):
        if history.primary.topic in plan.split_topics:
            lag = sum(max(last.get(log, 0) - known.get(log, 0), 0) for log in history.used_logs)
            found[str(history.primary)] = SplitStatus(
                epoch.number, history.current.number, epoch.ranges, _position(epoch, _ALL_KEYS, known), lag
            )
    return found


def continuous(
    epochs: Iterable[EpochRead],
    positions: Mapping[TopicPartition, int],
    keys: KeyRange,
    own: Mapping[TopicPartition, int],
) -> Mapping[TopicPartition, int]:
    """Return the offsets of a key range, with one position in place of the offsets in the logs of a split partition.

    Args:
        positions: The offsets of all ranges, for logs of which this range has read nothing.
    """
    shown = dict(own)
    for history, epoch in _split(epochs):
        if history.used_logs.isdisjoint(own):
            continue
        for log in history.used_logs:
            shown.pop(log, None)
        shown[history.primary] = _position(epoch, keys, {**positions, **own})
    return shown


def _split(epochs: Iterable[EpochRead]) -> Iterable[EpochRead]:
    return (each for each in epochs if each.history.epochs[1:])


def _position(epoch: Epoch, keys: KeyRange, offsets: Mapping[TopicPartition, int]) -> int:
    reached = epoch.read_position(keys, offsets)
    return epoch.position_after if reached is None else reached
