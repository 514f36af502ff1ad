"""Split partitions in the status: their records count for the topic that the program reads, whichever log they are in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from millstream.core.metrics.metric import Number
from millstream.core.topology.plan import Plan
from millstream.drivers.spark.executor.measures import TASK_METRICS

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
    summed: Counter[tuple[str, tuple[str, ...]]] = Counter()
    others: list[Number] = []
    for name, labels, value in rows:
        if (index := _BY_TOPIC.get(name)) is None:
            others.append((name, labels, value))
        else:
            topic = plan.stream_of(labels[index])
            summed[name, (*labels[:index], topic, *labels[index + 1 :])] += value
    return [*others, *((name, labels, value) for (name, labels), value in summed.items())]
