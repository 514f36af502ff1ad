"""Counts of workers and threads: the initial automatic number of workers, the work of each, and the threads of a task."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping

from pyspark.sql import SparkSession

from millstream.core.model.ids import TaskId
from millstream.core.runtime.auto_parallelism import most_workers
from millstream.core.runtime.thread_counts import threads_of_tasks
from millstream.core.topology.layout import Layout
from millstream.core.topology.plan import Plan
from millstream.drivers.spark.driver.placement import spark_partition
from millstream.edge.settings.settings import Settings


def first_workers(plan: Plan, layout: Layout, before: int | None, cores: int) -> int:
    """Return the initial number of workers, within the allowed bounds.

    The number is that of the checkpoint or, without one, the number of tasks that there would be without key ranges.

    Args:
        before: The checkpoint's number of Spark partitions; None without a checkpoint.
    """
    undivided = {
        (task.subtopology, task.partition // plan.subtopologies[task.subtopology].ranges)
        for task in layout.tasks
    }
    most = most_workers(len(layout.tasks), cores)
    return most_workers(most, len(undivided) if before is None else before)


def busiest(seconds: Mapping[str, float], numbers: Iterable[int]) -> dict[int, float]:
    """Return the processing seconds of the busiest worker, by number of workers.

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


log = logging.getLogger("millstream.application")


def threads_of(plan: Plan, layout: Layout, settings: Settings, session: SparkSession) -> dict[TaskId, int]:
    """Return the number of threads of each task. Spark runs as many tasks at the same time as it has slots."""
    per_task, total = settings.num_threads_per_task, settings.num_stream_threads
    slots: int = session.sparkContext.defaultParallelism
    at_once = slots if plan.has_prefix else min(slots, max(len(layout.tasks), 1))
    if total is not None and total < at_once:
        log.warning(
            "num_stream_threads=%d, but Spark runs %d tasks at once, each in its own thread; for fewer threads, give Spark fewer "
            "slots (master='local[%d]')",
            total,
            at_once,
            total,
        )
    return threads_of_tasks(layout.tasks, per_task, total, at_once=at_once)
