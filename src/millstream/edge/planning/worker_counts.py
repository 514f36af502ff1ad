"""The number of workers of an application that chooses it itself: at a start, and the work that each worker has."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from millstream.core.model.ids import TaskId
from millstream.core.runtime.auto_parallelism import most_workers
from millstream.core.topology.layout import Layout
from millstream.core.topology.plan import Plan
from millstream.drivers.spark.driver.placement import spark_partition


def first_workers(plan: Plan, layout: Layout, before: int | None, cores: int) -> int:
    """Return the number of workers of a start: that of the checkpoint, else one per task without key ranges, within the bounds.

    Args:
        before: The number of Spark partitions of the checkpoint; None without one.
        cores: How many Spark tasks can run at the same time.
    """
    undivided = {
        (task.subtopology, task.partition // plan.subtopologies[task.subtopology].ranges)
        for task in layout.tasks
    }
    most = most_workers(len(layout.tasks), cores)
    return most_workers(most, len(undivided) if before is None else before)


def busiest(seconds: Mapping[str, float], numbers: Iterable[int]) -> dict[int, float]:
    """Return the processing seconds of the busiest worker, by number of workers.

    Args:
        seconds: Processing seconds by task.

    Example:
        >>> busiest({"0_0": 2.0, "0_1": 3.0, "0_2": 2.0}, [1, 2, 4])
        {1: 7.0, 2: 4.0, 4: 3.0}
    """
    tasks = [(TaskId.parse(task), each) for task, each in seconds.items()]
    return {workers: _busiest(tasks, workers) for workers in numbers}


def _busiest(tasks: Iterable[tuple[TaskId, float]], workers: int) -> float:
    by_worker: dict[int, float] = defaultdict(float)
    for task, seconds in tasks:
        by_worker[spark_partition(task, workers)] += seconds
    return max(by_worker.values(), default=0.0)
